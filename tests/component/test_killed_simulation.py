"""A simulation that is killed at any moment goes on to the same bits: weights, progress and every record."""

from __future__ import annotations

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from edgebed.errors import UsageError
from orchestrator.experiment import Experiment
from orchestrator.records.account import load_summary
from orchestrator.records.reader import read
from orchestrator.records.types import DeviceDone, Fault
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.request import Watch, quiet
from orchestrator.runs.resume import resume_request
from orchestrator.simulation.run import SimulationRequest, resumed, simulate
from orchestrator.simulation.simulation_file import read_file
from tests.component import _killed

ROOT = Path(__file__).parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.component._killed", "torch._dynamo", "torch.utils.flop_counter"])
WANTED: dict[str, Any] = {
    "name": "cell",
    "fleet": "../fleets/desk-5.yaml",
    "data": {"name": "digits", "train_samples": 100, "test_samples": 20},
    "training": {"rounds": 9, "batch_size": 10, "seed": 3},
    "environment": {"every": 3, "share": 0.5},
    "simulation": {"cost": "flops", "device_flops": 1e8},
}
KILLS: list[dict[str, int]] = [{"records": 80}, {"checkpoints": 3}, {"records": 10}]
"""In each session: after so many records were written, or in place of a checkpoint, when its records are written."""


def play(folder: Path, experiment: dict[str, Any], kills: list[dict[str, int]], **job: Any) -> Path:
    """The run of the experiment's method, killed and resumed."""
    file = folder / "job.json"
    folder.mkdir(parents=True, exist_ok=True)
    path = str(ROOT / "profiles" / "experiments" / "cell.yaml")
    for number, kill in enumerate([*kills, {}], len(list(folder.glob("*/records.jsonl")))):
        asked = {"experiment": experiment, "path": path, "runs": str(folder), "first": number == 0, **job, **kill}
        file.write_text(json.dumps(asked))
        process = PROCESSES.Process(target=_killed.main, args=(file,))
        process.start()
        process.join()
        assert process.exitcode == (-9 if kill else 0)
    (run,) = folder.glob("*/records.jsonl")
    return run.parent


def records(run: Path) -> list[str]:
    """The lines of the records, without the run's name, its date and its series."""
    text = (run / "records.jsonl").read_text().replace(run.name, "RUN")
    assert text.count('"type":"run_started"') == 1
    return re.sub(r'"(wall|series)":"[^"]*"', r'"\1":""', text).splitlines()


def assert_equal(whole: Path, killed: Path) -> None:
    expected, found = (load_file(run / "checkpoint.safetensors") for run in (whole, killed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert records(killed) == records(whole)
    before, after = (msgspec.json.encode(RunFolder(run).progress()) for run in (whole, killed))
    assert before.replace(whole.name.encode(), b"RUN") == after.replace(killed.name.encode(), b"RUN")


LOST = [
    {"round": 3, "after_s": 0.2, "device": "cpu0.2-1", "do": "cut", "for_s": 40.0},
    {"round": 5, "after_s": 0.1, "device": "desk-cpu0.3-1", "do": "leave", "for_s": 30.0},
    {"at_s": 60.0, "share": 0.6, "limits": {"cpus": 0.2}, "for_s": 200.0},
]
SGD = {**WANTED["training"], "optimizer": {"name": "sgd", "lr": 0.05}}
TIMED = {**WANTED["training"], "rounds": 1000, "budget_s": 48.0}
PART = {"name": "resnet-tiny", "trainable": ["md7", "md8"]}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"methods": [{"name": "fedavg"}]},
    "dtfl": {"methods": [{"name": "dtfl", "tiers": 3}]},
    "s2fl": {"methods": [{"name": "s2fl"}]},
    "fedat": {"methods": [{"name": "fedat", "tiers": 2}]},
    "fedat and lost devices": {"methods": [{"name": "fedat", "tiers": 2}], "scenario": LOST},
    "a lost device": {"methods": [{"name": "fedavg"}], "scenario": LOST},
    "a trained part": {"methods": [{"name": "fedavg"}], "model": PART, "scenario": LOST},
    "fedat and a trained part": {"methods": [{"name": "fedat", "tiers": 2}], "model": PART, "scenario": LOST},
    "late devices": {"methods": [{"name": "drop-slowest"}]},
    "device state and lost devices": {"methods": [{"name": "scaffold"}], "training": SGD, "scenario": LOST},
    "a buffer": {"methods": [{"name": "fedbuff", "buffer": 2, "concurrency": 3}]},
    "a budget": {"methods": [{"name": "fedavg"}], "training": TIMED},
    "a buffer and a budget": {"methods": [{"name": "fedbuff", "buffer": 2, "concurrency": 3}], "training": TIMED},
    "measured costs": {"methods": [{"name": "splitfed"}], "simulation": {"cost": "timed"}},
    "a reference": {"methods": [{"name": "dtfl", "tiers": 3}], "simulation": {"cost": "reference x86-avx512"}},
    "fedat and a reference": {
        "methods": [{"name": "fedat", "tiers": 2}],
        "simulation": {"cost": "reference x86-avx512"},
        "scenario": LOST,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_a_simulation_that_was_killed_three_times_is_equal_to_a_whole_one(case: str, tmp_path: Path) -> None:
    wanted = {**WANTED, **CASES[case]}
    whole = play(tmp_path / "whole", wanted, [], checkpoint_s=0)
    kills = [{"checkpoints": 2}, *KILLS] if case == "measured costs" else KILLS  # laws of no checkpoint are lost
    killed = play(tmp_path / "killed", wanted, kills, checkpoint_s=0)
    assert_equal(whole, killed)


AT_ONCE: dict[str, dict[str, Any]] = {
    "unlike devices": {**CASES["a buffer and a budget"], "training": {**TIMED, "budget_s": 10.0}},
    "devices alike": {
        **CASES["a buffer"],
        "training": {**TIMED, "budget_s": 6.0},
        "environment": {"every": 2, "share": 0.5},
    },
    "a reference": {**CASES["a buffer"], "simulation": {"cost": "reference x86-avx512"}, "scenario": LOST},
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_concurrent_rounds_go_on_to_the_same_records_from_every_checkpoint(case: str, tmp_path: Path) -> None:
    """Whatever was in hand: rounds that began or ended at the same time, and those whose devices trained together."""
    fleet = tmp_path / "alike.yaml"
    fleet.write_text("name: alike\ndevices:\n  - {profile: cpu0.2, count: 5}\n")
    wanted = {**WANTED, **AT_ONCE[case]}
    wanted["fleet"] = str(fleet) if case == "devices alike" else wanted["fleet"]
    copies = tmp_path / "copies"
    whole = play(tmp_path / "whole", wanted, [], checkpoint_s=0, copies=str(copies))
    saved = sorted(copies.iterdir())
    assert len(saved) > 6
    for copy in saved:
        assert_equal(whole, play(copy, wanted, [], checkpoint_s=0))


def test_nobody_judges_the_hold_of_a_simulated_device(tmp_path: Path) -> None:
    run = play(tmp_path, {**WANTED, **CASES["a reference"]}, [])
    records = list(read(run / "records.jsonl"))
    assert [each for each in records if isinstance(each, Fault)] == []
    assert {(each.late_s, each.early_s) for each in records if isinstance(each, DeviceDone)} == {(None, None)}
    assert load_summary(run).early_s == {}


def test_checkpoints_are_as_far_apart_as_asked_and_the_last_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(RunFolder, "save", lambda self, weights, progress, *rest: saved.append(progress.round))
    experiment = msgspec.convert({**WANTED, **CASES["fedavg"]}, Experiment)
    request = SimulationRequest(experiment, ROOT / "profiles" / "experiments" / "cell.yaml", tmp_path)
    simulate(msgspec.structs.replace(request, checkpoint_s=0), Watch(quiet))
    (run,) = simulate(msgspec.structs.replace(request, checkpoint_s=1e6), Watch(quiet))
    assert saved == [*range(1, 10), 1, 9]
    assert resumed(resume_request(run)).checkpoint_s == 1e6, "a run that goes on is saved as often"


def test_what_a_simulation_does_not_go_on_with_is_refused(tmp_path: Path) -> None:
    run = play(tmp_path, {**WANTED, **CASES["fedavg"]}, [])
    with pytest.raises(UsageError, match="cannot be changed"):
        resume_request(run, ["training.quorum=2"])
    request = resume_request(run, ["training.rounds=11"])
    assert request.backend == "simulated"
    before = read_file(run)
    (run / "simulation.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(before, simd="AVX1")))
    with pytest.raises(UsageError, match="on a CPU with AVX1; here are"):
        simulate(resumed(request), Watch(quiet))
    (run / "simulation.json").write_bytes(msgspec.json.encode(before))
    (extended,) = simulate(resumed(request), Watch(quiet))
    assert (extended, RunFolder(run).progress().round) == (run, 11)
    (run / "simulation.json").unlink()
    with pytest.raises(UsageError, match="simulation of an earlier version"):
        resume_request(run)
