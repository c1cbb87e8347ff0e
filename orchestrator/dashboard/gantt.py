"""The records of one round -> rows of named bars for the page. Pure.

The names are those of `orchestrator.records.timeline.timeline`. In a round that still goes on, what a device has not
reported yet is named by what the orchestrator knows: its task is on the way (`download`), it works (`working`), it is
done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.records import types as t
from orchestrator.records.live.run_state import RoundRow
from orchestrator.records.run_index import FOREVER, RoundFacts, RunFacts, Session, sort
from orchestrator.records.shown.round_view import round_view
from orchestrator.records.timeline.timeline import Segment, timelines


def gantt(records: Iterable[t.Record], session: Session, row: RoundRow) -> dict[str, Any] | None:
    """The Gantt of a round from records that hold it; None where they do not. Seconds from its start, divided by the
    dilation."""
    part = _session(records, session)
    if row.number not in part.rounds:
        return None
    facts = part.rounds[row.number]
    live = facts.finished is None and session.finished is None
    (timeline,) = timelines(RunFacts([part]), {row.number})
    end_ns = facts.end_ns if live or facts.finished is None else _last_ns(facts)
    return round_view(timeline, end_ns, live, (lambda s, name: _known(s, facts, name)) if live else None)


def _session(records: Iterable[t.Record], whole: Session) -> Session:
    """A session of these records alone, with who was there and the clocks of the whole one."""
    mine: list[t.Record] = []
    for record in records:
        if isinstance(record, t.RunStarted):
            if mine:
                break
            continue
        mine.append(record)
    (part,) = sort([whole.started, *mine]).sessions
    for name, device in part.devices.items():
        device.presence = whole.device(name).presence
        device.clocks = whole.device(name).clocks
    return part


def _last_ns(facts: RoundFacts) -> int:
    """End of what belongs to the round: its evaluation and checkpoint, not the wait for the next."""
    assert facts.finished is not None
    return max(facts.finished.at_ns, *(phase.end_ns for phase in facts.own), facts.start_ns)


def _known(segments: tuple[Segment, ...], facts: RoundFacts, name: str) -> list[Segment]:
    """Name what is not reported yet by what the orchestrator has seen of the device."""
    done, out = facts.done.get(name), facts.out.get(name)
    ended = (done, "wait_for_others") if out is None else (out, "left_out")
    seen = ((facts.sent.get(name), "download"), (facts.delivered.get(name), "working"), ended)
    edges = [(facts.start_ns, "dispatch" if name in facts.started.devices else "idle")]
    edges += [(record.at_ns, word) for record, word in seen if record is not None]
    named: list[Segment] = []
    for segment in segments:
        named += _rename(segment, edges) if segment.name == "unreported" else [segment]
    return named


def _rename(gap: Segment, edges: list[tuple[int, str]]) -> list[Segment]:
    parts = []
    for (start, name), end in zip(edges, [at for at, _ in edges[1:]] + [FOREVER], strict=True):
        a, b = max(start, gap.start_ns), min(end, gap.end_ns)
        if a < b:
            parts.append(Segment(name, a, b))
    return parts
