"""One round -> rows of named bars. Pages (`dashboard/static/gantt.js`) and figures for papers draw this one structure.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.records.critical.stragglers import straggler
from orchestrator.records.live.run_state import RunState
from orchestrator.records.run_index import RoundFacts
from orchestrator.records.timeline.timeline import RoundTimeline, Segment
from orchestrator.records.words.formatting import seconds

FINEST = 600
"""A bar shorter than this part of the round is drawn together with its neighbours."""

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
        start = facts.start_ns
        ends = [(s, (s.start_ns - start) / scale, (min(s.end_ns, end_ns) - start) / scale) for s in coarse]
        return [(s.name, round(a, 4), round(b, 4), s.detail) for s, a, b in ends]

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
        "server": drawn(_server(facts)),
        "own": drawn(Segment(phase.name, phase.start_ns, phase.end_ns) for phase in facts.own),
        "straggler": None if slow is None or live else slow.device,
        "choice": choice(facts),
    }


def _server(facts: RoundFacts) -> list[Segment]:
    """Steps of the server halves in the order of time; the detail names up to three of their devices."""
    steps = sorted(facts.steps, key=lambda step: step.start_ns)
    return [Segment("server", s.start_ns, s.end_ns, ", ".join(s.devices[:3])) for s in steps]


def median_round(rounds: Iterable[tuple[float, int]]) -> int | None:
    """Which round of a run that is over is shown, unless another is asked for: the number of that of median length
    (the lower median). None before the first has ended.

    Args:
        rounds: seconds and number of those that ended.
    """
    known = sorted(rounds)
    return known[(len(known) - 1) // 2][1] if known else None


AT_WORK = ("receiving", "working", "server half")
"""What a device does while others may wait for it."""


def waited_for(state: RunState) -> tuple[list[str], int]:
    """Devices at work in the round in progress, once others are done; and since when, on the orchestrator's clock."""
    row = state.current
    facts = None if row is None or state.ended else state.session.rounds.get(row.number)
    if facts is None or not facts.done or facts.finished is not None:
        return [], 0
    names = [name for name in state.devices if state.activity(name) in AT_WORK]
    return names, min(done.at_ns for done in facts.done.values())


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


def joined(segments: Iterable[Segment], finest_ns: int) -> list[Segment]:
    """Neighbours shorter than `finest_ns` become one segment with the name of the longest of them."""
    drawn: list[Segment] = []
    group: list[Segment] = []
    for segment in segments:
        if segment.end_ns - segment.start_ns >= finest_ns:
            drawn += [*_merged(group), segment]
            group = []
            continue
        if group and (
            segment.end_ns - group[0].start_ns > finest_ns or segment.start_ns - group[-1].end_ns > finest_ns
        ):
            drawn += _merged(group)
            group = []
        group.append(segment)
    return _without_seams([*drawn, *_merged(group)])


def _merged(group: list[Segment]) -> list[Segment]:
    if not group:
        return []
    sums: dict[str, int] = {}
    for s in group:
        sums[s.name] = sums.get(s.name, 0) + s.end_ns - s.start_ns
    return [Segment(max(sums, key=lambda name: sums[name]), group[0].start_ns, group[-1].end_ns)]


def _without_seams(segments: list[Segment]) -> list[Segment]:
    """Segments of the same name that touch, as one."""
    result: list[Segment] = []
    for s in segments:
        if result and result[-1].name == s.name and result[-1].detail == s.detail and result[-1].end_ns >= s.start_ns:
            result[-1] = Segment(s.name, result[-1].start_ns, max(s.end_ns, result[-1].end_ns), s.detail)
        else:
            result.append(s)
    return result
