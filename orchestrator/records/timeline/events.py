"""What happened in a run besides its rounds, as people read it: in report, on the live page, on charts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from orchestrator.records import types as t
from orchestrator.records.board_marks import BoardMark
from orchestrator.records.run_index import RoundFacts, Session
from orchestrator.records.timeline.disturbance import HostOfRound
from orchestrator.records.timeline.limits_in_force import Change, changes
from orchestrator.records.words.formatting import number, rate
from orchestrator.records.words.vocabulary import UNLIMITED, board_mark


class Event(msgspec.Struct, frozen=True):
    """Something that happened. `kind`: a key of `vocabulary.EVENTS`; `device`: "" is the orchestrator."""

    at_ns: int
    kind: str
    device: str
    text: str


def events(session: Session, happened: Iterable[t.Happened], limits: Iterable[t.LimitsSet]) -> list[Event]:
    """What was not planned, and changes of profiles, in the order of time. `happened`, `limits`: those of the session's
    that are looked at."""
    wanted = {id(row) for row in limits}
    dilation = session.started.dilation
    changed = [changed_profile(change, dilation) for change in changes(session) if id(change.after) in wanted]
    return sorted([*unplanned(happened), *changed], key=lambda event: event.at_ns)


def unplanned(happened: Iterable[t.Happened]) -> list[Event]:
    """Work that was left out, devices that left or came back, faults, steps of the scenario, what slowed boards down:
    in the order of the records."""
    return [_unplanned(record) for record in happened]


def _unplanned(record: t.Happened) -> Event:
    match record:
        case t.DeviceOut():
            kind, text = "out", f"left out of round {record.round + 1} ({record.how}): {record.why}"
        case t.DeviceLeft():
            kind, text = "left", record.why
        case t.DeviceJoined():
            kind, text = "joined", f"came back (incarnation {record.incarnation[:8]})"
        case t.Fault():
            kind, text = "fault", record.what
        case t.ScenarioStep():
            kind, text = "scenario", f"{record.asked} (failed: {record.error})" if record.error else record.asked
        case BoardMark():
            kind, text = "board", board_mark(record.mark, record.setting)
    return Event(record.at_ns, kind, record.device, text)


def changed_profile(change: Change, dilation: float) -> Event:
    """With the limits of the new profile, before dilation."""
    text = f"profile {change.before} → {change.after.profile}: {limits(change.after, dilation)}"
    return Event(change.at_ns, "profile", change.device, text)


def disturbed(facts: RoundFacts, host: HostOfRound) -> list[Event]:
    """One event if the host disturbed a finished round."""
    if not host.disturbed or facts.finished is None:
        return []
    return [Event(facts.finished.at_ns, "disturbed", "", f"round {facts.number + 1}: {host.why}")]


def limits(row: t.LimitsSet, dilation: float) -> str:
    """Limits as the fleet file states them."""
    if row.unlimited:
        return UNLIMITED
    up, down = rate(row.uplink_bit_s * dilation), rate(row.downlink_bit_s * dilation)
    return f"{number(row.cpus * dilation)} CPU, {up} up, {down} down"
