"""Which rounds the host disturbed, and by what: CPU that devices did not get, steal, rivals, a slow host, an overloaded
orchestrator or broker; and steal and rivals on the nodes of a Swarm. Pure.

**CPU not got** by a device in a round: its quota × wall time of its own work − CPU time used in it. It counts only as
far as its threads waited in the run queue for longer than the quota stopped them. Either figure alone misleads: a
device that waits for data uses less than its quota, and threads of one device wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records.host_records import HostRound, NodeRound
from orchestrator.records.run_index import RoundFacts, Session
from orchestrator.records.timeline.held import held_task
from orchestrator.records.timeline.limits_in_force import LimitsInForce
from orchestrator.records.types import Record

NOT_GOT_SHARE, NOT_GOT_S = 0.05, 0.1
"""A device that lost more than this share of its work's wall time, and more than these seconds, was disturbed. If one
period of its quota is longer, it must be more than that: a stop is credited when it ends, so one period may be counted
in the wrong task."""

STOLEN_SHARE = 0.05
"""Of the CPU time of all cores. The calibration uses the same limit."""

FULL_SHARE, OTHERS_SHARE = 0.95, 0.05
"""Other programs disturb a round where they use this share of the cores while the host is full. Before that they use
CPU time that nobody else wanted. Devices have priority over them; orchestrator, trainer and broker do not."""

SLOW_SHARE, SLOW_LOOPS = 0.1, 7
"""The reference loop took this share longer than in the median round of the run, in the median of at least so many
loops. Medians of 7 differ by 4 % on a calm host, medians of 3 by up to 20 %."""

BUSY_SHARE = 0.9
"""Of one core, for what has only one thread: the orchestrator's event loop and the broker."""

ONE_THREAD = {"event loop": "orchestrator", "broker": "broker"}
"""Processes and threads whose load is limited to one core, and the cause that they are when they reach it."""


class Disturbance(msgspec.Struct, frozen=True, array_like=True):
    """One cause: `steal`, `rival`, `slow_host`, `orchestrator` or `broker`. `why` has the figures, for people."""

    cause: str
    why: str


class NodeShares(msgspec.Struct, frozen=True, array_like=True):
    """What a node of a Swarm did in one round: shares of the CPU time of all its cores. `others`: at least, by programs
    that are not of Edgebed; `load`: mean of the last minute; `clock_s`: its clock minus this host's."""

    busy: float
    stolen: float
    others: float
    cores: float
    load: float
    clock_s: float | None = None


class HostOfRound(msgspec.Struct, frozen=True, array_like=True):
    """What the host did in one round. None: it was not measured (older records, a simulation).

    Attributes:
        disturbed: by what; empty if it was not. A slow host is among it once the round was `compared`.
        lost_s: wall seconds by which each device was later because it did not get its CPU; None: it does not tell.
        loop_ms, loops: CPU time of the reference loop, and how many ran.
        starved: whether the first of `disturbed` is that a device did not get its CPU.
        speed: of the reference loop, as a multiple of its median over the rounds of the run, once `compared`.
        stolen_share, others_share: of the CPU time of all cores.
        load: CPU seconds per second, by process of the run; `busy`: of all programs of the host.
        nodes: of a fleet on a Swarm, by name.
    """

    disturbed: tuple[Disturbance, ...] | None = None
    lost_s: dict[str, float | None] = {}
    speed: float | None = None
    stolen_share: float | None = None
    others_share: float | None = None
    load: dict[str, float] = {}
    busy: float | None = None
    nodes: dict[str, NodeShares] = {}
    loop_ms: float | None = None
    loops: int = 0
    starved: bool = False

    def compared(self, usual_ms: float | None) -> HostOfRound:
        """With its speed against the usual one, and as disturbed where it was slow. `usual_ms`: CPU time of a reference
        loop in the median round."""
        if self.disturbed is None:
            return self
        speed = usual_ms / self.loop_ms if usual_ms and self.loop_ms else None
        slow = _slow(speed if self.loops >= SLOW_LOOPS else None)
        first, rest = self.disturbed[: self.starved], self.disturbed[self.starved :]
        return msgspec.structs.replace(self, speed=speed, disturbed=(*first, *slow, *rest))

    @property
    def cores(self) -> dict[str, float]:
        """CPU seconds per second, of the whole host, of every process of the run, and of every node of a Swarm."""
        nodes = {f"node {name}": each.busy * each.cores for name, each in self.nodes.items()}
        return self.load if self.busy is None else {"the whole host": self.busy, **self.load, **nodes}

    @property
    def why(self) -> str:
        """All causes with their figures, for people; empty if there is none."""
        return "; ".join(each.why for each in self.disturbed or ())

    @property
    def causes(self) -> tuple[str, ...] | None:
        return None if self.disturbed is None else tuple(each.cause for each in self.disturbed)


class TaskWork(msgspec.Struct):
    """What a task needed of its device: seconds of its own work on the wall, and of CPU time."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


def not_got_s(cpus: float, work: TaskWork, delayed_s: float, throttled_s: float) -> float:
    """CPU seconds that a device did not get although its quota of `cpus` allowed them.

    Args:
        delayed_s: its threads were ready to run and did not; stops by the quota are part of it.
        throttled_s: the quota stopped them.
    """
    return max(0.0, min(cpus * work.wall_s - work.cpu_s, delayed_s - throttled_s))


def usual_loop_ms(hosts: Iterable[HostOfRound]) -> float | None:
    """CPU time of a reference loop in the median of these rounds; None where none was measured."""
    loops = [host.loop_ms for host in hosts if host.loop_ms]
    return median(loops) if loops else None


def works_of(session: Session) -> dict[str, TaskWork]:
    """The work of every task of a session, from the phases that devices reported."""
    works: dict[str, TaskWork] = {}
    for device in session.devices.values():
        for _, phase in device.phases:
            if phase.name in OWN_WORK and phase.task:
                work = works.setdefault(phase.task, TaskWork())
                work.wall_s += (phase.end_ns - phase.start_ns) / 1e9
                work.cpu_s += phase.cpu_ns / 1e9
    return works


def host_of_round(facts: RoundFacts, works: Mapping[str, TaskWork], limits: LimitsInForce) -> HostOfRound:
    """What the host did in one round, not yet compared with the other rounds. `works`: of the tasks of the round, by
    task."""
    lost = {device: _lost_s(facts, device, works, limits) for device in facts.updates}
    host = facts.host
    if host is None:
        return HostOfRound(lost_s=lost)
    shares, load = _shares(host), _load(host)
    shares_lost = {device: _lost_share(facts, device, seconds, works, limits) for device, seconds in lost.items()}
    starved = list(_starved(shares_lost, facts, limits))
    found = _merged([*starved, *_by_host(host)])
    wall_s = (host.at_ns - host.start_ns) / 1e9
    busy = host.busy_s / wall_s if wall_s > 0 else None
    nodes = {node.name: _of_node(node) for node in host.nodes}
    return HostOfRound(
        tuple(found), lost, None, shares[2], shares[1], load, busy, nodes, host.loop_ms, host.loops, bool(starved)
    )


def _lost_s(facts: RoundFacts, device: str, works: Mapping[str, TaskWork], limits: LimitsInForce) -> float | None:
    update, in_force = facts.updates[device], limits.at(device, facts.start_ns)
    work, report = works.get(update.task), update.report
    if work is None or report.delayed_s is None or in_force is None or not in_force.cpus:
        return None
    if in_force.unlimited:  # it does not run on this host
        return None
    lost_s = not_got_s(in_force.cpus, work, report.delayed_s, report.throttled_s or 0.0) / in_force.cpus
    held = held_task(facts, device)  # what such a device did not get made it no later than it was
    return lost_s if held is None else min(lost_s, held.late_s * facts.dilation)


def _lost_share(
    facts: RoundFacts, device: str, lost_s: float | None, works: Mapping[str, TaskWork], limits: LimitsInForce
) -> float:
    """Of the wall time of its own work; 0 where it is not more than could be counted in the wrong task."""
    work, in_force = works.get(facts.updates[device].task), limits.at(device, facts.start_ns)
    if lost_s is None or work is None or in_force is None:
        return 0.0
    return lost_s / work.wall_s if lost_s > max(NOT_GOT_S, in_force.period_us / 1e6) and work.wall_s else 0.0


def _load(host: HostRound) -> dict[str, float]:
    """CPU seconds per second, by process."""
    wall_s = (host.at_ns - host.start_ns) / 1e9
    return {name: used / wall_s if wall_s > 0 else 0.0 for name, used in host.load_s.items()}


def _shares(host: HostRound) -> tuple[float, float | None, float]:
    """Shares of the CPU time of all cores: used by anybody, by programs that are not ours (None: not known), stolen."""
    capacity_s = host.cores * (host.at_ns - host.start_ns) / 1e9
    if capacity_s <= 0:
        return 0.0, None, 0.0
    processes_s = sum(seconds for name, seconds in host.load_s.items() if name != "event loop")  # the loop is a thread
    ours = None if host.devices_s is None else host.devices_s + processes_s
    others = None if ours is None else max(0.0, host.busy_s - ours) / capacity_s
    return (host.busy_s + host.stolen_s) / capacity_s, others, host.stolen_s / capacity_s


def disturbed_line(record: Record) -> str | None:
    """One line for a round that the host disturbed, while the run goes on; None for any other record. What devices did
    not get, and how fast the host was, is known when they have reported, and when the run is over."""
    if not isinstance(record, HostRound):
        return None
    found = _merged(_by_host(record))
    return f"round {record.round + 1} was disturbed: {'; '.join(each.why for each in found)}" if found else None


# ---- the rule --------------------------------------------------------------------------------------------------------


def _by_host(host: HostRound) -> list[Disturbance]:
    """What the record of the host alone tells."""
    used, others, stolen = _shares(host)
    nodes = [each for node in host.nodes if not node.here for each in _by_node(node)]
    return [*_rival(used, others), *_steal(stolen), *_overloaded(_load(host)), *nodes]


def _by_node(node: NodeRound) -> Iterable[Disturbance]:
    of = _of_node(node)
    for each in (*_rival(of.busy + of.stolen, of.others), *_steal(of.stolen)):
        yield Disturbance(each.cause, f"on {node.name}, {each.why}")


def _of_node(node: NodeRound) -> NodeShares:
    all_s = node.cores * node.wall_s
    others_s = max(0.0, node.busy_s - node.ours_s)
    return NodeShares(node.busy_s / all_s, node.stolen_s / all_s, others_s / all_s, node.cores, node.load, node.clock_s)


def _merged(found: Iterable[Disturbance]) -> list[Disturbance]:
    """One for each cause, with the figures of all."""
    whys: dict[str, list[str]] = {}
    for each in found:
        whys.setdefault(each.cause, []).append(each.why)
    return [Disturbance(cause, "; ".join(each)) for cause, each in whys.items()]


def _starved(shares: Mapping[str, float], facts: RoundFacts, limits: LimitsInForce) -> Iterable[Disturbance]:
    worst = max(shares, key=lambda device: shares[device], default="")
    if worst and shares[worst] > NOT_GOT_SHARE:
        in_force = limits.at(worst, facts.start_ns)
        where = f" on {in_force.node}" if in_force is not None and in_force.node else ""
        yield Disturbance("rival", f"{worst}{where} did not get {shares[worst]:.0%} of its CPU")


def _rival(used: float, others: float | None) -> Iterable[Disturbance]:
    if others is not None and others > OTHERS_SHARE and used > FULL_SHARE:
        yield Disturbance("rival", f"other programs used {others:.0%} of the cores, and none were free")


def _steal(stolen: float) -> Iterable[Disturbance]:
    if stolen > STOLEN_SHARE:
        yield Disturbance("steal", f"the hypervisor took {stolen:.0%} of the CPU time")


def _slow(speed: float | None) -> Iterable[Disturbance]:
    if speed is not None and 1 / speed - 1 > SLOW_SHARE:
        yield Disturbance("slow_host", f"a CPU second did {1 - speed:.0%} less work than usual")


def _overloaded(load: Mapping[str, float]) -> Iterable[Disturbance]:
    for name, cause in ONE_THREAD.items():
        if load.get(name, 0.0) > BUSY_SHARE:
            yield Disturbance(cause, f"the {name} was busy for {min(1.0, load[name]):.0%} of the time")
