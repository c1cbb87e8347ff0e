"""The agent's life cycle: events in, effects out. Pure.

    idle --TaskArrived--> training --TrainingEnded--> sending --Sent--> idle

A newer task replaces the current one. A repeated task changes nothing. Events of older tasks are ignored.
"""

from __future__ import annotations

from collections import deque

import msgspec

from edgebed.wire.messages import Task


class TaskArrived(msgspec.Struct, frozen=True):
    task: Task


class CancelArrived(msgspec.Struct, frozen=True):
    task: str


class TrainingEnded(msgspec.Struct, frozen=True):
    """The training thread has returned. `why` is empty if it succeeded."""

    task: str
    why: str = ""


class Sent(msgspec.Struct, frozen=True):
    """Update or failure was acknowledged end to end, or refused."""

    task: str


class Broken(msgspec.Struct, frozen=True):
    """An unexpected error occurred while the result of the current task was being sent."""

    why: str


Event = TaskArrived | CancelArrived | TrainingEnded | Sent | Broken


class StartTraining(msgspec.Struct, frozen=True):
    task: Task


class StopTraining(msgspec.Struct, frozen=True):
    """Tell the training thread to stop at the next batch. It answers with TrainingEnded."""

    task: str


class SendUpdate(msgspec.Struct, frozen=True):
    task: str


class SendFailure(msgspec.Struct, frozen=True):
    task: str
    why: str


class Rest(msgspec.Struct, frozen=True):
    """Nothing to do: the device waits for the orchestrator."""


Effect = StartTraining | StopTraining | SendUpdate | SendFailure | Rest


class AgentMachine:
    """The state of the agent: one current task at most, and one that follows it."""

    def __init__(self) -> None:
        self.task = ""  # the current one
        self._training = False
        self._cancelled = self._was_broken = False
        self._next: Task | None = None
        self._known: deque[str] = deque(maxlen=256)  # ids of tasks taken before

    @property
    def next_task(self) -> str:
        """Id of the task that starts when the current one has stopped; empty if there is none."""
        return self._next.id if self._next is not None else ""

    def handle(self, event: Event) -> list[Effect]:
        """What to do about an event, in order."""
        match event:
            case TaskArrived(task):
                return self._arrived(task)
            case CancelArrived(task):
                return self._cancel(task)
            case TrainingEnded(task, why):
                return self._trained(task, why)
            case Sent(task):
                return self._idle() if task == self.task and not self._training else []
            case Broken(why):
                return self._broken(why)

    def _arrived(self, task: Task) -> list[Effect]:
        if task.id in self._known:
            return []
        self._known.append(task.id)
        if self._training:
            self._next = task
            return self._cancel(self.task)
        return self._start(task)

    def _start(self, task: Task) -> list[Effect]:
        self.task, self._training, self._cancelled, self._was_broken = task.id, True, False, False
        return [StartTraining(task)]

    def _cancel(self, task: str) -> list[Effect]:
        if self._next is not None and self._next.id == task:
            self._next = None
            return []
        if task != self.task:
            return []
        if not self._training:
            return self._idle()
        if self._cancelled:
            return []
        self._cancelled = True
        return [StopTraining(task)]

    def _trained(self, task: str, why: str) -> list[Effect]:
        if task != self.task or not self._training:
            return []
        self._training = False
        if self._cancelled:
            return self._idle()
        return [SendFailure(task, why)] if why else [SendUpdate(task)]

    def _broken(self, why: str) -> list[Effect]:
        if not self.task or self._training:
            return []
        # A second error, while the failure was being sent, ends the task.
        again, self._was_broken = self._was_broken, True
        return self._idle() if again else [SendFailure(self.task, why)]

    def _idle(self) -> list[Effect]:
        self.task = ""
        if self._next is not None:
            task, self._next = self._next, None
            return self._start(task)
        return [Rest()]
