"""The device's own account of its time: one open phase at any moment, so that no second is without a name. Pure.

Clocks are given by the caller. Phases are numbered; the orchestrator acknowledges them by number, and until then they
are repeated, so a lost message loses no time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from edgebed.wire.messages import Phase

MOST_PER_STATUS = 400
"""Phases sent at once; a Status stays below some 20 KB."""


class PhaseLog:
    """Called from the I/O thread and from the training thread.

    Args:
        clock_ns: monotonic nanoseconds.
        cpu_ns: CPU nanoseconds of the process.
        throttled: nanoseconds and number of periods in which the quota stopped the process.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int],
        cpu_ns: Callable[[], int],
        throttled: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._clock_ns, self._cpu_ns, self._throttled = clock_ns, cpu_ns, throttled
        self._lock = threading.Lock()
        self._name, self._task = "waiting", ""
        self._start, self._cpu, self._stopped = clock_ns(), cpu_ns(), throttled()
        self._closed: deque[Phase] = deque()
        self._first = 0
        self.count = 0

    @property
    def name(self) -> str:
        return self._name

    def doing(self, name: str, task: str) -> bool:
        with self._lock:
            return (self._name, self._task) == (name, task)

    def enter(self, name: str, task: str | None = None) -> str:
        """Close the open phase and open `name`; returns the name of the closed one. Same name and task: no change."""
        with self._lock:
            was = self._name
            task = self._task if task is None else task
            if (name, task) != (self._name, self._task):
                self._close()
                self._name, self._task = name, task
            return was

    def split(self) -> None:
        """Close the open phase and go on in one of the same name, so that a long phase is reported while it lasts."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        now, cpu, stopped = self._clock_ns(), self._cpu_ns(), self._throttled()
        for_ns, times = stopped[0] - self._stopped[0], stopped[1] - self._stopped[1]
        self._closed.append(Phase(self._name, self._task, self._start, now, cpu - self._cpu, for_ns, times))
        self._start, self._cpu, self._stopped = now, cpu, stopped
        self.count += 1

    def pending(self) -> tuple[int, tuple[Phase, ...]]:
        """Running number of the first phase not acknowledged, and phases from there on."""
        with self._lock:
            return self._first, tuple(self._closed)[:MOST_PER_STATUS]

    def seen(self, upto: int) -> None:
        """The orchestrator has recorded all phases before running number `upto`."""
        with self._lock:
            while self._closed and self._first < upto:
                self._closed.popleft()
                self._first += 1
