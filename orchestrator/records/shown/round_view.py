"""One round -> rows of named bars, as the live page and the report draw them (`dashboard/static/gantt.js`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.records.critical.stragglers import straggler
from orchestrator.records.run_index import RoundFacts
from orchestrator.records.shown.gantt import FINEST, bars, joined, own_segments, server_segments
from orchestrator.records.timeline.timeline import RoundTimeline, Segment
from orchestrator.records.words.formatting import seconds

Bars = list[tuple[str, float, float, str]]
"""Name, from, to, and more about it."""

Named = Callable[[tuple[Segment, ...], str], list[Segment]]
"""Segments of a device as they are to be named."""


def round_view(timeline: RoundTimeline, end_ns: int, live: bool = False, named: Named | None = None) -> dict[str, Any]:
    """A round until `end_ns` (orchestrator's clock), in seconds from its start, divided by the dilation."""
    facts, scale = timeline.facts, 1e9 * timeline.facts.dilation

    def drawn(segments: Iterable[Segment]) -> Bars:
        cut = [s for s in segments if s.start_ns < end_ns]
        coarse = joined(cut, (end_ns - facts.start_ns) // FINEST)
        return [(b.name, round(b.start_s, 4), round(b.end_s, 4), b.detail) for b in bars(coarse, facts, end_ns)]

    devices = {}
    for name, device in timeline.devices.items():
        segments = list(device.segments) if named is None else named(device.segments, name)
        sums = {key: round(ns / scale, 4) for key, ns in _sums(segments, end_ns).items()}
        devices[name] = {"bars": drawn(segments), "sums": sums, **_outcome(facts, name)}
    slow = straggler(timeline)
    return {
        "round": facts.number + 1,
        "live": live,
        "length_s": round((end_ns - facts.start_ns) / scale, 4),
        "devices": devices,
        "server": drawn(server_segments(facts)),
        "own": drawn(own_segments(facts)),
        "straggler": None if slow is None or live else slow.device,
        "choice": choice(facts),
    }


def _outcome(facts: RoundFacts, name: str) -> dict[str, Any]:
    done, out, predicted = facts.done.get(name), facts.out.get(name), facts.started.predicted_s.get(name)
    assignment = facts.started.assignments.get(name)
    return {
        "done_s": None if done is None else round((done.at_ns - facts.start_ns) / 1e9 / facts.dilation, 4),
        "out": "" if out is None or done is not None else out.how,
        "predicted_s": None if predicted is None else predicted / facts.dilation,
        "actual_s": None if done is None else done.seconds / facts.dilation,
        "cut": None if assignment is None else assignment.stages,
    }


def choice(facts: RoundFacts) -> dict[str, Any] | None:
    """Why DTFL chose the cuts of a round: what its scheduler predicted per device and tier, from the notes of its plan.
    None for a method that notes nothing of the kind."""
    notes: Any = facts.started.notes
    estimates, chosen, most = notes.get("estimates_s"), notes.get("tiers"), notes.get("t_max_s")
    if not isinstance(estimates, dict) or not isinstance(chosen, dict) or not isinstance(most, float | int):
        return None
    tiers = sorted({tier for of_device in estimates.values() for tier in of_device}, key=int)

    def shown(device: str, tier: str) -> str:
        value = estimates[device].get(tier)
        if value is None:
            return "–"
        return ("▸ " if int(tier) == chosen.get(device) else "") + seconds(value / facts.dilation)

    return {
        "about": f"Predicted seconds of the round per tier. T_max = {seconds(most / facts.dilation)} is the best time "
        "of the slowest device; every device gets the tier with the most stages on it that is not above T_max (▸).",
        "columns": [["device"], *([f"tier {tier}", "num"] for tier in tiers)],
        "rows": [[device, *(shown(device, tier) for tier in tiers)] for device in estimates],
    }


def _sums(segments: Iterable[Segment], end_ns: int) -> dict[str, int]:
    sums: dict[str, int] = {}
    for s in segments:
        length = min(s.end_ns, end_ns) - s.start_ns
        if length > 0:
            sums[s.name] = sums.get(s.name, 0) + length
    return sums
