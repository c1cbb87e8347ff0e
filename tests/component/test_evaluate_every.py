"""`training.evaluate_every`: fewer tests, the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from orchestrator.experiment import Experiment
from orchestrator.records.account import load_summary
from orchestrator.records.reader import read
from orchestrator.records.types import Evaluated
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate

PATH = Path(__file__).parents[2] / "profiles" / "experiments" / "cell.yaml"


def simulated(folder: Path, every: int, method: dict[str, Any], **training: Any) -> Path:
    wanted = {
        "name": "seldom",
        "fleet": "../fleets/desk-5.yaml",
        "data": {"name": "digits", "train_samples": 50, "test_samples": 20},
        "methods": [method],
        "training": {"rounds": 5, "batch_size": 10, "plateau": None, "evaluate_every": every, **training},
        "simulation": {"cost": "flops", "device_flops": 1e8},
    }
    request = SimulationRequest(msgspec.convert(wanted, Experiment), PATH, folder)
    (run,) = simulate(request, session.Watch(session.quiet))
    return run


def rounds_with_test(run: Path) -> list[int]:
    return [record.round for record in read(run / "records.jsonl") if isinstance(record, Evaluated)]


def test_weights_are_tested_every_few_rounds_and_at_the_end(tmp_path: Path) -> None:
    often, seldom = (simulated(tmp_path / str(every), every, {"name": "fedavg"}) for every in (1, 2))
    assert (rounds_with_test(often), rounds_with_test(seldom)) == ([0, 1, 2, 3, 4], [1, 3, 4])
    expected, found = (load_file(run / "checkpoint.safetensors") for run in (often, seldom))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    whole, sparse = load_summary(often), load_summary(seldom)
    assert [row.accuracy for row in sparse.rounds] == [
        row.accuracy if row.number - 1 in rounds_with_test(seldom) else None for row in whole.rounds
    ]
    assert (sparse.final_accuracy, sparse.total_s) == (whole.final_accuracy, whole.total_s)
    assert (seldom / "report.html").stat().st_size > 1000


@pytest.mark.parametrize("method", [{"name": "fedat", "tiers": 2}, {"name": "dtfl", "tiers": 2}])
def test_the_last_weights_are_tested_whatever_the_method(method: dict[str, Any], tmp_path: Path) -> None:
    run = simulated(tmp_path, 100, method)
    assert len(rounds_with_test(run)) == 1
    assert load_summary(run).final_accuracy is not None


def test_a_target_is_reached_in_a_round_with_a_test(tmp_path: Path) -> None:
    run = simulated(tmp_path, 2, {"name": "fedavg"}, target_accuracy=0.001, rounds=50)
    assert rounds_with_test(run) == [1]
    assert load_summary(run).time_to_target_s == pytest.approx(load_summary(run).total_s)
