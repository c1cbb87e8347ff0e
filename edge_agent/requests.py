"""The batches of a device that serves: one request each, given out when it arrives.

Requests arrive whether the device is free or busy. One that arrives while it is busy is given out late. Its waiting
time counts from its arrival.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from edgebed.datasets.shard import Shard
from edgebed.device.phases import PhaseLog
from edgebed.methods.base import Batch
from edgebed.methods.parts.serving import arrival_times_ns
from edgebed.wire.settings import Arrivals


class Patience:
    """The calls of `training.TaskIO` that are needed here; `wait` and `check` raise when the task has ended. Here
    nothing is waited for and nobody hears."""

    def check(self) -> None:
        """Raise if the task has ended."""

    def progress(self) -> None:
        """Count one more batch."""

    def wait(self, seconds: float) -> None:
        """Return after so many seconds."""

    def hold(self) -> None:
        """Return when what is done so far may be seen by others (`edgebed.pacing`)."""

    def pace(self) -> None:
        """Called after every batch. The software throttle, if there is one, waits here."""


class Requests:
    """Batches of one sample (`device.batches.Batches` and `methods.parts.serving.Incoming`).

    Attributes:
        samples, drawn: as in `Batches`.
        arrived_ns: when the last request given out arrived, nanoseconds of this device's clock.
        waited_s: seconds in which no request was there.
    """

    def __init__(
        self,
        shard: Shard,
        arrivals: Arrivals,
        seed: int,
        phases: PhaseLog,
        io: Patience,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._shard, self._arrivals, self._seed = shard, arrivals, seed
        self._phases, self._io, self._clock_ns = phases, io, clock_ns
        self.samples, self.drawn = shard.samples, list[int]()
        self.arrived_ns, self.waited_s = 0, 0.0

    def now_ns(self) -> int:
        """Nanoseconds of this device's clock."""
        return self._clock_ns()

    def answered_ns(self) -> int:
        """The same, when the answer to the request in hand may be seen by others."""
        self._io.hold()
        return self._clock_ns()

    def __iter__(self) -> Iterator[Batch]:
        start = self._clock_ns()
        due = arrival_times_ns(self._arrivals, self._seed)
        for after, batch in zip(due, self._shard.singles(self._arrivals.count, self._seed), strict=True):
            self._wait_until(start + after)
            self.arrived_ns = start + after
            self.drawn.append(len(batch[1]))
            yield batch
            self._io.progress()
            self._io.pace()

    def _wait_until(self, due_ns: int) -> None:
        self._io.check()
        start = self._clock_ns()
        if start >= due_ns:
            return
        before = self._phases.enter("request_wait")
        while (left := due_ns - self._clock_ns()) > 0:
            self._io.wait(left / 1e9)
        self._io.hold()  # the wait is not work: the request is a unit of its own
        self._phases.enter(before)
        self.waited_s += (self._clock_ns() - start) / 1e9
