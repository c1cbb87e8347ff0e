"""How unlike their boards look-alikes were: runs on boards beside runs on devices of this host that are fitted to them.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from orchestrator.records.formatting import fixed

Summary = dict[str, Any]


def look_alike_notes(summaries: Sequence[Summary]) -> list[str]:
    """One line for every method and set of boards of which there are runs of both kinds: length of a round on the
    look-alikes ÷ on the boards, medians over the rounds and then over the runs."""
    real, like = _by_boards(summaries, "real_boards"), _by_boards(summaries, "look_alikes")
    return [
        f"{method}: a round on look-alikes took {fixed(median(like[key]) / median(real[key]), 2)} times as long as on "
        f"the boards ({', '.join(boards)})"
        for key in like
        for method, boards in [key]
        if key in real
    ]


def _by_boards(summaries: Sequence[Summary], field: str) -> dict[tuple[str, tuple[str, ...]], list[float]]:
    """Median lengths of rounds by method and boards, of the runs all of whose devices are boards, or look-alikes."""
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for summary in summaries:
        boards = summary.get(field) or {}
        if boards and boards.keys() == summary["profiles"].keys() and summary["round_s_median"]:
            key = (summary["method"], tuple(sorted(boards.values())))
            found.setdefault(key, []).append(summary["round_s_median"])
    return found
