"""The state of a run that goes on: its records go into the index, and what pages show is made from that. Pure.

Live page and terminal follow a run with `reduce`, in any number of portions. The index is that of
`orchestrator.records.run_index`, which report, trace and comparison read too. Once a round is settled, `settling` drops
its transfers, server steps and phases from the index: what stays is one row, with the straggler that the summary gives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records import types as t
from orchestrator.records.board_marks import BoardMark
from orchestrator.records.live.run_state import (
    EVER,
    DeviceRound,
    DeviceState,
    IndexedRound,
    RoundRow,
    RunEvent,
    RunState,
)
from orchestrator.records.live.settling import add_up, settle
from orchestrator.records.run_index import RoundFacts, Session, close
from orchestrator.records.timeline.events import Event, events
from orchestrator.records.timeline.held import held_task
from orchestrator.records.timeline.in_quota import counted
from orchestrator.records.timeline.limits_in_force import rows_of


class Rewound(Exception):
    """A resumed run does rounds again that the state has added up: its records must be read again, with the patience
    `run_state.EVER`."""


def reduce(state: RunState, lines: Iterable[tuple[int, t.Record]]) -> None:
    """Take in records with their offsets in the file, in the order of the file. Raises Rewound: the state is of no use
    then."""
    state.rev += 1
    for offset, record in lines:
        if isinstance(record, t.RunStarted):
            _begin_session(state, record)
        elif state.sessions:
            state.run.add(record, offset)
    if state.sessions:
        _refresh(state, over=False)


def _refresh(state: RunState, over: bool) -> None:
    """Bring rows, devices and events up to date with the index."""
    session = state.session
    close(session)
    for name in session.devices:
        _take_phases(state, _known(state, name))
    _take_limits(state, session)
    for number in sorted(session.changed & session.rounds.keys()):
        _take_round(state, session.rounds[number])
    session.changed.clear()
    _take_slowed(state, session)
    _take_events(state, session)
    if not state.whole:
        for event in settle(state, over):
            _tell(state, event)
    state.told_events, state.told_limits = len(session.events), len(session.limits)


# ---- sessions ----


def _begin_session(state: RunState, record: t.RunStarted) -> None:
    again = bool(state.sessions)
    if again:
        _refresh(state, over=True)
        _end_session(state, record.resumed_from)
    state.run.add(record)
    _remove_rows(state, record.resumed_from)
    state.begun_ns.append(0)
    state.first_row, state.told, state.told_events, state.told_limits = len(state.rows), False, 0, 0
    state.lanes = False
    for device in state.devices.values():
        device.taken, device.round, device.slowed_before = 0, -1, len(device.slowed)
    for info in record.devices:
        _device(state, info)
    if again:
        _tell(state, Event(record.at_ns, "resumed", "", f"goes on from round {record.resumed_from + 1}"))


def _end_session(state: RunState, first: int) -> None:
    """Add the rounds of the last session to the sums, but those from `first` on, which are done again."""
    if max(0, first) < state.sums.rounds:
        raise Rewound
    for number in [number for number in state.rounds if number >= first]:
        for name, own in state.rounds.pop(number).devices.items():
            device = state.devices[name]
            _count(state, device, -own.up, -own.down)
            device.in_quota -= own.in_quota
    if not state.whole:
        for number in list(state.rounds) if state.patience < EVER else ():
            add_up(state, number)
        state.session.rounds.clear()


def _remove_rows(state: RunState, first: int) -> None:
    """Rounds that a resumed run does again count as they are done last."""
    keep = next((i for i, row in enumerate(state.rows) if row.number >= first), len(state.rows))
    if keep == len(state.rows):
        return
    state.epoch += 1
    del state.rows[keep:]
    for device in state.devices.values():
        for column in device.columns:
            del column[keep:]
    last = state.rows[-1] if state.rows else None
    state.elapsed_s = last.axis_s + (last.seconds or 0.0) if last else 0.0


def _device(state: RunState, info: t.DeviceInfo) -> None:
    limits = (info.cpus, float(info.uplink_bit_s), float(info.downlink_bit_s), info.memory_mib, info.samples)
    old = state.devices.get(info.name)
    if old is None:
        new = state.devices[info.name] = DeviceState(info.name, info.profile, *limits)
        for column in new.columns:
            column.extend([None] * len(state.rows))
    else:
        old.profile, old.cpus, old.uplink_bit_s, old.downlink_bit_s, old.memory_mib, old.samples = info.profile, *limits


def _known(state: RunState, name: str) -> DeviceState:
    """The device; a new one without limits where the fleet has none of this name."""
    if name not in state.devices:
        _device(state, t.DeviceInfo(name, "", 0.0, 0, 0, 0, 0, ()))
    return state.devices[name]


# ---- rounds ----


def _take_round(state: RunState, facts: RoundFacts) -> None:
    """Bring a row up to date, and the devices that the round drew."""
    if facts.number not in state.rounds:
        _begin_round(state, facts)
    indexed = state.rounds[facts.number]
    row = state.rows[indexed.row]
    before = (row.seconds, row.accuracy, row.left_out)
    row.left_out = dict(Counter(out.how for out in facts.out.values()))
    if facts.host is not None and not indexed.settled:
        row.host = msgspec.structs.replace(row.host, loop_ms=facts.host.loop_ms, loops=facts.host.loops)
    if facts.turn is not None:
        row.block, row.position = facts.turn.block, facts.turn.position + 1
    if facts.finished is not None:
        row.end_ns, row.merged = facts.finished.at_ns, len(facts.finished.merged)
        row.seconds = facts.finished.seconds / facts.dilation
        state.elapsed_s = max(state.elapsed_s, row.axis_s + row.seconds)
    if facts.evaluated is not None:
        row.accuracy, row.extra = facts.evaluated.accuracy, facts.evaluated.extra
        row.loss = facts.evaluated.loss if math.isfinite(facts.evaluated.loss) else None
    if before != (row.seconds, row.accuracy, row.left_out):
        row.rev = state.rev
    for name in facts.named:
        _take_device(state, _known(state, name), facts, indexed)


def _begin_round(state: RunState, facts: RoundFacts) -> None:
    if not state.begun_ns[-1]:
        state.begun_ns[-1], state.before_s = facts.start_ns, state.elapsed_s
    state.lanes = state.lanes or bool(facts.lane)
    start_s = state.wall(facts.start_ns) if state.lanes else state.elapsed_s
    drawn = set(facts.started.devices)
    state.rounds[facts.number] = IndexedRound(len(state.rows))
    row = RoundRow(facts.number, facts.offset, len(state.sessions) - 1, facts.start_ns, start_s, len(drawn), facts.lane)
    row.rev = state.rev
    state.rows.append(row)
    for name, device in state.devices.items():
        assignment, predicted = facts.started.assignments.get(name), facts.started.predicted_s.get(name)
        for column in device.columns:
            column.append(None)
        device.cuts[-1] = assignment.stages if assignment is not None else None
        device.predicted_s[-1] = None if predicted is None else predicted / facts.dilation
        if name in drawn:
            device.round = facts.number
            device.before_s, device.took_s = device.took_s or device.before_s, None
        elif not facts.lane:  # in another lane it may be at work
            device.activity, device.since_ns, device.round_bytes, device.took_s = "not drawn", 0, 0, None


def _take_device(state: RunState, device: DeviceState, facts: RoundFacts, indexed: IndexedRound) -> None:
    """What a device did in a round so far."""
    own = indexed.devices.setdefault(device.name, DeviceRound())
    _count_bytes(state, device, facts, indexed, own)
    _count_batches(device, facts, indexed, own)
    if (done := facts.done.get(device.name)) is not None:
        device.actual_s[indexed.row] = done.seconds / facts.dilation
        device.update_norms[indexed.row] = done.moved
    if (kept := held_task(facts, device.name)) is not None:
        device.kept[indexed.row] = kept
    if not indexed.settled and not state.whole:
        _take_progress(state, device, facts, indexed.row)
        device.uplink_share = _uplink_share(state, device, facts) or device.uplink_share


def _count_bytes(
    state: RunState, device: DeviceState, facts: RoundFacts, indexed: IndexedRound, own: DeviceRound
) -> None:
    up, down = indexed.moved.get(device.name, (0, 0))
    indexed.moved[device.name] = new_up, new_down = facts.moved(device.name)
    own.up, own.down = own.up + new_up - up, own.down + new_down - down
    _count(state, device, new_up - up, new_down - down)
    state.rows[indexed.row].bytes += new_up - up + new_down - down


def _count(state: RunState, device: DeviceState, up: int, down: int) -> None:
    """More bytes, or fewer."""
    device.bytes_up, device.bytes_down = device.bytes_up + up, device.bytes_down + down
    state.bytes_up, state.bytes_down = state.bytes_up + up, state.bytes_down + down


def _count_batches(device: DeviceState, facts: RoundFacts, indexed: IndexedRound, own: DeviceRound) -> None:
    """Tasks and batches by whether they fit into one period's quota, once per update."""
    update = facts.updates.get(device.name)
    if update is not None and device.name not in indexed.updated:
        indexed.updated.add(device.name)
        own.in_quota = counted([update.report])
        device.in_quota += own.in_quota


def _take_progress(state: RunState, device: DeviceState, facts: RoundFacts, row: int) -> None:
    """How far a device has come in a round. A round before its current one says nothing of what it does now."""
    sent = facts.sent.get(device.name)
    _take_link_use(device, facts)
    if device.round == facts.number and (state.lanes or facts.number == state.rows[-1].number):
        device.activity = _activity(facts, device.name)
        device.since_ns = sent.at_ns if sent is not None else 0
        device.round_bytes = sum(facts.moved(device.name))
        device.took_s = device.actual_s[row]


def _activity(facts: RoundFacts, name: str) -> str:
    if name in facts.done:
        return "done"
    if name in facts.out:
        return "left out"
    if name in facts.updates:
        return "server half"
    if name in facts.delivered:
        return "working"
    return "receiving" if name in facts.sent else "waiting"


def _take_link_use(device: DeviceState, facts: RoundFacts) -> None:
    """Share of the downlink's limit while the task came; memory while it worked."""
    sent, delivered = facts.sent.get(device.name), facts.delivered.get(device.name)
    if sent is not None and delivered is not None and delivered.at_ns > sent.at_ns and device.downlink_bit_s:
        received = facts.download_bytes(device.name) * 8e9 / (delivered.at_ns - sent.at_ns) * facts.dilation
        device.downlink_share = received / device.downlink_bit_s
    if (update := facts.updates.get(device.name)) is not None:
        device.memory_used_mib = update.report.memory_mib or device.memory_used_mib


def _uplink_share(state: RunState, device: DeviceState, facts: RoundFacts) -> float | None:
    """Share of the uplink's limit while uploads went, as the device reports it. One that sent nothing but its update
    reports no time: then the update counts, over the phases in which it was sent. None: not known yet."""
    update = facts.updates.get(device.name)
    if update is None or not device.uplink_bit_s:
        return None
    size, took = update.report.upload_bytes, update.report.upload_s
    if not size or not took:
        own = state.session.devices.get(device.name)
        reported = own.phases if own is not None else ()
        phases = [phase for _, phase in reported if phase.task == update.task]
        size = update.bytes
        took = sum(phase.end_ns - phase.start_ns for phase in phases if phase.name == "upload_tail") / 1e9
    return size / took * 8 * facts.dilation / device.uplink_bit_s if took else None


# ---- devices ----


def _take_limits(state: RunState, session: Session) -> None:
    """The limits that were set last hold. Of older ones only the last is kept, to know a change of the profile by."""
    factor = session.started.dilation
    for row in rows_of(session):
        device = state.devices.get(row.device)
        if device is None:
            continue
        if isinstance(row, t.LimitsSet):
            device.profile, device.cpus = row.profile, row.cpus * factor
            device.held = None if row.held_cpus is None else True
        device.uplink_bit_s = (row.uplink_bit_s or 0) * factor
        device.downlink_bit_s = (row.downlink_bit_s or 0) * factor


def _take_phases(state: RunState, device: DeviceState) -> None:
    """Count the phases that have come in since."""
    reported = state.session.devices[device.name].phases
    if len(reported) == device.taken:
        return
    recent = device.recent
    for _, phase in islice(reported, device.taken, None):
        length = phase.end_ns - phase.start_ns
        own = phase.name in OWN_WORK
        if own:
            device.worked_ns += length
            device.stopped_ns += phase.throttled_ns
        if not state.whole:
            recent.add(length, phase.cpu_ns, phase.throttled_ns, own)
    device.taken, device.phase = len(reported), reported[-1][1].name
    if recent.whole and device.cpus:
        device.cpu_share = recent.cpu / recent.whole / (device.cpus / state.dilation)
    if recent.work:
        device.throttled_share = min(1.0, recent.stopped / recent.work)


def _take_slowed(state: RunState, session: Session) -> None:
    """What slowed boards down in this session. Times from before its first round are at the beginning."""
    for name, facts in session.devices.items():
        if facts.slowed and name in state.devices and not state.whole:
            device = state.devices[name]
            device.slowed[device.slowed_before :] = [
                (each.mark, state.axis(each.begin_ns), state.axis(each.end_ns)) for each in facts.slowed
            ]


# ---- events ----


def _take_events(state: RunState, session: Session) -> None:
    """Count what has happened since, and tell it in the order of time. State from before the run is no event."""
    happened, limits = session.events[state.told_events :], session.limits[state.told_limits :]
    state.happened += sum(not isinstance(each, BoardMark) for each in happened)
    if not state.whole:
        for event in events(session, happened, limits):
            if event.at_ns >= session.started.at_ns:
                _tell(state, event)
        session.events.clear()
    if session.finished is not None and not state.told:
        state.told = True
        _tell(state, Event(session.finished.at_ns, "ended", "", session.finished.why))


def _tell(state: RunState, event: Event) -> None:
    row = state.row_at(event.at_ns)
    number = 0 if row is None else row.number
    if event.kind == "profile":
        if row is not None and row.seconds is not None:
            number += 1  # put on between two rounds, for the one to come
        if event.device in state.devices:
            state.devices[event.device].reprofiled = number
    state.events.append(RunEvent(state.axis(event.at_ns), number, event.kind, event.device, event.text))
