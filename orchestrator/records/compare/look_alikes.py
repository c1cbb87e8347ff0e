"""How unlike their boards look-alikes were: runs on boards beside runs on devices of this host that are fitted to them.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from orchestrator.records.summary import Summary
from orchestrator.records.words.formatting import fixed, seconds


def kinds(summary: Summary) -> dict[str, dict[str, str]]:
    """What devices of a run are, in words, and their boards by device."""
    return {"boards": summary.real_boards, "look-alikes": summary.look_alikes}


def look_alike_notes(summaries: Sequence[Summary]) -> list[str]:
    """One line for every method and set of boards of which there are runs of both kinds: length of a round on the
    look-alikes ÷ on the boards, medians over the rounds and then over the runs."""
    real, like = _by_boards(summaries, "boards"), _by_boards(summaries, "look-alikes")
    return [_note(*key, median(like[key]), median(real[key])) for key in like if key in real]


def _note(method: str, boards: Sequence[str], like_s: float, real_s: float) -> str:
    return (
        f"{method}: a round on look-alikes of {', '.join(boards)} took {fixed(like_s / real_s, 2)} times as long as on "
        f"the boards themselves ({seconds(like_s)} and {seconds(real_s)}, medians)"
    )


def ran_on(summary: Summary) -> str:
    """Of `kinds` what all devices of a run are; "" where they are others, or of several kinds."""
    devices = summary.profiles.keys()
    return next((kind for kind, boards in kinds(summary).items() if boards and boards.keys() == devices), "")


def _by_boards(summaries: Sequence[Summary], kind: str) -> dict[tuple[str, tuple[str, ...]], list[float]]:
    """Median lengths of rounds by method and boards, of the runs of one kind."""
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for summary in summaries:
        if ran_on(summary) == kind and summary.round_s_median:
            key = (summary.method, tuple(sorted(kinds(summary)[kind].values())))
            found.setdefault(key, []).append(summary.round_s_median)
    return found
