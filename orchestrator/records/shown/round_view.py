"""One round -> a figure of rows (`orchestrator.report.charts`), which pages and figures for papers draw alike. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from edgebed.errors import counted
from orchestrator.records.critical.stragglers import straggler
from orchestrator.records.live.run_state import RunState
from orchestrator.records.run_index import RoundFacts
from orchestrator.records.timeline.timeline import DeviceTimeline, RoundTimeline, Segment
from orchestrator.records.words.drawing import legend, phases
from orchestrator.records.words.formatting import NONE, known, seconds
from orchestrator.records.words.palette import ordered
from orchestrator.records.words.vocabulary import phase

FINEST = 600
"""A bar shorter than this part of the round is drawn together with its neighbours."""

Bars = list[tuple[str, float, float, str]]
"""Name, from, to, and more about it."""

Named = Callable[[tuple[Segment, ...], str], list[Segment]]
"""Segments of a device as they are to be named."""


MANY = 15
"""Of more devices, those that were done last stand first."""


def round_view(timeline: RoundTimeline, end_ns: int, live: bool = False, named: Named | None = None) -> dict[str, Any]:
    """A round until `end_ns` (orchestrator's clock), in seconds from its start, divided by the dilation: a row per
    device, then the server halves and the orchestrator."""
    facts, scale = timeline.facts, 1e9 * timeline.facts.dilation

    def drawn(segments: Iterable[Segment]) -> Bars:
        cut = [s for s in segments if s.start_ns < end_ns]
        coarse = joined(cut, (end_ns - facts.start_ns) // FINEST)
        start = facts.start_ns
        ends = [(s, (s.start_ns - start) / scale, (min(s.end_ns, end_ns) - start) / scale) for s in coarse]
        return [(s.name, round(a, 4), round(b, 4), s.detail) for s, a, b in ends]

    slow, sums = None if live else straggler(timeline), {}
    devices = []
    for name, device in _in_order(timeline, live):
        segments = list(device.segments) if named is None else named(device.segments, name)
        sums[name] = {key: ns / scale for key, ns in _sums(segments, end_ns).items()}
        more = {"slow": slow is not None and slow.device == name, **_outcome(facts, name)}
        devices.append({"label": name, "pick": name, "bars": drawn(segments), **more})
    own = drawn(Segment(phase.name, phase.start_ns, phase.end_ns) for phase in facts.own)
    rows = [
        *devices,
        *(
            {"label": label, "own": True, "bars": bars}
            for label, bars in (("server halves", drawn(_server(facts))), ("orchestrator", own))
        ),
    ]
    length_s = round((end_ns - facts.start_ns) / scale, 4)
    who = f" The straggler is {slow.device}." if slow is not None else ""
    return {
        "round": facts.number + 1,
        "live": live,
        "rows": rows,
        "to": max(length_s, *(row["line"] or 0.0 for row in devices)) if devices else length_s,
        "now": length_s if live else None,
        "timed": True,
        "format": "tick",
        "legend": legend(phases({bar[0] for row in rows for bar in row["bars"]}))
        + [{"name": "predicted", "cls": "predicted-key"}] * any(row["line"] for row in devices),
        "summary": f"{counted(len(devices), 'device')} over {seconds(length_s)}.{who}",
        **_table(facts, sums),
        "choice": choice(facts),
    }


def _in_order(timeline: RoundTimeline, live: bool) -> list[tuple[str, DeviceTimeline]]:
    """The devices; of many in a round that is over, the last to be done first."""
    done = timeline.facts.done
    if live or len(timeline.devices) <= MANY:
        return list(timeline.devices.items())
    return sorted(timeline.devices.items(), key=lambda item: -(done[item[0]].at_ns if item[0] in done else 0))


def _server(facts: RoundFacts) -> list[Segment]:
    """Steps of the server halves in the order of time; the detail names up to three of their devices."""
    steps = sorted(facts.steps, key=lambda step: step.start_ns)
    return [Segment("server", s.start_ns, s.end_ns, ", ".join(s.devices[:3])) for s in steps]


def median_round(rounds: Iterable[tuple[float, int]]) -> int | None:
    """Which round of a run that is over is shown, unless another is asked for: the number of that of median length (the
    lower median). None before the first has ended. `rounds`: seconds and number of those that ended."""
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
    """How a device was left out, and the end that was predicted for it."""
    out, predicted = facts.out.get(name), facts.started.predicted_s.get(name)
    line = None if predicted is None else predicted / facts.dilation
    return {"note": "" if out is None or name in facts.done else out.how, "line": line}


def _table(facts: RoundFacts, sums: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Seconds of each device by name."""
    names = ordered({name for of_device in sums.values() for name in of_device})

    def cells(device: str, own: dict[str, float]) -> list[str]:
        done, out, predicted = facts.done.get(device), facts.out.get(device), facts.started.predicted_s.get(device)
        took = None if done is None else done.seconds / facts.dilation
        assignment = facts.started.assignments.get(device)
        return [
            device,
            out.how if out is not None and done is None else known(took, seconds),
            known(predicted, lambda value: seconds(value / facts.dilation)),
            NONE if assignment is None else str(assignment.stages),
            *(seconds(own[name]) if own.get(name) else "·" for name in names),
        ]

    heads = [["device"], ["done after", "num"], ["predicted", "num"], ["cut", "num"]]
    return {
        "columns": [*heads, *([phase(name), "num"] for name in names)],
        "cells": [cells(device, own) for device, own in sums.items()],
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
