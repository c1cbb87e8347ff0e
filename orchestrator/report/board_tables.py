"""The report's table of real boards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from orchestrator.records.board_marks import MARKS
from orchestrator.records.summary import DeviceFigures, Summary
from orchestrator.records.timeline.board import clock_words
from orchestrator.records.words.formatting import NONE, known, number

BOARD_COLUMNS = (
    "board",
    "model",
    "kernel",
    "torch",
    "power mode",
    "clock",
    "sensors",
    "hottest",
    "rounds with marks",
    "energy per round",
    "in all rounds",
)
"""Heads of the rows of boards."""


def board_rows(summary: Summary) -> list[list[str]]:
    """What the real boards said of themselves, and what their sensors read over all rounds."""
    return [_board_row(name, facts, summary.devices[name]) for name, facts in summary.boards.items()]


def _board_row(name: str, facts: dict[str, str], device: DeviceFigures) -> list[str]:
    hottest = max((each for each in device.board_celsius if each is not None), default=None)
    marks = [each for each in device.board_marks if each is not None]
    joules = [each for each in device.joules if each is not None]
    torch = " ".join(facts[key] for key in ("torch", "torch_build", "torch_simd") if key in facts)
    return [
        name,
        facts.get("board", NONE),
        facts.get("kernel", NONE),
        torch or NONE,
        facts.get("power_mode", NONE),
        clock_words(facts),
        facts.get("sensors", NONE),
        known(hottest, lambda celsius: f"{celsius:.0f} °C"),
        _marked(marks) if marks else NONE,
        f"{number(median(joules))} J" if joules else NONE,
        f"{number(sum(joules))} J" if joules else NONE,
    ]


def _marked(marks: Sequence[Sequence[str]]) -> str:
    """In how many rounds a board was slowed down or changed, and by what."""
    by = {mark: sum(mark in each for each in marks) for mark in MARKS}
    words = [f"{mark.replace('_', ' ')} {count}" for mark, count in by.items() if count]
    return f"{', '.join(words) or 'none'} of {len(marks)}"
