"""An experiment with several seeds: the runs of as many experiments, which belong together and go on together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from edgebed.errors import UsageError
from orchestrator.experiment import Experiment, from_dict
from orchestrator.records.account import load_summary
from orchestrator.records.compare.paired import paired
from orchestrator.rounds.job import RoundResult
from orchestrator.rounds.progress import Progress
from orchestrator.runs import session
from orchestrator.runs.resume import resume_request
from orchestrator.simulation.run import SimulationRequest, resumed, simulate

WANTED: dict[str, Any] = {
    "name": "many",
    "fleet": "dtfl-5",
    "data": {"name": "digits", "train_samples": 100, "test_samples": 50},
    "methods": [{"name": "fedavg"}, {"name": "fedyogi"}],
    "interleave": True,
    "training": {"rounds": 3, "batch_size": 10, "seed": 9},
    "simulation": {"cost": "flops", "device_flops": 1e8},
}


def experiment(**more: Any) -> Experiment:
    return from_dict({**WANTED, **more})


def simulated(wanted: Experiment, folder: Path) -> list[Path]:
    return simulate(SimulationRequest(wanted, Path("many.yaml"), folder), session.Watch(session.quiet))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint.safetensors")


def same(one: Path, other: Path) -> bool:
    mine, whole = weights(one), weights(other)
    return mine.keys() == whole.keys() and all(torch.equal(mine[name], whole[name]) for name in whole)


def alone(seed: int, folder: Path) -> list[Path]:
    return simulated(experiment(training={**WANTED["training"], "seed": seed}), folder)


def test_the_runs_are_those_of_one_experiment_for_each_seed(tmp_path: Path) -> None:
    together = simulated(experiment(seeds=[2, 1]), tmp_path / "together")
    apart = [*alone(2, tmp_path / "two"), *alone(1, tmp_path / "one")]
    assert [same(one, other) for one, other in zip(together, apart, strict=True)] == [True] * 4
    assert not same(together[0], together[2])
    found = [load_summary(folder) for folder in together]
    assert [(each.method, each.seed) for each in found] == [
        ("fedavg", 2),
        ("fedyogi", 2),
        ("fedavg", 1),
        ("fedyogi", 1),
    ]
    assert len({each.series for each in found}) == 1
    (pair,) = paired(found)
    assert (pair.experiments, pair.unit) == (2, "seeds")


class Stopped(Exception):
    """Ends the experiment in its second seed."""


class _Stops(session.Watch):
    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        if len(self.folders) == 4 and result.round == 1:
            raise Stopped


def test_an_interrupted_experiment_goes_on_with_its_seeds_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = simulated(experiment(seeds=[2, 1]), tmp_path / "whole")
    watch, runs = _Stops(session.quiet), tmp_path / "stopped"
    with pytest.raises(Stopped):
        simulate(SimulationRequest(experiment(seeds=[2, 1]), Path("many.yaml"), runs, checkpoint_s=0), watch)
    for begun in (watch.folders[0], watch.folders[3]):
        assert len(resume_request(begun).finished) == 2
    again = simulate(resumed(resume_request(watch.folders[0])), session.Watch(session.quiet))
    assert again == watch.folders
    assert [same(one, other) for one, other in zip(again, whole, strict=True)] == [True] * 4
    with pytest.raises(UsageError, match="is finished"):
        resume_request(again[3])


SWEEP = {"training.batch_size": [10, 20]}


class _StopsInTheSweep(session.Watch):
    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        if len(self.folders) == 6 and result.round == 1:
            raise Stopped


def test_an_interrupted_sweep_goes_on_in_its_settings_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Stopped in the second setting. A swept fleet is named relative to the experiment's file, which is elsewhere."""
    fleet = tmp_path / "two.yaml"
    fleet.write_text("name: two\ndevices: [{profile: cpu1}, {profile: cpu0.2}]\n")
    wanted = experiment(seeds=[2, 1], sweep={**SWEEP, "fleet": ["two.yaml"]}, training={"rounds": 2, "batch_size": 9})
    path = tmp_path / "many.yaml"
    whole = simulate(SimulationRequest(wanted, path, tmp_path / "whole"), session.Watch(session.quiet))
    found = [load_summary(folder) for folder in whole]
    parts = [(each.setting["training.batch_size"], each.seed, each.method) for each in found]
    assert parts == [(size, seed, name) for size in (10, 20) for seed in (2, 1) for name in ("fedavg", "fedyogi")]
    assert {row.block is not None for each in found for row in each.rounds} == {True}
    pairs = {each.method: each.experiments for each in paired(found)}
    assert pairs == {
        "fedyogi, batch_size 10, fleet two.yaml (simulated)": 2,
        **dict.fromkeys(["fedyogi, batch_size 20, fleet two.yaml (simulated)"], 2),
    }
    watch = _StopsInTheSweep(session.quiet)
    with pytest.raises(Stopped):
        simulate(SimulationRequest(wanted, path, tmp_path / "stopped", checkpoint_s=0), watch)
    for begun in (watch.folders[0], watch.folders[5]):
        request = resume_request(begun)
        assert (len(request.finished), len(request.begun), len(request.experiment.parts)) == (4, 2, 4)
    again = simulate(resumed(resume_request(watch.folders[5])), session.Watch(session.quiet))
    assert again[:6] == watch.folders
    assert [same(one, other) for one, other in zip(again, whole, strict=True)] == [True] * 8
    assert [load_summary(folder).setting for folder in again] == [each.setting for each in found]
    with pytest.raises(UsageError, match="is finished"):
        resume_request(again[7])


def test_what_a_sweep_changes_cannot_be_changed_in_a_run_that_goes_on(tmp_path: Path) -> None:
    wanted = experiment(sweep={"training.rounds": [1, 2]}, methods=[{"name": "fedavg"}])
    runs = simulated(wanted, tmp_path)
    assert [len(load_summary(folder).rounds) for folder in runs] == [1, 2]
    with pytest.raises(UsageError, match=r"training\.rounds"):
        resume_request(runs[0], ["training.rounds=5"])


@pytest.mark.parametrize("seeds", [[], [1, 1], [-1], ["x"], 3])
def test_what_is_no_list_of_different_seeds_is_refused(seeds: object) -> None:
    with pytest.raises(UsageError, match="seeds"):
        experiment(seeds=seeds)


def test_seeds_of_a_run_that_goes_on_cannot_be_changed(tmp_path: Path) -> None:
    runs = simulated(experiment(seeds=[2, 1], training={"rounds": 1, "batch_size": 10}), tmp_path)
    with pytest.raises(UsageError, match="seeds"):
        resume_request(runs[0], ["seeds=[3]", "training.rounds=2"])
    assert msgspec.to_builtins(resume_request(runs[3], ["training.rounds=2"]).experiment.seeds) == [2, 1]
