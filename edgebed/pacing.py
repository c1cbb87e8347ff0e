"""Pacing: what others can see of a device's work happens no earlier than on a device of its speed.

A CPU quota stops a device only when its CPU time of the period is used up. Work that fits into the quota is done at the
full speed of the host. With pacing, the agent holds each visible event (an upload, the use of a reply, the update, the
answer to a request) until a device of so many CPUs would have finished the unit of work that ends with it. What the
work of a unit is depends on the speed that the device is to have:

- that of the host: the CPU time that the process has used in the unit, with all its threads, so that of transfers,
  heartbeats and decoding counts in the unit in which it falls. The agent is the only process of its cgroup, so this is
  the cgroup's CPU time. CPU time that is used during a hold counts in the next unit: a hold that waited for its own CPU
  time as well would never end on a slow device;
- that of a reference: the CPU time that the reference takes for the pieces of the unit (`charge`), whatever they took
  here. An event that is seen after its time is late, and the units after it may make up for it.

A unit ends when the device's CPUs, added up over the time since it began, are its work. So a change of the CPUs in
mid-unit counts from when it was made.

A server with CPUs of its own is paced in the same way: its units are the orders of the trainer's process
(`orchestrator.training.child`), one after the other, and the CPU time is that of the thread that carries them out.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import itemgetter

HOST = "host"
"""The speed of devices whose CPU seconds are those of the host on which they run."""

LATE_S = 0.1
"""Seconds by which a hold may at least end late (the quota stopped the process, or the host was busy) and the next unit
still counts from when it should have ended. Otherwise such delays would add up. A period of the quota, where that is
longer."""


class Earned:
    """CPU seconds that the CPUs of a device give over time, through every change of them."""

    def __init__(self, now: float) -> None:
        self._changes = [(now, 0.0, 0.0)]  # when, given until then, CPUs since

    def set(self, cpus: float, now: float) -> None:
        """The device has so many CPUs from now on (clock seconds)."""
        if cpus != self._changes[-1][2]:
            self._changes.append((now, self.given(now), cpus))

    def given(self, at: float) -> float:
        """CPU seconds given until a moment."""
        since, given, cpus = self._changes[max(0, bisect_right(self._changes, at, key=itemgetter(0)) - 1)]
        return given + max(0.0, at - since) * cpus

    def at(self, given: float) -> float:
        """The moment at which so many CPU seconds are given; infinite while the device has no CPUs."""
        since, before, cpus = self._changes[max(0, bisect_left(self._changes, given, key=itemgetter(1)) - 1)]
        return since + (given - before) / cpus if cpus > 0 else math.inf


class Pacer:
    """The unit of work in hand. A unit ends with an event, and the next one begins there.

    Args:
        clock: monotonic seconds.
        cpu: CPU seconds of the process, all threads.

    Attributes:
        late_s: seconds by which the last event was late, with what events before it were late and was not made up for,
            since `begin`. 0 at the speed of the host.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._lock = threading.Lock()
        self._on = self._by_reference = False
        self._cpus = self._full_cpus = 0.0  # with the share of them that it has, and without
        self._late_s = LATE_S
        self._given, self._since = 0.0, clock()  # CPU seconds that the device's CPUs have given until `_since`
        self._start, self._used, self._charged = 0.0, cpu(), 0.0  # of the unit; its start in CPU seconds given
        self.late_s = self._lost_s = 0.0

    def set(self, cpus: float, period_s: float = LATE_S, *, by_reference: bool = False, share: float = 1.0) -> None:
        """From now on.

        Args:
            cpus: of the device; 0 for no pacing.
            period_s: of the quota.
            by_reference: the work of a unit is what is charged, and not CPU time.
            share: of the CPUs that the device has. With 0 it stands still until the next call.
        """
        with self._lock:
            now = self._clock()
            self._given, self._since = self._given_at(now), now
            self._on, self._by_reference = cpus > 0, by_reference
            self._cpus, self._full_cpus, self._late_s = share * cpus, cpus, max(LATE_S, period_s)

    def begin(self) -> None:
        """A unit begins now; what was before it has no event."""
        with self._lock:
            self._next(self._given_at(self._clock()), self._cpu())
            self.late_s = self._lost_s = 0.0

    def idle_until(self, ready: float) -> None:
        """Nothing was to be done until `ready` (clock seconds), so the unit in hand begins there if it has begun
        before. CPU time since the last event counts in it all the same."""
        with self._lock:
            self._start = max(self._start, self._given_at(ready))

    def charge(self, cpu_s: float) -> None:
        """A piece of the unit was done, which takes the reference so many CPU seconds."""
        with self._lock:
            self._charged += cpu_s

    def hold(self, wait: Callable[[float], None], *, waited: bool = False, used_s: float | None = None) -> float:
        """Return when the event at the end of the unit may be seen; the next unit begins.

        Args:
            wait: sleeps at most so many seconds. It may raise.
            waited: the unit was a wait for others, so the next one begins now.
            used_s: CPU seconds of the process up to which the unit counts, if not all: what a wait ends with takes CPU
                time of its own to arrive, which counts in the next unit.

        Returns:
            Seconds by which the event is late; 0 without pacing.
        """
        cpu, held = self._cpu() if used_s is None else max(self._used, used_s), False
        while (left := self._left_s(cpu)) > 0:
            wait(left)
            held = True
        with self._lock:
            given, due = self._given_at(self._clock()), self._due(cpu)
            cpus = self._cpus or self._full_cpus  # one that stands still is as late as when it stopped
            earliest = given - self._late_s * cpus
            late_s = max(0.0, given - due) / cpus if self._on else 0.0
            if self._by_reference and waited:  # nothing is made up for while the device waits
                self._lost_s = self.late_s
            elif self._by_reference and self._on:
                self._lost_s += max(0.0, earliest - due) / cpus
                self.late_s = self._lost_s + max(0.0, given - max(due, earliest)) / cpus
            if waited or not (held or self._by_reference):
                due = given
            self._next(max(due, earliest), cpu)
        return late_s

    def _left_s(self, cpu: float) -> float:
        """Seconds until the event may be seen if the unit has used CPU time up to `cpu`, but no more than a late hold
        can make up for: the CPUs may change meanwhile."""
        with self._lock:
            left = self._due(cpu) - self._given_at(self._clock())
            if not self._on or left <= 0:
                return 0.0
            return min(left / self._cpus, self._late_s) if self._cpus > 0 else self._late_s

    def _due(self, cpu: float) -> float:
        return self._start + (self._charged if self._by_reference else cpu - self._used)

    def _next(self, start: float, cpu: float) -> None:
        self._start, self._used, self._charged = start, cpu, 0.0

    def _given_at(self, now: float) -> float:
        """CPU seconds that the device's CPUs have given in all until `now`."""
        return self._given + (now - self._since) * self._cpus
