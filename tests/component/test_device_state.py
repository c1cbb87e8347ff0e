"""Device state in the simulator: what SCAFFOLD sends, and what an agent that is started again gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from orchestrator.records.types import DeviceDone, TaskSent
from orchestrator.rounds.bounds import TENSOR_BYTES
from orchestrator.scenario.agenda import Scenario
from orchestrator.scenario.spec import ScenarioEvent
from tests.component._fleet import model, training
from tests.component._simulated import Played, play

THREE = {"a": 32, "b": 32, "c": 32}
WANTED = training(rounds=4, batch_size=8, optimizer={"name": "sgd", "lr": 0.05})
SCAFFOLD = {"name": "scaffold"}
WHOLE = model().stages(0, len(model()))
STATE_BYTES = sum(value.nbytes for value in WHOLE.parameters())
AWAY = [{"round": 2, "device": "b", "do": "leave"}, {"round": 3, "device": "b", "do": "return"}]
"""Rounds are counted from 1 here, from 0 in records."""


def scenario(events: list[dict[str, Any]]) -> Scenario:
    return Scenario(tuple(msgspec.convert(events, list[ScenarioEvent])), {})


def sent(run: Played, device: str) -> dict[int, TaskSent]:
    return {task.round: task for task in run.of(TaskSent) if task.device == device}


def test_scaffold_sends_a_control_variate_with_every_task_and_no_state(tmp_path: Path) -> None:
    run, fedavg = (play(tmp_path, THREE, {"name": name}, WANTED) for name in ("scaffold", "fedavg"))
    more = [task.bytes - plain.bytes for task, plain in zip(run.of(TaskSent), fedavg.of(TaskSent), strict=True)]
    names = len(list(WHOLE.parameters()))
    assert len(more) == 12
    assert all(STATE_BYTES < each < STATE_BYTES + names * TENSOR_BYTES for each in more)
    assert {task.state_bytes for task in run.of(TaskSent)} == {0}
    assert {done.extra_bytes for done in run.of(DeviceDone)} == {STATE_BYTES}
    assert {done.extra_bytes for done in fedavg.of(DeviceDone)} == {0}


def test_an_agent_that_was_started_again_gets_the_servers_copy_once(tmp_path: Path) -> None:
    run = play(tmp_path, THREE, SCAFFOLD, WANTED, scenario=scenario(AWAY))
    assert {round: task.state_bytes for round, task in sent(run, "b").items()} == {0: 0, 2: STATE_BYTES, 3: 0}
    assert {task.state_bytes for name in "ac" for task in sent(run, name).values()} == {0}
