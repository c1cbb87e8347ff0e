"""The cost model of a reference: devices and server take its CPU seconds, links the declared rates and latencies."""

from __future__ import annotations

from collections.abc import Sequence

from edgebed.device.pieces import seconds
from edgebed.errors import UsageError
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Assignment, Cost
from orchestrator.references.reference import Reference
from orchestrator.references.task_costs import TaskCosts
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.link import LinkCost
from orchestrator.training.slot import HeldTo


class ReferenceCosts(CostModel):
    """The tasks say what their pieces cost, as those of real devices that are held to the reference. `spread`: as for
    `TaskCosts`."""

    def __init__(self, reference: Reference, *, spread: bool = False) -> None:
        self.kind, self.speed = f"reference {reference.name}", reference.name
        self._tasks = TaskCosts(reference, spread=spread)
        self.held_server = HeldTo(self._tasks.of_half, 1.0)

    def task_costs(self, assignment: Assignment) -> dict[str, Cost]:
        costs = self._tasks.of(assignment)
        if not {"batch", "forward"} & set(costs):
            raise self._unknown(f"a batch of {assignment.objective!r} at cut {assignment.stages}")
        return costs

    def link(self, latency_ms: float, rate_bit_s: int) -> LinkCost:
        """Rates are those of the wire, with the headers of full packets; an acknowledgement takes the latency back."""
        return LinkCost(latency_ms / 1e3, 8 / WIRE_SHARE / rate_bit_s, ack_s=latency_ms / 1e3)

    def server_s(self, method: str, work: Sequence[tuple[Assignment, str, int]]) -> float:
        return sum(self._server_s(method, *each) for each in work)

    def _server_s(self, method: str, assignment: Assignment, kind: str, size: int) -> float:
        costs = self._tasks.of_half(method, assignment)
        if "step" not in costs:
            raise self._unknown(f"a step of {method}'s server half at cut {assignment.stages}")
        cost = costs.get(kind)
        return seconds(cost, size) if cost is not None else 0.0

    def _unknown(self, what: str) -> UsageError:
        return UsageError(
            f"the reference {self.speed} does not know what {what} costs",
            hint="record one from the experiment: `edgebed reference record NAME EXPERIMENT`",
        )
