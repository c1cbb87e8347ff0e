"""What the nodes of a Swarm did in a round, from two readings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.fleet.many_hosts import NodeReading
from orchestrator.records.host_records import NodeRound


def rounds_of_nodes(
    before: Sequence[NodeReading], after: Sequence[NodeReading], own_machine: str
) -> Iterator[NodeRound]:
    """For every node that was heard of in between."""
    starts = {each.name: each for each in before}
    for end in after:
        start = starts.get(end.name)
        if start is not None and end.at_s > start.at_s:
            yield NodeRound(
                name=end.name,
                cores=end.cores,
                wall_s=end.at_s - start.at_s,
                busy_s=end.used_s - start.used_s,
                stolen_s=end.stolen_s - start.stolen_s,
                ours_s=_ours_s(end, starts, after),
                load=end.load,
                here=end.machine == own_machine,
                clock_s=end.clock_s,
                clock_error_s=end.clock_error_s,
                drift_s=end.drift_s,
            )


def _ours_s(node: NodeReading, starts: dict[str, NodeReading], after: Sequence[NodeReading]) -> float:
    """At most: by the devices of all nodes of its machine, as their quotas allow, and their helpers."""
    wall_s = node.at_s - starts[node.name].at_s
    pairs = [(starts[end.name], end) for end in after if end.machine == node.machine and end.name in starts]
    return sum(max(start.cpus, end.cpus) * wall_s + end.helper_s - start.helper_s for start, end in pairs)
