"""Pacing: what others can see of a device's work happens no earlier than on a real device of its speed.

A CPU quota stops a device only when its CPU time of the period is used up. Work that fits into the quota is done at the
full speed of the host. With pacing, the agent holds each visible event (an upload, the use of a reply, the update, the
answer to a request) until the wall time since its unit of work began is at least the CPU time of the unit ÷ CPUs. CPU
time that is used during the hold, by the hold itself too, counts in the next unit: a hold that waited for its own CPU
time as well would never end on a slow device.

The CPU time is that of the process with all its threads, so that of transfers, heartbeats and decoding counts in the
unit in which it falls. The agent is the only process of its cgroup, so this is the cgroup's CPU time.

A server with CPUs of its own is paced in the same way: its units are the orders of the trainer's process
(`orchestrator.training.child`), one after the other, and the CPU time is that of the thread that carries them out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LATE_S = 0.1
"""Seconds by which a hold may at least end late (the quota stopped the process, or the host was busy) and the next unit
still counts from when it should have ended. Otherwise such delays would add up. A period of the quota, where that is
longer."""


class Pacer:
    """The unit of work in hand. A unit ends with an event, and the next one begins there.

    Args:
        clock: monotonic seconds.
        cpu: CPU seconds of the process, all threads.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._lock = threading.Lock()
        self._cpus, self._late_s = 0.0, LATE_S
        self._start, self._used = clock(), cpu()

    def set(self, cpus: float, period_s: float = LATE_S) -> None:
        """From now on; 0 CPUs for no pacing. `period_s`: of the quota."""
        with self._lock:
            self._cpus, self._late_s = cpus, max(LATE_S, period_s)

    def begin(self) -> None:
        """A unit begins now; what was before it has no event."""
        with self._lock:
            self._start, self._used = self._clock(), self._cpu()

    def idle_until(self, ready: float) -> None:
        """Nothing was to be done until `ready` (clock seconds), so the unit in hand begins there if it has begun
        before. CPU time since the last event counts in it all the same."""
        with self._lock:
            self._start = max(self._start, ready)

    def hold(self, wait: Callable[[float], None]) -> None:
        """Return when the event at the end of the unit may be seen; the next unit begins.

        Args:
            wait: sleeps at most so many seconds. It may raise.
        """
        cpu = self._cpu()
        due = self._due(cpu)
        held = False
        while (left := due - self._clock()) > 0:
            wait(left)
            held = True
        with self._lock:
            now = self._clock()
            self._start = max(due, now - self._late_s) if held else now
            self._used = cpu

    def _due(self, cpu: float) -> float:
        """When the event may be seen if the unit has used CPU time up to `cpu`."""
        cpus = self._cpus
        return self._start + (cpu - self._used) / cpus if cpus > 0 else self._start
