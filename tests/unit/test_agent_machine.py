"""The agent's life cycle: one task at a time, once, the newest wins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.machine import (
    AgentMachine,
    CancelArrived,
    Event,
    Rest,
    SendFailure,
    SendUpdate,
    Sent,
    StartTraining,
    StopTraining,
    TaskArrived,
    TrainingEnded,
)
from edgebed.wire.messages import Assignment, Task


def task(name: str) -> Task:
    work = Assignment("d", {"name": "m"}, classes=2, input_shape=(1,), stages=1, objective="output")
    return Task(name, "run", 0, work)


def test_a_task_is_trained_and_sent_once() -> None:
    m = AgentMachine()
    assert m.handle(TaskArrived(task("t"))) == [StartTraining(task("t"))]
    assert m.handle(TaskArrived(task("t"))) == []
    assert m.handle(TrainingEnded("t")) == [SendUpdate("t")]
    assert m.handle(Sent("t")) == [Rest()]
    assert m.handle(TaskArrived(task("t"))) == []


def test_a_failed_task_is_reported_with_its_cause() -> None:
    m = AgentMachine()
    m.handle(TaskArrived(task("t")))
    assert m.handle(TrainingEnded("t", "out of memory")) == [SendFailure("t", "out of memory")]


def test_a_newer_task_replaces_the_one_in_hand() -> None:
    m = AgentMachine()
    m.handle(TaskArrived(task("old")))
    assert m.handle(TaskArrived(task("new"))) == [StopTraining("old")]
    assert m.handle(TrainingEnded("old")) == [StartTraining(task("new"))]


def test_a_cancelled_task_sends_nothing() -> None:
    m = AgentMachine()
    m.handle(TaskArrived(task("t")))
    assert m.handle(CancelArrived("t")) == [StopTraining("t")]
    assert m.handle(CancelArrived("t")) == []
    assert m.handle(TrainingEnded("t")) == [Rest()]


def test_cancelling_a_task_that_waits_forgets_it() -> None:
    m = AgentMachine()
    m.handle(TaskArrived(task("old")))
    m.handle(TaskArrived(task("new")))
    assert m.handle(CancelArrived("new")) == []
    assert m.handle(TrainingEnded("old")) == [Rest()]


names = st.sampled_from(["a", "b", "c"])
events = st.one_of(
    names.map(task).map(TaskArrived), names.map(CancelArrived), names.map(TrainingEnded), names.map(Sent)
)


@given(st.lists(events, max_size=40))
def test_never_two_trainings_at_once_and_no_task_twice(steps: list[Event]) -> None:
    m, running, started = AgentMachine(), None, []
    for event in steps:
        if isinstance(event, TrainingEnded):
            if event.task != running:
                continue  # the training thread speaks only of what it ran
            running = None
        for effect in m.handle(event):
            if isinstance(effect, StartTraining):
                assert running is None
                running = effect.task.id
                started.append(running)
    assert len(started) == len(set(started))
