"""Device state in the simulator: what SCAFFOLD sends, and what an agent that is started again gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import edgebed
from edgebed.errors import UsageError
from orchestrator.records.types import DeviceDone, TaskSent
from orchestrator.rounds.bounds import TENSOR_BYTES
from orchestrator.runs.folder import RunFolder, Saved
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


def frozen(saved: Saved) -> None:
    saved.progress.simulation["frozen"] = {"dev-1": [1, 2, 3]}


def of_no_device(saved: Saved) -> None:
    saved.tensors["c_i/x"] = torch.ones(1)


def remembered(saved: Saved) -> None:
    saved.progress.method = {"remembers": "words"}
    saved.tensors["c_i/a/b/c"] = torch.ones(1)


@pytest.mark.parametrize("edit", [frozen, of_no_device, remembered])
def test_a_checkpoint_that_was_edited_is_refused_in_words(tmp_path: Path, edit: Callable[[Saved], None]) -> None:
    experiment = {
        "name": "edited",
        "fleet": "dtfl-5",
        "data": {"name": "digits", "train_samples": 200},
        "model": {"name": "resnet-tiny"},
        "methods": [SCAFFOLD],
        "training": {"rounds": 1, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05}},
        "simulation": {"cost": "flops"},
    }
    (run,) = edgebed.simulate(experiment, runs=tmp_path, checkpoint_s=0.0)
    folder = RunFolder(Path(run.path))
    saved = folder.restore()
    assert saved is not None
    edit(saved)
    folder.save(saved.weights, saved.progress, saved.tensors, saved.in_hand)
    with pytest.raises(UsageError, match=r"checkpoint\.safetensors was changed"):
        edgebed.run(resume=folder.path, overrides={"training.rounds": 2})
