"""HeteroFL and FjORD in whole simulated runs: what the last round asks for, and the time of widths that are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import edgebed
from edgebed.methods.base import real_work
from edgebed.methods.parts.exchange import batch_worth
from edgebed.models.staged import MODELS, seeded
from edgebed.wire.order import batch_bounds
from edgebed.wire.settings import LearningTask
from orchestrator.records.reader import read
from orchestrator.records.types import Evaluated, RoundStarted, UpdateReceived
from orchestrator.simulation.counts import Flops

MODEL = {"name": "resnet-tiny", "widths": [4, 4, 8]}
DIGITS = LearningTask((1, 8, 8), 10)
FLOPS = 1e8


def simulated(runs: Path, method: dict[str, Any]) -> Path:
    [run] = edgebed.simulate(
        {
            "name": "widths",
            "fleet": "dtfl-5",
            "data": {"name": "digits", "train_samples": 200, "test_samples": 50},
            "partition": {"kind": "dirichlet", "alpha": 0.5},
            "model": MODEL,
            "methods": [method],
            "training": {"rounds": 3, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05}, "seed": 1},
            "simulation": {"cost": "flops", "device_flops": FLOPS},
        },
        runs=runs,
    )
    return Path(run.path)


def test_heterofl_asks_in_its_last_round_and_keeps_what_it_was_told(tmp_path: Path) -> None:
    run = simulated(tmp_path, {"name": "heterofl"})
    records = list(read(run / "records.jsonl"))
    rounds = [record.assignments.values() for record in records if isinstance(record, RoundStarted)]
    assert [{work.objective for work in works} for works in rounds] == [{"heterofl"}, {"heterofl"}, {"statistics"}]
    assert any(work.keep for work in rounds[0])
    assert not any(work.keep for work in rounds[2])
    assert any(work.options["classes"] for work in rounds[0])  # a device lacks some class
    first = seeded(lambda: MODELS.create(MODEL).build(DIGITS), 1).weights()
    saved = load_file(run / "checkpoint.safetensors")
    statistics = [name for name in first if name.endswith((".running_mean", ".running_var")) and "head" not in name]
    assert statistics
    assert not any(torch.equal(saved[f"weights/{name}"], first[name]) for name in statistics)


@pytest.mark.parametrize("distil", [False, True])
def test_the_widths_drawn_are_charged(tmp_path: Path, distil: bool) -> None:
    """Every device computes for as long as what its batches are worth takes at p_max, by the counted operations."""
    run = simulated(tmp_path, {"name": "fjord", "distil": distil})
    records = list(read(run / "records.jsonl"))
    assignments = {
        (record.round, name): work
        for record in records
        if isinstance(record, RoundStarted)
        for name, work in record.assignments.items()
    }
    flops = Flops(seeded(lambda: MODELS.create(MODEL).build(DIGITS), 1))
    seen = [record for record in records if isinstance(record, UpdateReceived)]
    assert len(seen) == 15
    for update in seen:
        work, report = assignments[update.round, update.device], update.report
        bounds = batch_bounds(report.samples, work.batch_size, work.max_batches)
        sizes = [batch_worth(work, number, stop - start) for number, (start, stop) in enumerate(bounds)]
        each = sum(flops.device(real_work(work))) / FLOPS
        assert report.compute_cpu_s == pytest.approx(sum(sizes) * each, rel=1e-6)
    narrow = {len(work.options["costs"]) for work in assignments.values()}  # type: ignore[arg-type]
    assert len(narrow) > 1
    extra = [record.extra for record in records if isinstance(record, Evaluated)][-1]
    assert list(extra) == ["width0.2", "width0.4", "width0.6", "width0.8", "width1"]
