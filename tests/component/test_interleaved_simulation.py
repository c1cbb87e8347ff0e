"""Simulated methods in turns: on a clock of their own the order changes nothing but itself."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from edgebed.errors import RunError
from orchestrator.experiment import Experiment
from orchestrator.records.account import load_summary
from orchestrator.records.reader import read
from orchestrator.records.types import RoundStarted, RunFinished, RunStarted, ScenarioStep, TurnEnded
from orchestrator.rounds.settings import RoundSettings, round_settings
from orchestrator.rounds.steps import RoundSteps
from orchestrator.runs import run, session
from orchestrator.runs.turns import order
from orchestrator.simulation.run import SimulationRequest, simulate

EXPERIMENTS = Path(__file__).parents[2] / "profiles" / "experiments"
ROUNDS, SEED = 3, 4
WANTED: dict[str, Any] = {
    "name": "turns",
    "fleet": "../fleets/desk-5.yaml",
    "data": {"name": "digits", "train_samples": 100, "test_samples": 50},
    "methods": [{"name": "fedavg"}, {"name": "fedat", "tiers": 2}, {"name": "s2fl"}, {"name": "drop-slowest"}],
    "training": {"rounds": ROUNDS, "batch_size": 10, "seed": SEED},
    "environment": {"every": 1, "share": 0.5},
    "simulation": {"cost": "flops", "device_flops": 1e8},
}
OWN = ("run", "started", "series", "interleaved", "block", "position")
"""Names in a summary that the order may change."""


SCENARIO = [
    {"at_s": 2.0, "share": 0.8, "limits": {"cpus": 0.06}, "for_s": 6.0},  # until after the others' turns
    {"round": 2, "share": 0.4, "do": "freeze", "for_s": 0.5},
]
TWO = {**WANTED, "methods": [{"name": "fedavg"}, {"name": "fedyogi"}]}  # that leave no device out


def simulated(folder: Path, interleave: bool, wanted: dict[str, Any] = WANTED) -> list[Path]:
    experiment = msgspec.convert({**wanted, "interleave": interleave}, Experiment)
    request = SimulationRequest(experiment, EXPERIMENTS / "turns.yaml", folder)
    return simulate(request, session.Watch(session.quiet))


def test_weights_and_times_are_those_of_methods_one_after_the_other(tmp_path: Path) -> None:
    alternating, in_turn = simulated(tmp_path / "turns", True), simulated(tmp_path / "whole", False)
    for one, other in zip(alternating, in_turn, strict=True):
        mine, whole = (load_file(folder / "checkpoint.safetensors") for folder in (one, other))
        assert mine.keys() == whole.keys()
        assert all(torch.equal(mine[name], whole[name]) for name in whole)
        figures, expected = load_summary(one).as_dict(), load_summary(other).as_dict()
        # A turn's end cuts the phase of a device that was left out; a stop counts in the phase in which it ends.
        assert figures.pop("throttled_share") == pytest.approx(expected.pop("throttled_share"), rel=0.01)
        assert {k: v for k, v in figures.items() if k not in OWN} == {k: v for k, v in expected.items() if k not in OWN}
        assert figures["timeline_residual_max"] == 0

    ends = [[r for r in read(folder / "records.jsonl") if isinstance(r, TurnEnded)] for folder in alternating]
    barrier = [ends[0], ends[2], ends[3]]
    assert not ends[1], "FedAT has no barrier and runs as a whole"
    for block in range(ROUNDS):
        assert len({own[block].block for own in barrier}) == 1
        played = sorted(range(3), key=lambda number: barrier[number][block].position)
        assert played == order(3, block, SEED)


def test_a_scenario_follows_each_methods_own_seconds_and_rounds(tmp_path: Path) -> None:
    """What is in force when a turn ends is undone for the others, and in force again in the next turn."""
    wanted = {**TWO, "scenario": SCENARIO}
    alternating, in_turn = simulated(tmp_path / "turns", True, wanted), simulated(tmp_path / "whole", False, wanted)
    for one, other in zip(alternating, in_turn, strict=True):
        assert story(one) == story(other) != []
        rounds = [row.round_s for row in load_summary(one).rounds]
        assert rounds == [row.round_s for row in load_summary(other).rounds]
        assert max(rounds) > 1.2 * min(rounds)
    limited = [(number, begins) for number, _, _, kind, begins in story(alternating[0]) if kind == "limits"]
    assert {(0, True), (1, False)} <= set(limited), "it is in force over the end of a turn"


def story(folder: Path) -> list[tuple[int, int, str, str, bool]]:
    """Of every step: the round that began last, nanoseconds since then, device, event, and whether it begins."""
    number = start = 0
    found = []
    for record in read(folder / "records.jsonl"):
        if isinstance(record, RoundStarted):
            number, start = record.round, record.at_ns
        elif isinstance(record, ScenarioStep):
            assert not record.error
            found.append((number, record.at_ns - start, record.device, record.kind, record.begins))
    return found


def test_an_error_in_one_method_ends_the_others_as_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = RoundSteps.merge

    async def failing(self: RoundSteps, number: int, *rest: object) -> object:
        if number == 1 and self.method.name == "s2fl":
            raise RunError("it went wrong", hint="")
        return await merge(self, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RoundSteps, "merge", failing)
    with pytest.raises(RunError, match="it went wrong"):
        simulated(tmp_path, True)
    last = {}
    for records in tmp_path.glob("*/records.jsonl"):
        said = read(records)
        ends = [(record.why, record.ending) for record in said if isinstance(record, RunFinished)]
        last[said[0].method] = ends  # type: ignore[union-attr]
        assert (records.parent / "report.html").is_file()
    last.pop("fedat", None)
    stopped = [("interrupted", "interrupted")]
    assert last == {"fedavg": stopped, "s2fl": [("error: it went wrong", "failed")], "drop-slowest": stopped}


def test_a_run_records_the_length_of_the_upload_queues_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shorter(*about: Any) -> RoundSettings:
        return msgspec.structs.replace(round_settings(*about), queued_uploads=3)

    monkeypatch.setattr(run, "round_settings", shorter)
    (folder,) = simulated(tmp_path, False, {**WANTED, "methods": [{"name": "fedavg"}]})
    records = read(folder / "records.jsonl")
    assert [record.queued_uploads for record in records if isinstance(record, RunStarted)] == [3]
    assert [record.ending for record in records if isinstance(record, RunFinished)] == ["finished"]


def test_a_listener_hears_every_record_of_every_run(tmp_path: Path) -> None:
    heard = defaultdict[Path, list[type]](list)
    watch = session.Watch(session.quiet)
    watch.listeners.append(lambda folder, record: heard[folder].append(type(record)))
    experiment = msgspec.convert({**TWO, "interleave": True, "training": {**TWO["training"], "rounds": 1}}, Experiment)
    folders = simulate(SimulationRequest(experiment, EXPERIMENTS / "turns.yaml", tmp_path), watch)
    assert heard == {folder: [type(record) for record in read(folder / "records.jsonl")] for folder in folders}
