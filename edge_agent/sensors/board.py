"""All sensors of a board together: facts at join, and one reading."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from edge_agent.sensors import machine, raspberry
from edge_agent.sensors.source import RunCommand, run_command
from edge_agent.sensors.sysfs import Frequencies, Ina3221, Temperatures
from edgebed.wire.reading import MOST_SETTING, BoardReading

SHARE = 0.004
"""Of a core, at most, for one command that is asked again and again. A board has at most two, so that all stays below
1 %."""

T = TypeVar("T")


def cpu_s() -> float:
    """CPU seconds of this thread and of the commands that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


class Seldom(Generic[T]):
    """A source that needs a command: asked only so often that it costs at most SHARE of a core. One that answers
    nothing the first time is never asked again.

    Args:
        now: seconds of a monotonic clock.
        spent_s: CPU seconds used so far.
    """

    def __init__(self, ask: Callable[[], T | None], now: Callable[[], float], spent_s: Callable[[], float]) -> None:
        self._ask, self._now, self._spent_s = ask, now, spent_s
        self._every_s: float | None = None
        self._due: float | None = now()

    def read(self) -> T | None:
        """None where it is not due, or has no answer."""
        start = self._now()
        if self._due is None or start < self._due:
            return None
        before = self._spent_s()
        answer: T | None = self._ask()
        if answer is None and self._every_s is None:
            self._due = None
            return None
        self._every_s = max(self._every_s or 0.0, (self._spent_s() - before) / SHARE)
        self._due = start + self._every_s
        return answer


class Setting:
    """What somebody may change while the board works. `read` gives it as long as it is another one than at the first
    look, in every reading, so that a heartbeat that is lost hides no change."""

    def __init__(self, ask: Callable[[], str | None]) -> None:
        self._ask = ask
        self._first: str | None = None
        self._last: str | None = None

    def read(self) -> str | None:
        """None where it is what it was, or is not known."""
        self._last = self._ask() or self._last
        self._first = self._first or self._last
        return self._last[:MOST_SETTING] if self._last and self._last != self._first else None


class Board:
    """The sensors of one board.

    Args:
        root: of the file tree; another than `/` in tests.
        run: runs the commands.
        now: seconds of a monotonic clock.
        spent_s: CPU seconds used so far by the thread that reads, and by the commands.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        run: RunCommand = run_command,
        now: Callable[[], float] = time.monotonic,
        spent_s: Callable[[], float] = cpu_s,
    ) -> None:
        self._root, self._run, self._now = root, run, now
        self._frequencies, self._temperatures, self._ina = Frequencies(root), Temperatures(root), Ina3221(root)
        self._throttled = Seldom(lambda: raspberry.throttled(run), now, spent_s)
        self._pmic = Seldom(lambda: raspberry.pmic_watts(run), now, spent_s)
        self._governor = Setting(self._frequencies.governor)
        self._power_mode = Setting(Seldom(lambda: machine.power_mode(run), now, spent_s).read)

    def facts(self) -> dict[str, str]:
        """What changes seldom or never, for Presence. What is not known has no entry, but `sensors`, which names what
        is read, always has one."""
        root, run = self._root, self._run
        bits, power = raspberry.throttled(run), self._ina.facts() or raspberry.pmic_facts(run)
        cores, memory = machine.cores(root), machine.memory_mib(root)
        facts = {
            "board": machine.model(root),
            "cores": None if cores is None else str(cores),
            "memory_mib": None if memory is None else str(memory),
            "power_mode": machine.power_mode(run),
            "throttled": None if bits is None else hex(bits),
            "sensors": self._sensors(bits is not None, bool(power)),
        }
        known = {name: text for name, text in facts.items() if text is not None}
        return known | self._frequencies.facts() | self._temperatures.facts() | power | machine.clock(run)

    def _sensors(self, throttling: bool, power: bool) -> str:
        mhz, cap = self._frequencies.read()
        celsius, _ = self._temperatures.read()
        found = {
            "frequency": bool(mhz),
            "cap": cap is not None,
            "temperature": celsius is not None,
            "throttling": throttling,
            "power": power,
        }
        return " ".join(name for name, there in found.items() if there) or "none"

    def read(self) -> BoardReading:
        """One reading. Raises nothing: what cannot be read is None."""
        at_ns = int(self._now() * 1e9)
        mhz, cap = self._frequencies.read()
        celsius, hot = self._temperatures.read()
        watts = self._ina.watts() if self._ina.present else self._pmic.read()
        settings = self._governor.read(), self._power_mode.read()
        return BoardReading(at_ns, mhz, cap, celsius, hot, self._throttled.read(), watts, *settings)
