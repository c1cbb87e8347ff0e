"""The state machine of one round: which devices work, which are out and why, and when the round ends. Pure.

A device goes  sending -> working -> updated -> done,  and from each of these it may go out. The round ends when no
device is left to wait for, when enough devices are done (`Plan.enough`), or when the deadline has passed and the quorum
is done. A device is alive as long as it makes progress in bytes, batches or CPU time, however slow it is. After its
update has arrived the device is not needed any more, so its loss changes nothing.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from edgebed.errors import counted

MOST_BEHIND, LEAST_LIVENESS = 100, 10
"""A device is waited for at most so many times as long as half of the devices took, and at least so many times
`liveness_s`. Progress is what a device says of itself; without this bound one that only says so would hold every round
up to the ceiling."""


class TaskState(enum.Enum):
    SENDING = "sending"  # the task is on its way
    WORKING = "working"
    UPDATED = "updated"  # the update has arrived and is accepted; the server half still trains
    DONE = "done"
    OUT = "out"


AT_WORK = (TaskState.SENDING, TaskState.WORKING)
OPEN = (*AT_WORK, TaskState.UPDATED)


class OfDevice(msgspec.Struct, frozen=True):
    device: str


class Delivered(OfDevice, frozen=True):
    """The device has its task."""


class Progressed(OfDevice, frozen=True):
    """The device, or the server half that it waits for, has made progress."""


class Held(OfDevice, frozen=True):
    """Uploads of the device wait for its server half (`held`), so the device is not what delays the round."""

    held: bool


class Updated(OfDevice, frozen=True):
    """The device's update has arrived and is accepted."""


class Completed(OfDevice, frozen=True):
    """The device's server half has finished too."""


class Dropped(OfDevice, frozen=True):
    """The device's work cannot be used. `how`: lost, failed, refused, diverged, cancelled."""

    how: str
    why: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


RoundEvent = Delivered | Progressed | Held | Updated | Completed | Dropped | Tick


class Leave(OfDevice, frozen=True):
    """Record that the device is out, and tell it to stop. `limit_s`: where a time limit of the round put it out, that
    limit in seconds from the start of the round."""

    how: str
    why: str
    limit_s: float | None = None


class Finish(msgspec.Struct, frozen=True):
    """The round is over. `merged`: in the order of names. `why`: all done | enough | deadline | budget | void."""

    merged: tuple[str, ...]
    why: str


Effect = Leave | Finish


class RoundMachine:
    """One round.

    Args:
        devices: those that take part.
        now: seconds on any monotonic clock, as in `handle`.
        deadline_s: after it the round ends as soon as the quorum is done. None: wait for all.
        quorum: with fewer merged devices the round is void.
        liveness_s: a device without progress for so long is lost.
        ceiling_s: devices that still work after it are out, whatever the quorum, so that a device that makes slow
            progress without end cannot delay the round without end. Devices that wait for their server half get the
            same time once more. None: no such limit.
        enough: the round ends when so many devices, and the quorum, are done. None: when all are.
        ends: when the run's budget of seconds is spent, on the clock of `now`: a round that is not over ends unmerged.
    """

    def __init__(
        self,
        devices: Iterable[str],
        now: float,
        *,
        deadline_s: float | None,
        quorum: int,
        liveness_s: float,
        enough: int | None = None,
        ceiling_s: float | None = None,
        ends: float = math.inf,
    ) -> None:
        self.states = dict.fromkeys(sorted(devices), TaskState.SENDING)
        self._count = Counter(self.states.values())  # kept, so that an event costs the same with many devices
        self._progress = dict.fromkeys(self.states, now)  # of those at work, the one longest without progress first
        self._deadline = None if deadline_s is None else now + deadline_s
        self._deadline_s = deadline_s
        self._start, self._ends = now, ends
        self._ceiling_s = self._limit_s = math.inf if ceiling_s is None else ceiling_s
        self._ceiling = now + self._ceiling_s  # the one in force, `_limit_s` after the start
        self._set_by = "training.round_ceiling_s"
        self._held: set[str] = set()
        self._quorum, self._liveness_s = quorum, liveness_s
        self._enough = len(self.states) if enough is None else max(quorum, enough)
        self.finished = self._cut = False

    def handle(self, event: RoundEvent, now: float) -> list[Effect]:
        if self.finished:
            return []
        effects: list[Effect] = []
        match event:
            case Delivered(device):
                self._move(device, (TaskState.SENDING,), TaskState.WORKING, now)
            case Progressed(device):
                self._move(device, (), TaskState.WORKING, now)
            case Held(device, held):
                (self._held.add if held else self._held.discard)(device)
            case Updated(device):
                self._move(device, (TaskState.SENDING, TaskState.WORKING), TaskState.UPDATED, now)
                self._bound_the_rest(now)
            case Completed(device):
                self._move(device, (TaskState.UPDATED,), TaskState.DONE, now)
            case Dropped(device, how, why):
                effects += self._leave(device, how, why)
            case Tick():
                effects += self._silent(now)
        effects += self._too_long(now)
        effects += self._maybe_finish(now)
        return effects + self._end_of_run(now)

    def wakeup(self, now: float) -> float | None:
        """When the next Tick is due, on the clock of `now`; None when only events can change anything."""
        if self.finished:
            return None
        times = [since + self._liveness_s for since in itertools.islice(self._progress.values(), 1)]
        if self._deadline is not None and now < self._deadline:
            times.append(self._deadline)  # after it, only a device that gets done can end the round
        if now < self._ceiling < math.inf:
            times.append(self._ceiling)
        if self._ends < math.inf:
            times.append(self._ends)
        return min(times, default=None)

    def done(self) -> tuple[str, ...]:
        return tuple(device for device, state in self.states.items() if state is TaskState.DONE)

    def _move(self, device: str, allowed: tuple[TaskState, ...], to: TaskState, now: float) -> None:
        """Events that are repeated, late or of other devices change nothing."""
        if self.states.get(device) in allowed:
            self._enter(device, to)
        if self._progress.pop(device, None) is not None:
            self._progress[device] = now

    def _enter(self, device: str, state: TaskState) -> None:
        self._count[self.states[device]] -= 1
        self._count[state] += 1
        self.states[device] = state
        if state not in AT_WORK:
            self._progress.pop(device, None)

    def _leave(self, device: str, how: str, why: str, limit_s: float | None = None) -> list[Effect]:
        if self.states.get(device) not in (AT_WORK if how == "lost" else OPEN):
            return []
        self._enter(device, TaskState.OUT)
        return [Leave(device, how, why, limit_s)]

    def _silent(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for device in [each for each in self.states if each in self._progress]:
            since = self._progress[device]
            if now >= since + self._liveness_s:  # as `wakeup`: a difference may be rounded otherwise
                why = f"no progress for {now - since:.0f} s while {self.states[device].value}"
                effects += self._leave(device, "lost", why)
        return effects

    def _too_long(self, now: float) -> list[Effect]:
        """At the ceiling devices that still work are out. The server still finishes updates that have arrived."""
        if now < self._ceiling:
            return []
        working = [device for device, state in self.states.items() if state in AT_WORK]
        to_blame = [device for device in working if device not in self._held] or working
        self._cut = self._cut or bool(working)
        limit_s = self._limit_s
        reached = "reached" if limit_s == self._ceiling_s else f"reached again, {limit_s:g} s after its start"
        why = f"not done when the round's ceiling of {self._ceiling_s:g} s was {reached} ({self._set_by})"
        self._ceiling = now + self._ceiling_s if len(to_blame) < len(working) else math.inf
        self._limit_s = now - self._start + self._ceiling_s
        return [e for device in to_blame for e in self._leave(device, "late", why, limit_s)]

    def _bound_the_rest(self, now: float) -> None:
        """Once half of the devices have given their updates, what they took bounds how long the others are waited for:
        the ceiling comes down."""
        here = self._count[TaskState.UPDATED] + self._count[TaskState.DONE]
        took = now - self._start
        limit_s = max(MOST_BEHIND * took, LEAST_LIVENESS * self._liveness_s, self._deadline_s or 0.0)
        if len(self.states) > 1 and 2 * here >= len(self.states) and limit_s < self._ceiling_s < math.inf:
            self._ceiling_s = self._limit_s = limit_s
            self._ceiling = self._start + limit_s
            self._set_by = f"half of its devices took {took:.3g} s"

    def _release(self) -> list[Effect]:
        """Past the deadline: when the updates of a quorum have arrived, devices that still work are out. Otherwise the
        server half of a group would wait for them."""
        here = [device for device, state in self.states.items() if state in (TaskState.UPDATED, TaskState.DONE)]
        working = [device for device, state in self.states.items() if state in AT_WORK]
        self._cut = self._cut or (len(here) >= self._quorum and bool(working))
        return [e for device in working if self._cut for e in self._late(device)]

    def _late(self, device: str) -> list[Effect]:
        """The device was not done at the deadline."""
        return self._leave(device, "late", f"not done at the deadline of {self._deadline_s or 0:g} s", self._deadline_s)

    def _maybe_finish(self, now: float) -> list[Effect]:
        count = self._count[TaskState.DONE]
        overdue = self._deadline is not None and now >= self._deadline
        enough = count >= self._enough
        open_ones = any(self._count[state] for state in OPEN)
        if open_ones and not enough and not (overdue and count >= self._quorum):
            return self._release() if overdue else []
        waiting, done = [device for device, state in self.states.items() if state in OPEN], self.done()
        effects: list[Effect] = []
        for device in waiting:
            said = f"{counted(count, 'other')} {'was' if count == 1 else 'were'} enough"
            effects += self._leave(device, "late", said) if enough else self._late(device)
        self.finished = True
        if count < self._quorum:
            return [*effects, Finish((), "void")]
        why = "deadline" if self._cut else "all done" if not waiting else "enough" if enough else "deadline"
        return [*effects, Finish(done, why)]

    def _end_of_run(self, now: float) -> list[Effect]:
        """At the end of the run's budget, devices that are not done are out, and nothing of the round is merged."""
        if self.finished or now < self._ends:
            return []
        self.finished, limit_s = True, max(0.0, self._ends - self._start)
        waiting = [device for device, state in self.states.items() if state in OPEN]
        why = "not done when the run's seconds were spent (training.budget_s)"
        return [*(e for device in waiting for e in self._leave(device, "late", why, limit_s)), Finish((), "budget")]
