"""The simulated device's account of its time: one phase open at any moment, as an agent's."""

from __future__ import annotations

from collections.abc import Callable

from edgebed.wire.messages import Phase

OWN_WORK = ("decode", "compute", "encode")


class Phases:
    """Named stretches without gap on the virtual clock. `cpus()` is the quota, from which the CPU time of own work and
    the time that a quota would have stopped it are derived."""

    def __init__(self, now_ns: Callable[[], int], cpus: Callable[[], float]) -> None:
        self._now_ns, self._cpus = now_ns, cpus
        self.name, self._task, self._start = "waiting", "", now_ns()
        self._closed: list[Phase] = []

    def enter(self, name: str, task: str | None = None) -> str:
        """Close the open phase and open `name`; returns the name of the closed one."""
        was, task = self.name, self._task if task is None else task
        if (name, task) != (self.name, self._task):
            self._close()
            self.name, self._task = name, task
        return was

    def take(self) -> tuple[Phase, ...]:
        """All phases since the last call, the open one up to now."""
        self._close()
        closed, self._closed = tuple(self._closed), []
        return closed

    def restart(self) -> None:
        """A new agent: whatever was open is forgotten."""
        self._closed.clear()
        self.name, self._task, self._start = "waiting", "", self._now_ns()

    def _close(self) -> None:
        now = self._now_ns()
        if now > self._start:
            length, share = now - self._start, min(1.0, self._cpus())
            busy = int(length * share) if self.name in OWN_WORK else 0
            stopped = length - busy if self.name in OWN_WORK else 0
            self._closed.append(Phase(self.name, self._task, self._start, now, busy, stopped, int(stopped > 0)))
        self._start = now
