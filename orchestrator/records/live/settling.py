"""Works out the straggler of a round once all its phases are known, then drops its facts from the index. Pure."""

from __future__ import annotations

from statistics import median

import msgspec

from orchestrator.records.critical.bound_by import RoundBounds, bounds_of_round
from orchestrator.records.critical.critical_path import Paths, RoundPath
from orchestrator.records.critical.stragglers import CAUSES, Straggler, straggler, straggler_of
from orchestrator.records.critical.whatif import savings_of_round
from orchestrator.records.live.run_state import IndexedRound, RunState
from orchestrator.records.run_index import DeviceFacts, RoundFacts, RunFacts, Session
from orchestrator.records.timeline.board import line_of
from orchestrator.records.timeline.disturbance import host_of_round, is_slow, speed_of, works_of
from orchestrator.records.timeline.events import Event, disturbed
from orchestrator.records.timeline.limits_in_force import LimitsInForce
from orchestrator.records.timeline.timeline import RoundTimeline, timelines
from orchestrator.records.timeline.utilisation import loads_of

PATIENCE = 64
"""A round is settled after so many others, whatever phases of it are missing. As many settled rounds stay in the index,
without their transfers and steps: their accuracy may come late."""


def settle(state: RunState, over: bool) -> list[Event]:
    """Work out stragglers of rounds that have ended; drop the facts of those that are settled, and return which of them
    the host disturbed.

    Args:
        over: nothing more will come of this session.
    """
    session = state.session
    open = [facts for number, facts in session.rounds.items() if not state.rounds[number].settled]
    ended = [facts for facts in open if facts.finished is not None]
    complete: list[RoundFacts] = []
    late: list[RoundFacts] = []
    for facts in ended:
        (complete if _is_complete(session, facts) else late).append(facts)
    given_up = late if over else late[:-PATIENCE]
    wanted = complete + (late if session.finished is not None else given_up)
    _stragglers(state, wanted, late)
    abandoned = [facts for facts in open if facts.finished is None and (over or not facts.cut_off)]
    _loads(state, complete + given_up)
    _joules(state, complete + given_up)
    found = _disturbed(state, complete + given_up)
    if dropped := complete + given_up + abandoned:
        for facts in dropped:
            _drop(session, facts, state.rounds[facts.number])
        _forget(state)
    return found


def _is_complete(session: Session, facts: RoundFacts) -> bool:
    """Whether all devices that got done have reported what they did until then. Nothing comes from one that left."""
    devices = ((session.devices.get(name), done.at_ns) for name, done in facts.done.items())
    return all(device is None or not device.present or device.reported_ns >= at for device, at in devices)


def _stragglers(state: RunState, wanted: list[RoundFacts], late: list[RoundFacts]) -> None:
    """From the timeline where phases are known; of late rounds the device and the gap, without a cause."""
    session = state.session
    if session.started.method == "serve":
        return
    for facts in late:
        if len(facts.done) >= 2:
            seconds = {device: done.seconds for device, done in facts.done.items()}
            _put(state, facts, straggler_of(seconds, {}))
    if wanted:
        run = RunFacts([session])
        paths = Paths(run)
        for timeline in timelines(run, {facts.number for facts in wanted}):
            path = paths.of(timeline)
            _put(state, timeline.facts, straggler(timeline, path))
            _put_bounds(state, timeline.facts, None if path is None else _bounds(timeline, path))


def _bounds(timeline: RoundTimeline, path: RoundPath) -> RoundBounds:
    return bounds_of_round(timeline, path, savings=savings_of_round(path, timeline.facts.dilation))


def _loads(state: RunState, settled: list[RoundFacts]) -> None:
    """How much of its limits every device used in these rounds."""
    if not settled:
        return
    works, limits = works_of(state.session), LimitsInForce(state.session)
    for facts in settled:
        index = state.rounds[facts.number].row
        for name, load in loads_of(facts, works, limits, state.memory_mib).items():
            if name in state.devices:
                state.devices[name].loads[index] = load


def _joules(state: RunState, settled: list[RoundFacts]) -> None:
    """Energy of every board in these rounds."""
    for name, facts in state.session.devices.items():
        if name not in state.devices or not facts.readings:
            continue
        line = line_of(facts)
        for each in settled:
            if each.finished is not None:
                board = line.in_round(each.start_ns, each.finished.at_ns)
                state.devices[name].joules[state.rounds[each.number].row] = board.joules


def _disturbed(state: RunState, settled: list[RoundFacts]) -> list[Event]:
    """What the host did in these rounds, against the median loop of all rounds so far."""
    if not any(facts.host for facts in settled):
        return []
    works, limits, found = works_of(state.session), LimitsInForce(state.session), list[Event]()
    for facts in settled:
        row = state.rows[state.rounds[facts.number].row]
        row.loop_ms, row.loops = (facts.host.loop_ms, facts.host.loops) if facts.host else (None, 0)
        usual_ms = [each.loop_ms for each in state.rows if each.loop_ms is not None]
        host = host_of_round(facts, works, limits, median(usual_ms) if usual_ms else None)
        row.load = host.cores
        row.disturbed, row.rev = None if host.causes is None else tuple(host.causes), state.rev
        found += disturbed(facts, host)
    _judge_again(state)
    return found


def _judge_again(state: RunState) -> None:
    """What the median loop is changes with every round, and with it which rounds had a slow host."""
    loops = [row.loop_ms for row in state.rows if row.loop_ms is not None]
    usual_ms = median(loops) if loops else None
    for row in state.rows:
        slow = is_slow(speed_of(row.loop_ms, row.loops, usual_ms))
        if row.disturbed is not None and slow != ("slow_host" in row.disturbed):
            others = tuple(cause for cause in row.disturbed if cause != "slow_host")
            row.disturbed, row.rev = (*others, *(("slow_host",) if slow else ())), state.rev


def _put(state: RunState, facts: RoundFacts, found: Straggler | None) -> None:
    if found is None:
        return
    row, dilation = state.rows[state.rounds[facts.number].row], facts.dilation
    behind = tuple(found.behind_s[cause] / dilation for cause in CAUSES) if found.behind_s else ()
    new = (found.device, found.gap_s / dilation, found.why, behind)
    if new != (row.straggler, row.gap_s, row.why, row.behind_s):
        row.straggler, row.gap_s, row.why, row.behind_s = new
        row.rev = state.rev


def _put_bounds(state: RunState, facts: RoundFacts, bounds: RoundBounds | None) -> None:
    row = state.rows[state.rounds[facts.number].row]
    if bounds != row.bounds:
        row.bounds, row.rev = bounds, state.rev


def _drop(session: Session, facts: RoundFacts, indexed: IndexedRound) -> None:
    """Keep who took part and how the round ended."""
    moved = facts.sent, facts.delivered, facts.uploads, facts.replies, facts.updates
    for part in (*moved, facts.steps, facts.half_work, facts.own):
        part.clear()
    facts.started = msgspec.structs.replace(facts.started, assignments={}, predicted_s={}, notes={})
    indexed.settled, indexed.moved = True, {}


def _forget(state: RunState) -> None:
    """Forget old rounds, and phases from before the first round that is open."""
    session = state.session
    settled = [number for number, indexed in state.rounds.items() if indexed.settled]
    for number in settled[:-PATIENCE]:
        del state.rounds[number], session.rounds[number]
    open = [session.rounds[number] for number, indexed in state.rounds.items() if not indexed.settled]
    since = min((facts.start_ns for facts in open), default=session.end_ns)
    for name, device in session.devices.items():
        device.placed = None
        count = _ended_before(device, since)
        del device.phases[:count], device.readings[:-1]
        if name in state.devices:
            state.devices[name].taken -= count


def _ended_before(device: DeviceFacts, at_ns: int) -> int:
    """Number of leading phases that ended before a moment, without the last phase."""
    count = 0
    for incarnation, phase in device.phases[:-1]:
        clock = device.clocks.get(incarnation)
        if clock is not None and clock.to_orchestrator(phase.end_ns) > at_ns:
            break
        count += 1
    return count
