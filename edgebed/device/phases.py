"""The phases of a device: exactly one is open at any moment, so every nanosecond belongs to a named phase. Pure.

The caller gives the clock. Phases are numbered. The orchestrator acknowledges them by number, and they are sent again
until then, so that a lost message loses no time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from edgebed.wire.piece_times import Phase

OWN_WORK = ("decode", "compute", "encode")
"""Phases in which the device itself computes. In the others it waits."""

MOST_PER_STATUS = 400
MOST_BYTES = 56_000
"""Phases in one message, and bytes of them, about. Above 64 KiB a Status would be refused."""

Usage = tuple[int, int, int]
"""What a phase used: CPU nanoseconds, nanoseconds for which the quota stopped the device, and how often it did."""


class PhaseLog:
    """The phases of one device. Methods may be called from any thread.

    Args:
        clock_ns: nanoseconds that never run backwards.
        usage: called with name and length in nanoseconds of the phase that is being closed. Returns what it used.
    """

    def __init__(
        self, clock_ns: Callable[[], int], usage: Callable[[str, int], Usage] = lambda name, length_ns: (0, 0, 0)
    ) -> None:
        self._clock_ns, self._usage = clock_ns, usage
        self._lock = threading.Lock()
        self._name, self._task = "waiting", ""
        self._start = clock_ns()
        self._closed: deque[Phase] = deque()
        self._first = 0

    @property
    def open(self) -> tuple[str, str, int]:
        """The open phase: name, task, and its start in nanoseconds."""
        return self._name, self._task, self._start

    def reopen(self, name: str, task: str, start_ns: int) -> None:
        """Take an open phase back from `open`; nothing is closed."""
        self._name, self._task, self._start = name, task, start_ns

    @property
    def name(self) -> str:
        """Name of the open phase."""
        return self._name

    def doing(self, name: str, task: str) -> bool:
        """Whether this phase of this task is open."""
        with self._lock:
            return (self._name, self._task) == (name, task)

    def enter(self, name: str, task: str | None = None) -> str:
        """Close the open phase and open `name`, by default of the same task. Returns the name of the closed phase.
        Nothing changes if this phase is open already."""
        with self._lock:
            was = self._name
            task = self._task if task is None else task
            if (name, task) != (self._name, self._task):
                self._close()
                self._name, self._task = name, task
            return was

    def split(self) -> None:
        """Close the open phase and open another one of the same name, so that a long phase is reported in parts."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        now = self._clock_ns()
        cpu_ns, throttled_ns, throttled = self._usage(self._name, now - self._start)
        self._closed.append(Phase(self._name, self._task, self._start, now, cpu_ns, throttled_ns, throttled))
        self._start = now

    def pending(self, most: int | None = MOST_PER_STATUS) -> tuple[int, tuple[Phase, ...]]:
        """Number of the first phase that is not acknowledged, and at most `most` phases from there on."""
        with self._lock:
            if most is not None and self._closed:
                most = min(most, MOST_BYTES // (80 + len(self._closed[0].task)))
            return self._first, tuple(self._closed)[:most]

    def seen(self, upto: int) -> None:
        """The orchestrator has recorded all phases with numbers below `upto`."""
        with self._lock:
            while self._closed and self._first < upto:
                self._closed.popleft()
                self._first += 1

    def take(self) -> tuple[Phase, ...]:
        """Close the open phase, return all phases that are not acknowledged and count them as acknowledged. Phases of
        no length are left out."""
        self.split()
        first, phases = self.pending(None)
        self.seen(first + len(phases))
        return tuple(phase for phase in phases if phase.end_ns > phase.start_ns)
