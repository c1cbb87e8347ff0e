"""What an agent does before its limits are set."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from edge_agent.training import DeviceTrainer, warm_up
from edgebed.device.core import Result
from edgebed.wire.messages import Task
from orchestrator.training import child, parcel


def test_warm_up_leaves_the_random_state_and_starts_no_thread() -> None:
    state, threads, of_torch = torch.get_rng_state(), threading.active_count(), torch.get_num_threads()
    try:
        warm_up()
        assert torch.equal(torch.get_rng_state(), state)
        assert threading.active_count() == threads
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(of_torch)


def test_warm_up_trains_a_whole_model_and_a_device_half(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []
    run = DeviceTrainer.run

    def noted(self: DeviceTrainer, task: Task, *args: Any, **more: Any) -> Result:
        result = run(self, task, *args, **more)
        done.append((task.assignment.objective, result.samples))
        return result

    monkeypatch.setattr(DeviceTrainer, "run", noted)
    threads = torch.get_num_threads()
    try:
        warm_up()
    finally:
        torch.set_num_threads(threads)
    assert done == [("output", 4), ("head", 4)]


CODE = """
import gc, weakref
from {} import warm_up

class Garbage:
    def __init__(self):
        self.own = self

gc.disable()
seen = weakref.ref(Garbage())
warm_up()
print(len(gc.get_objects()), seen() is None)
"""
"""By module. Prints how much garbage collection looks at, and whether garbage is gone."""


@pytest.mark.parametrize("module", ["edge_agent.training", "orchestrator.training.child"])
def test_garbage_collection_does_not_look_at_what_is_loaded_and_what_was_garbage_is_gone(module: str) -> None:
    """A whole collection would take the CPU time of ten batches, in one of them. Garbage would stay for ever."""
    ran = subprocess.run([sys.executable, "-c", CODE.format(module)], capture_output=True, text=True, check=True)
    left, gone = ran.stdout.split()
    assert int(left) < 10_000
    assert gone == "True"


def test_the_trainers_process_is_warm_when_it_says_that_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(child, "warm_up", lambda: done.append("warm"))
    monkeypatch.setattr(parcel, "send", lambda *_: done.append("ready"))
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.close()  # so that it ends at once
    with here:
        child.Server(here).run()
    assert done == ["warm", "ready"]
