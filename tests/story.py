"""What happened to devices in two runs of the same scenario, side by side: real and simulated. Pure.

A story has a line for every step of the scenario (without the rates of a trace), every device that left, came back or
was left out of a round, and the devices that every round merged. Two lines agree if they say the same. Times are on the
run's axis: reported seconds of its rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orchestrator.records import types as t
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState


class Line(msgspec.Struct, frozen=True):
    at_s: float
    text: str


class Beside(msgspec.Struct, frozen=True):
    """A line that both stories have, or one of them. Seconds are None in a story that lacks it."""

    text: str
    real_s: float | None
    simulated_s: float | None

    @property
    def apart_s(self) -> float | None:
        """Simulated − real; None where only one story has the line."""
        return None if self.real_s is None or self.simulated_s is None else self.simulated_s - self.real_s


def story(records: Sequence[t.Record]) -> list[Line]:
    """The lines of a run, in the order of time."""
    state = RunState()
    reduce(state, enumerate(records))
    told = [(record, text) for record in records if (text := _told(record)) is not None]
    lines = [Line(state.axis(_at_ns(record)), text) for record, text in told]
    return sorted(lines, key=lambda line: line.at_s)


def _told(record: t.Record) -> str | None:
    """What the story says of a record; None: nothing. Numbers that differ from run to run are left out."""
    match record:
        case t.ScenarioStep(kind="rate"):
            return None
        case t.ScenarioStep():
            return f"{record.device}: {record.asked}{' (failed)' if record.error else ''}"
        case t.DeviceLeft():
            return f"{record.device} is away"
        case t.DeviceJoined(again=True):
            return f"{record.device} is back"
        case t.DeviceOut():
            return f"{record.device} is left out of round {record.round + 1} ({record.how})"
        case t.RoundFinished():
            return f"round {record.round + 1} merges {', '.join(sorted(record.merged)) or 'nothing'}"
    return None


def _at_ns(record: t.Record) -> int:
    at_ns = getattr(record, "at_ns", 0)
    assert isinstance(at_ns, int)
    return at_ns


def side_by_side(real: Sequence[Line], simulated: Sequence[Line]) -> list[Beside]:
    """All lines of both, in the order of time. The first of several equal lines is paired with the first, and so on."""
    waiting: dict[str, list[float]] = {}
    for line in simulated:
        waiting.setdefault(line.text, []).append(line.at_s)
    found = [
        Beside(line.text, line.at_s, waiting[line.text].pop(0) if waiting.get(line.text) else None) for line in real
    ]
    found += [Beside(text, None, at_s) for text, times in waiting.items() for at_s in times]
    return sorted(found, key=lambda each: each.real_s if each.real_s is not None else each.simulated_s or 0.0)


def agreement(lines: Sequence[Beside]) -> float:
    """The share of all lines of both stories that the other one has too."""
    both = sum(line.apart_s is not None for line in lines)
    return 2 * both / (len(lines) + both) if lines else 1.0
