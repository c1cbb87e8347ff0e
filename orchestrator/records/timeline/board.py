"""What the sensors of boards say of a round: energy, frequency caps and heat. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

import msgspec

from edgebed.wire.reading import BoardReading
from orchestrator.records.board_marks import MARKS, marks_of
from orchestrator.records.run_index import DeviceFacts, RunFacts
from orchestrator.records.words.formatting import NONE, number, percent, seconds

GAP_NS = 10_000_000_000
"""Between two readings that lie further apart nothing is known."""

COVERED = 0.9
"""Of a round: where less of it lies between readings of the power, its energy is not known."""

SENSORS = "sensors"
"""The host fact that every board has, and no other device."""


class BoardRound(msgspec.Struct, frozen=True, array_like=True):
    """What a board's sensors say of one round. None: not known."""

    joules: float | None = None  # power, linear between readings, over the whole round: waits are part of it
    celsius: float | None = None  # of the hottest sensor at the hottest moment
    # what slowed the board down, or was changed on it, at some moment: of `MARKS`, in their order
    marks: tuple[str, ...] | None = None


class BoardLine(msgspec.Struct):
    """The readings of one board in one session, in the order of the orchestrator's time."""

    at_ns: list[int]
    readings: list[BoardReading]
    power_ns: list[int]
    watts: list[float]
    marks: list[tuple[str, ...] | None]

    def in_round(self, start_ns: int, end_ns: int) -> BoardRound:
        first, last = bisect_left(self.at_ns, start_ns), bisect_right(self.at_ns, end_ns)
        hottest = max((r.celsius for r in self.readings[first:last] if r.celsius is not None), default=None)
        known = [marks for marks in self.marks[first:last] if marks is not None]
        found = {mark for marks in known for mark in marks}
        marks = tuple(mark for mark in MARKS if mark in found) if known else None
        return BoardRound(self._joules(start_ns, end_ns), hottest, marks)

    def _joules(self, start_ns: int, end_ns: int) -> float | None:
        """Watts over time by the trapezoidal rule. What no two readings enclose counts with the mean power."""
        first = max(0, bisect_right(self.power_ns, start_ns) - 1)
        covered, joules = 0.0, 0.0
        for i in range(first, len(self.power_ns) - 1):
            a, b = self.power_ns[i], self.power_ns[i + 1]
            if a >= end_ns:
                break
            begin, end = max(a, start_ns), min(b, end_ns)
            if b - a > GAP_NS or end <= begin:
                continue
            slope = (self.watts[i + 1] - self.watts[i]) / (b - a)
            joules += (self.watts[i] + slope * ((begin + end) / 2 - a)) * (end - begin) / 1e9
            covered += end - begin
        length = end_ns - start_ns
        return joules * length / covered if length > 0 and covered >= COVERED * length else None


def line_of(device: DeviceFacts) -> BoardLine:
    """Readings of an incarnation whose clock was never measured are left out: their times are not known."""
    placed = sorted(
        (
            (device.clocks[incarnation].to_orchestrator(reading.at_ns), reading)
            for incarnation, reading in device.readings
            if incarnation in device.clocks
        ),
        key=lambda pair: pair[0],
    )
    power = [(at, reading.watts) for at, reading in placed if reading.watts is not None]
    return BoardLine(
        [at for at, _ in placed],
        [reading for _, reading in placed],
        [at for at, _ in power],
        [watts for _, watts in power],
        [marks_of(reading) for _, reading in placed],
    )


BOARD_COLUMNS = (
    "board",
    "model",
    "power mode",
    "frequency",
    "temperature",
    "marks",
    "power",
    "energy",
    "clock",
)
"""Heads of `board_row`; energy is that of its last round whose energy is known."""


def board_row(name: str, facts: Mapping[str, str], reading: BoardReading | None, joules: float | None) -> list[str]:
    """What is known of a board now, as people read it. `facts`: what it said when it joined."""
    now = reading or BoardReading(0)
    marks = marks_of(now)
    return [
        name,
        facts.get("board", NONE),
        power_mode(facts, now),
        frequency(now),
        NONE if now.celsius is None else f"{now.celsius:.0f} °C",
        NONE if marks is None else ", ".join(mark.replace("_", " ") for mark in marks) or "none",
        NONE if now.watts is None else f"{number(now.watts)} W",
        NONE if joules is None else f"{number(joules)} J",
        clock_words(facts),
    ]


def power_mode(facts: Mapping[str, str], reading: BoardReading) -> str:
    """Now, and before if it was changed."""
    joined = facts.get("power_mode", NONE)
    return joined if reading.power_mode is None else f"{reading.power_mode} (was {joined})"


def frequency(reading: BoardReading) -> str:
    """Mean of the cores, and the cap where there is one."""
    known = [mhz for mhz in reading.mhz if mhz is not None]
    mean = f"{sum(known) / len(known):.0f} MHz" if known else NONE
    return mean if reading.cap in (None, 1.0) else f"{mean}, at most {percent(reading.cap or 0.0, 0)}"


def clock_words(facts: Mapping[str, str]) -> str:
    """How well the board's clock is kept, as it said when it joined."""
    error = facts.get("clock_error_s")
    return facts.get("clock", NONE) + (f" (± {seconds(float(error))})" if error else "")


def board_facts(run: RunFacts) -> dict[str, dict[str, str]]:
    """What every board said of itself when it joined last; devices that are no boards have no entry."""
    found = {name: device.host for session in run.sessions for name, device in session.devices.items()}
    return {name: host for name, host in found.items() if SENSORS in host}
