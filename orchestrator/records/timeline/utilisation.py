"""How much of its limits a device used in a round: CPU, links, memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from orchestrator.records.run_index import RoundFacts
from orchestrator.records.timeline.disturbance import TaskWork
from orchestrator.records.timeline.limits_in_force import LimitsInForce


class DeviceLoad(msgspec.Struct, frozen=True, array_like=True):
    """Shares of the limits that were in force, over the whole round: waits are part of it. None: not known."""

    cpu: float | None  # CPU time of its own work ÷ (quota × length of the round)
    # `uplink`, `downlink`: bits ÷ (rate × length of the round)
    uplink: float | None
    downlink: float | None
    memory: float | None  # memory at the end of its task ÷ limit


def loads_of(
    facts: RoundFacts, works: Mapping[str, TaskWork], limits: LimitsInForce, memory_mib: Mapping[str, int]
) -> dict[str, DeviceLoad]:
    """By device that sent an update in a finished round.

    Args:
        works: of the tasks of the round, by task.
        memory_mib: the limit of every device; 0: none.
    """
    if facts.finished is None:
        return {}
    seconds = facts.finished.seconds  # not divided, as the limits in force are
    found = {}
    for name, update in facts.updates.items():
        in_force, work, (up, down) = limits.at(name, facts.start_ns), works.get(update.task), facts.moved(name)
        if in_force is None:
            continue
        found[name] = DeviceLoad(
            _share(work.cpu_s, in_force.cpus * seconds) if work is not None else None,
            _share(8 * up, in_force.uplink_bit_s * seconds),
            _share(8 * down, in_force.downlink_bit_s * seconds),
            _share(update.report.memory_mib, memory_mib.get(name, 0)) if update.report.memory_mib else None,
        )
    return found


def _share(used: float, limit: float) -> float | None:
    return round(used / limit, 4) if limit > 0 else None
