"""Explains rounds once the phases of their devices are known, then drops their facts from the index. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

import msgspec

from orchestrator.records.critical.stragglers import straggler_of
from orchestrator.records.live.round_account import SessionContext, explain, put_straggler
from orchestrator.records.live.run_state import PATIENCE, DeviceRound, IndexedRound, RunState, Sums
from orchestrator.records.run_index import DeviceFacts, RoundFacts, RunFacts, Session
from orchestrator.records.timeline.board import GAP_NS
from orchestrator.records.timeline.disturbance import usual_loop_ms
from orchestrator.records.timeline.events import Event, disturbed
from orchestrator.records.timeline.limits_in_force import rows_of
from orchestrator.records.timeline.timeline import RoundTimeline, timelines


def settle(state: RunState, over: bool) -> list[Event]:
    """Explain rounds that have ended; drop the facts of those that are known for good, and return which of them the
    host disturbed. `over`: nothing more will come of this session."""
    session = state.session
    open = [facts for number, facts in session.rounds.items() if not state.rounds[number].settled]
    ended = [facts for facts in open if facts.finished is not None]
    late = [facts for facts in ended if not _is_known(session, facts)]
    waiting = {facts.number for facts in ([] if over else late[-PATIENCE:])}
    settled = [facts for facts in ended if facts.number not in waiting]
    shown = [facts for facts in late if not state.rounds[facts.number].shown and _is_explained(session, facts)]
    _name_stragglers(state, late)
    _explain(state, [*settled, *shown])
    abandoned = [facts for facts in open if facts.finished is None and (over or not facts.cut_off)]
    found = _compare_hosts(state, settled) if settled or shown else []
    if dropped := [*settled, *abandoned]:
        for facts in dropped:
            _drop(facts, state.rounds[facts.number])
        _forget(state)
    return found


def explain_late(state: RunState) -> None:
    """Explain finished rounds that are not settled, from what is known of them now."""
    if state.sessions:
        numbers = [number for number, indexed in state.rounds.items() if not indexed.settled]
        rounds = [state.session.rounds[number] for number in numbers]
        _explain(state, [facts for facts in rounds if facts.finished is not None])


def explained(state: RunState) -> Iterator[RoundTimeline]:
    """The timelines of a run whose state has all its records (`whole`). Each finished round is explained and added to
    the sums as it passes."""
    state.sums = Sums()
    rows = {row.number: index for index, row in enumerate(state.rows)}
    contexts: dict[int, SessionContext] = {}
    sessions = {id(facts): session for session, facts in state.run.rounds()}
    for timeline in timelines(state.run):
        facts = timeline.facts
        if facts.finished is not None:
            session = sessions[id(facts)]
            if id(session) not in contexts:
                contexts[id(session)] = SessionContext(session)
            devices: dict[str, DeviceRound] = {}
            explain(state, timeline, rows[facts.number], contexts[id(session)], devices)
            state.sums.add(state.rows[rows[facts.number]], devices, facts.dilation)
        yield timeline


def _is_known(session: Session, facts: RoundFacts) -> bool:
    """Whether all devices in the round's window have reported all of it. Nothing comes from one that left.

    A device's clock is measured again when it comes back or gets a new profile. Rounds that are settled by then keep
    the times that they have; the index of the whole file would move them by what the clock has drifted since.
    """
    windows = ((device, facts.window_end(name)) for name, device in session.devices.items() if device.present)
    return not facts.cut_off and all(end is None or device.reported_ns >= end for device, end in windows)


def _is_explained(session: Session, facts: RoundFacts) -> bool:
    """Whether all devices that got done have reported what they did until then: that explains the straggler."""
    devices = ((session.devices.get(name), done.at_ns) for name, done in facts.done.items())
    return all(device is None or not device.present or device.reported_ns >= at for device, at in devices)


def _name_stragglers(state: RunState, late: list[RoundFacts]) -> None:
    """The straggler of rounds whose phases are missing: the device and the gap, without a cause."""
    for facts in late:
        indexed = state.rounds[facts.number]
        if len(facts.done) >= 2 and not indexed.shown and "serving" not in facts.started.notes:
            seconds = {device: done.seconds for device, done in facts.done.items()}
            put_straggler(state.rows[indexed.row], straggler_of(seconds, {}), facts.dilation)


def _explain(state: RunState, wanted: list[RoundFacts]) -> None:
    if not wanted:
        return
    context = SessionContext(state.session)
    for timeline in timelines(RunFacts([state.session]), {facts.number for facts in wanted}):
        indexed = state.rounds[timeline.facts.number]
        explain(state, timeline, indexed.row, context, indexed.devices)
        indexed.shown = True


def _compare_hosts(state: RunState, settled: list[RoundFacts]) -> list[Event]:
    """What the host did, against the median loop of all rounds so far: it changes with every round, and with it which
    rounds had a slow host. Returns the settled rounds that it disturbed."""
    usual_ms = usual_loop_ms(row.host for row in state.rows)
    hosts = [row.host.compared(usual_ms) for row in state.rows]
    for row, host in zip(state.rows, hosts, strict=True):
        if host.causes != row.disturbed:
            row.disturbed, row.rev = host.causes, state.rev
    return [event for facts in settled for event in disturbed(facts, hosts[state.rounds[facts.number].row])]


def _drop(facts: RoundFacts, indexed: IndexedRound) -> None:
    """Keep who took part and how the round ended."""
    moved = facts.sent, facts.delivered, facts.uploads, facts.replies, facts.updates
    for part in (*moved, facts.steps, facts.half_work, facts.own):
        part.clear()
    facts.started = msgspec.structs.replace(facts.started, assignments={}, predicted_s={}, notes={})
    indexed.settled, indexed.moved = True, {}


def _forget(state: RunState) -> None:
    """Forget old rounds, and what was reported before the first round that is open."""
    session = state.session
    settled = list(takewhile(lambda number: state.rounds[number].settled, state.rounds))
    for number in settled[: -state.patience]:
        add_up(state, number)
    open = [session.rounds[number] for number, indexed in state.rounds.items() if not indexed.settled]
    since = min((facts.start_ns for facts in open), default=session.end_ns)
    _forget_limits(session, since)
    for name, device in session.devices.items():
        device.placed = None
        ends = ((incarnation, phase.end_ns) for incarnation, phase in device.phases[:-1])
        reads = ((incarnation, reading.at_ns) for incarnation, reading in device.readings[:-1])
        count = _count_before(device, ends, since)
        del device.phases[:count], device.readings[: _count_before(device, reads, since - GAP_NS)]
        if name in state.devices:
            state.devices[name].taken -= count


def add_up(state: RunState, number: int) -> None:
    """Add a round to the sums, and take it out of the index."""
    indexed = state.rounds.pop(number)
    facts = state.session.rounds.pop(number)
    if facts.finished is not None:
        state.sums.add(state.rows[indexed.row], indexed.devices, facts.dilation)


def _forget_limits(session: Session, since: int) -> None:
    """Of each device's limits, and of its rates, what was in force at `since` and what came later."""
    kept = [row for row in rows_of(session) if row.at_ns >= since]
    before = {(row.device, type(row)): row for row in rows_of(session) if row.at_ns < since}
    rows = {id(row) for row in (*kept, *before.values())}
    session.limits = [row for row in session.limits if id(row) in rows]
    session.rates = [row for row in session.rates if id(row) in rows]


def _count_before(device: DeviceFacts, times: Iterable[tuple[str, int]], at_ns: int) -> int:
    """How many of these times (incarnation, nanoseconds of its clock) come before the first one after `at_ns`."""

    def is_before(incarnation: str, device_ns: int) -> bool:
        clock = device.clocks.get(incarnation)
        return clock is None or clock.to_orchestrator(device_ns) <= at_ns

    return sum(1 for _ in takewhile(lambda time: is_before(*time), times))
