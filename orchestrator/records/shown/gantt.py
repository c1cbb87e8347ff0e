"""Rows of a Gantt chart from the timeline of a round. Plotly, matplotlib and the live page draw them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from orchestrator.records.run_index import FOREVER, RoundFacts
from orchestrator.records.timeline.timeline import RoundTimeline, Segment

FINEST = 600
"""A bar shorter than this part of the round is drawn together with its neighbours."""


class Bar(msgspec.Struct, frozen=True, gc=False):
    """A named part of a row. Seconds since the start of the round, divided by the dilation."""

    name: str
    start_s: float
    length_s: float
    detail: str = ""

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


class GanttRow(msgspec.Struct, frozen=True):
    """One device, or one part of the orchestrator, in one round."""

    label: str
    bars: list[Bar]


def device_rows(timeline: RoundTimeline) -> list[GanttRow]:
    """A row per device with every segment of its timeline."""
    facts = timeline.facts
    return [GanttRow(name, list(bars(device.segments, facts))) for name, device in timeline.devices.items()]


def orchestrator_rows(timeline: RoundTimeline) -> list[GanttRow]:
    """A row of the server halves and one of the orchestrator, where they did anything. Steps that are too short to be
    drawn are drawn together."""
    facts = timeline.facts
    finest_ns = (facts.end_ns - facts.start_ns) // FINEST
    rows = (("server halves", joined(server_segments(facts), finest_ns)), ("orchestrator", own_segments(facts)))
    return [GanttRow(label, list(bars(segments, facts, facts.end_ns))) for label, segments in rows if segments]


def length_s(facts: RoundFacts) -> float:
    """Length of the chart: to the end of the round's window."""
    return (facts.end_ns - facts.start_ns) / 1e9 / facts.dilation


def bars(segments: Iterable[Segment], facts: RoundFacts, end_ns: int = FOREVER) -> Iterator[Bar]:
    """Segments of a round as bars, cut at `end_ns` (orchestrator's clock)."""
    start, dilation = facts.start_ns, facts.dilation
    for s in segments:
        if s.start_ns < end_ns:
            length = min(s.end_ns, end_ns) - s.start_ns
            yield Bar(s.name, (s.start_ns - start) / 1e9 / dilation, length / 1e9 / dilation, s.detail)


def server_segments(facts: RoundFacts) -> list[Segment]:
    """Steps of the server halves in the order of time; the detail names up to three of their devices."""
    steps = sorted(facts.steps, key=lambda step: step.start_ns)
    return [Segment("server", s.start_ns, s.end_ns, ", ".join(s.devices[:3])) for s in steps]


def own_segments(facts: RoundFacts) -> list[Segment]:
    """What the orchestrator did in the round."""
    return [Segment(phase.name, phase.start_ns, phase.end_ns) for phase in facts.own]


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
