"""What a finished round's timeline says of it, put into its row and into what it adds to the sums of devices. Pure.

Nothing here is added up: a round may be looked at again when more of it is known.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from orchestrator.records.critical.bound_by import bounds_of_round, waits_of_round
from orchestrator.records.critical.critical_path import SERVERS, Paths, RoundPath
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.critical.round_graph import lacks
from orchestrator.records.critical.stragglers import CAUSES, Straggler, straggler, waits
from orchestrator.records.critical.whatif import savings_of_groups, savings_of_round, slowest_links
from orchestrator.records.live.run_state import DeviceRound, RoundRow, RunState
from orchestrator.records.run_index import RoundFacts, RunFacts, Session
from orchestrator.records.timeline.board import BoardLine, line_of
from orchestrator.records.timeline.disturbance import host_of_round, works_of
from orchestrator.records.timeline.held import held_server, held_task
from orchestrator.records.timeline.limits_in_force import LimitsInForce
from orchestrator.records.timeline.timeline import RoundTimeline
from orchestrator.records.timeline.utilisation import loads_of


class SessionContext:
    """What the rounds of a session are explained with, as far as its records are in the index."""

    def __init__(self, session: Session) -> None:
        self.limits, self.works = LimitsInForce(session), works_of(session)
        self.boards: dict[str, BoardLine] = {n: line_of(d) for n, d in session.devices.items() if d.readings}
        self.paths = Paths(RunFacts([session]))


def explain(
    state: RunState, timeline: RoundTimeline, row: int, context: SessionContext, devices: dict[str, DeviceRound]
) -> None:
    """Put what the timeline of a finished round says into the row at this index, and into `devices`."""
    facts, found = timeline.facts, state.rows[row]
    host = host_of_round(facts, context.works, context.limits)
    path = context.paths.of(timeline)
    _put_round(found, timeline, path, context.limits)
    waited_ns = waits_of_round(timeline, path)
    _put_bounds(found, timeline, path, host.lost_s, waited_ns, context.limits)
    _put_late(found, facts)
    found.host, found.rev = msgspec.structs.replace(host, lost_s={}), state.rev
    _put_devices(devices, timeline, waited_ns)
    loads = loads_of(facts, context.works, context.limits, state.memory_mib)
    for name, device in state.devices.items():
        lost_s = host.lost_s.get(name)
        device.loads[row] = loads.get(name)
        device.not_got_s[row] = None if lost_s is None else lost_s / facts.dilation
        if name in context.boards and facts.window_end(name) and facts.finished is not None:
            device.boards[row] = context.boards[name].in_round(facts.start_ns, facts.finished.at_ns)


def put_straggler(row: RoundRow, found: Straggler | None, dilation: float) -> None:
    """None: fewer than two devices got done, or the run serves."""
    if found is not None:
        row.straggler, row.gap_s, row.why = found.device, found.gap_s / dilation, found.why
        row.behind_s = tuple(found.behind_s[cause] / dilation for cause in CAUSES) if found.behind_s else ()


def _put_round(row: RoundRow, timeline: RoundTimeline, path: RoundPath | None, limits: LimitsInForce) -> None:
    facts, slowest = timeline.facts, straggler(timeline, path)
    put_straggler(row, slowest, facts.dilation)
    in_force = limits.at(slowest.device, facts.start_ns) if slowest is not None and slowest.device else None
    row.profile = None if in_force is None else in_force.profile
    row.waited_for, waited_ns = waits(timeline)
    row.waited_s = waited_ns / 1e9 / facts.dilation
    worst = max((device.residual for device in timeline.devices.values()), default=0)
    row.residual, row.overlaps = None if facts.cut_off else worst, facts.ends is not None


def _put_bounds(
    row: RoundRow,
    timeline: RoundTimeline,
    path: RoundPath | None,
    lost_s: Mapping[str, float | None],
    waited_ns: Mapping[str, dict[str, int]],
    limits: LimitsInForce,
) -> None:
    facts = timeline.facts
    if path is None:
        row.bounds, row.savings, row.slowest = None, (), ()
        row.why_not = lacks(facts) or "its records contradict each other"
        row.orchestrator_share = None
        return
    row.orchestrator_share = path.share(Bound("host"))
    row.why_not, row.slowest = "", slowest_links(facts, limits)
    row.savings = savings_of_groups(path, facts.dilation, row.slowest) if facts.done else ()
    own = savings_of_round(path, facts.dilation) if facts.done else ()
    row.bounds = bounds_of_round(timeline, path, lost_s, waited_ns, own)


def _put_late(row: RoundRow, facts: RoundFacts) -> None:
    """Where the critical path is not known, all devices and the server count."""
    row.server, parts = held_server(facts), None if row.bounds is None else row.bounds.parts
    held = [("", row.server), *((name, held_task(facts, name)) for name in facts.updates)]

    def on_path(name: str) -> bool:
        return parts is None or any(part.whose == name if name else part.what in SERVERS for part in parts)

    row.late_s = max((task.late_s * on_path(name) for name, task in held if task is not None), default=None)


def _put_devices(
    devices: dict[str, DeviceRound], timeline: RoundTimeline, waited_ns: Mapping[str, dict[str, int]]
) -> None:
    finished = timeline.facts.finished
    assert finished is not None
    for name, account in timeline.devices.items():
        device = devices.setdefault(name, DeviceRound())
        device.spent, device.in_round = account.sums, account.totals(end_ns=finished.at_ns)
        device.waited = waited_ns.get(name)
