"""`training.budget_s`: every run ends at that second of its time axis, and what was merged by then counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from edgebed.errors import RunError
from orchestrator.experiment import MOST_ROUNDS, Experiment, from_dict
from orchestrator.records.account import load_summary
from orchestrator.records.reader import read
from orchestrator.records.summary import Summary
from orchestrator.records.types import DeviceOut, RoundFinished
from orchestrator.runs import session
from orchestrator.runs.resume import resume_request
from orchestrator.simulation.run import SimulationRequest, resumed, simulate
from tests.component._fleet import fleet, training

PATH = Path(__file__).parents[2] / "profiles" / "experiments" / "cell.yaml"
SGD = {"name": "sgd", "lr": 0.05}


def wanted(method: dict[str, Any], **of_training: Any) -> Experiment:
    return from_dict(
        {
            "name": "timed",
            "fleet": str(PATH.parents[1] / "fleets" / "desk-5.yaml"),
            "data": {"name": "digits", "train_samples": 50, "test_samples": 20},
            "methods": [method],
            "training": {"batch_size": 10, "plateau": None, "optimizer": SGD, **of_training},
            "simulation": {"cost": "flops", "device_flops": 1e8},
        }
    )


def simulated(folder: Path, method: dict[str, Any], **of_training: Any) -> Path:
    request = SimulationRequest(wanted(method, **of_training), PATH, folder)
    (run,) = simulate(request, session.Watch(session.quiet))
    return run


def rows(summary: Summary) -> list[tuple[float, int, float | None]]:
    return [(row.elapsed_s, row.merged, row.accuracy) for row in summary.rounds]


ONE_BY_ONE = [{"name": "fedavg"}, {"name": "splitfed"}, {"name": "scaffold"}]
LANES = [{"name": "fedbuff", "buffer": 2, "concurrency": 3}, {"name": "fedat", "tiers": 2}]


@pytest.mark.parametrize("method", ONE_BY_ONE, ids=lambda method: str(method["name"]))
def test_a_run_ends_at_that_second_as_a_longer_one_was_then(method: dict[str, Any], tmp_path: Path) -> None:
    longer = load_summary(whole := simulated(tmp_path / "whole", method, rounds=4))
    budget_s = longer.rounds[2].elapsed_s + 0.5 * longer.rounds[3].round_s  # in the middle of the fourth round
    run = simulated(tmp_path / "timed", method, budget_s=budget_s)
    found = load_summary(run)
    assert (found.ended, found.total_s) == ("budget spent", pytest.approx(budget_s, abs=1e-6))
    assert rows(found)[:3] == rows(longer)[:3]
    assert rows(found)[3:] == [(found.total_s, 0, None)]
    assert found.final_accuracy == longer.rounds[2].accuracy
    by_then = simulated(tmp_path / "short", method, rounds=3)
    expected, weights, later = (load_file(each / "checkpoint.safetensors") for each in (by_then, run, whole))
    names = [name for name in expected if name.startswith("weights/")]
    assert all(torch.equal(weights[name], expected[name]) for name in names)
    assert not all(torch.equal(weights[name], later[name]) for name in names)


@pytest.mark.parametrize("method", LANES, ids=lambda method: str(method["name"]))
def test_rounds_that_overlap_all_end_at_that_second(method: dict[str, Any], tmp_path: Path) -> None:
    longer = load_summary(simulated(tmp_path / "whole", method, rounds=30))
    budget_s = 0.6 * longer.total_s
    found = load_summary(run := simulated(tmp_path / "timed", method, budget_s=budget_s))
    assert (found.ended, found.total_s) == ("budget spent", pytest.approx(budget_s, abs=1e-6))
    before = [each for each in rows(longer) if each[0] < budget_s]
    assert [row[:2] for row in rows(found)[: len(before)]] == [row[:2] for row in before]
    cut = [record for record in read(run / "records.jsonl") if isinstance(record, RoundFinished)][len(before) :]
    assert {(record.why, record.merged) for record in cut} == {("budget", ())}
    assert len(cut) > 1
    assert found.final_accuracy is not None


def test_the_last_weights_are_tested_though_no_test_was_due(tmp_path: Path) -> None:
    found = load_summary(simulated(tmp_path, {"name": "fedavg"}, evaluate_every=100, budget_s=60.0))
    assert [row.accuracy is None for row in found.rounds] == [True] * (len(found.rounds) - 1) + [False]


def test_a_longer_budget_goes_on_from_there(tmp_path: Path) -> None:
    run = simulated(tmp_path, {"name": "fedavg"}, budget_s=60.0)
    before = load_summary(run)
    with pytest.raises(Exception, match="its budget of 60 s spent in round"):
        resume_request(run)
    simulate(resumed(resume_request(run, ["training.budget_s=90"])), session.Watch(session.quiet))
    after = load_summary(run)
    assert after.total_s == pytest.approx(90.0, abs=1e-6)
    assert rows(after)[: len(before.rounds)] == rows(before)
    assert sum(row.merged > 0 for row in after.rounds) > sum(row.merged > 0 for row in before.rounds)


def test_a_budget_too_short_for_one_round_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no work was merged in 1 round: .*training\.budget_s") as caught:
        simulated(tmp_path, {"name": "fedavg"}, budget_s=0.5)
    assert "raise training.budget_s (now 0.5 s)" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "rounds"),
    [({}, 20), ({"budget_s": 5}, MOST_ROUNDS), ({"budget_s": 5, "rounds": 7}, 7), ({"budget_s": None}, 20)],
)
def test_a_budget_without_rounds_has_as_many_as_it_holds(given: dict[str, Any], rounds: int) -> None:
    assert wanted({"name": "fedavg"}, **given).training.rounds == rounds


def test_with_changes_of_profiles_the_number_of_rounds_stays() -> None:
    own = {"name": "x", "fleet": "dtfl-5", "methods": [{"name": "fedavg"}], "training": {"budget_s": 5}}
    assert from_dict({**own, "environment": {"every": 3}}).training.rounds == 20


def test_budgets_may_be_swept() -> None:
    experiment = from_dict(
        {"name": "x", "fleet": "dtfl-5", "methods": [{"name": "fedavg"}], "sweep": {"training.budget_s": [5, 9]}}
    )
    parts = [experiment.part(*each).training for each in experiment.parts]
    assert [(part.budget_s, part.rounds) for part in parts] == [(5.0, MOST_ROUNDS), (9.0, MOST_ROUNDS)]


async def test_agents_are_told_to_stop_and_the_weights_are_those_of_the_last_merge(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"dev-1": 16, "dev-2": 16}) as made:
        run = asyncio.create_task(made.play({"name": "fedavg"}, training(rounds=10**6, budget_s=3.0)))
        await made.expect(RoundFinished)
        made.trainers["dev-2"].gate.clear()
        await run
        finished = made.of(RoundFinished)
        assert (finished[-1].why, finished[-1].merged) == ("budget", ())
        assert {each.why for each in finished[:-1]} == {"all done"}
        assert sum(each.seconds for each in finished) >= 3.0
        (out,) = made.of(DeviceOut)
        assert (out.device, out.how) == ("dev-2", "late")
        made.trainers["dev-2"].gate.set()
        kept = made.saved[len(finished) - 2]  # after the last merge
        assert all(torch.equal(value, made.saved[-1][name]) for name, value in kept.items())
