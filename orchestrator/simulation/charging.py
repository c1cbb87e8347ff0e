"""Lets virtual time pass for what the orchestrator itself does in a simulated run."""

from __future__ import annotations

import msgspec

from edgebed.wire.messages import Assignment
from orchestrator.records.types import OrchestratorPhase, Record, RoundStarted
from orchestrator.runs.platform import Write
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.virtual import VirtualLoop


class Charging:
    """Charges the orchestrator's work to the virtual clock of `loop`.

    What the round code hands to worker threads is charged by the loop (`VirtualLoop.run_charged`). Planning a round and
    sending its tasks run in the loop's own thread, so they are charged when their records are written.

    Attributes:
        assignments: by device, those of the rounds in hand.
    """

    def __init__(self, loop: VirtualLoop, costs: CostModel) -> None:
        self._loop, self._costs = loop, costs
        self.assignments: dict[str, Assignment] = {}
        loop.charge = costs.orchestrator_s

    def recording(self, write: Write) -> Write:
        """Writes records with `write`, and charges planning and sending (`runs.platform.Platform.recording`)."""

        def record(record: Record) -> None:
            if isinstance(record, RoundStarted):
                record = self._planned(record)
            write(record)
            if isinstance(record, OrchestratorPhase) and record.name == "plan":
                self._loop.advance(self._costs.orchestrator_s("dispatch", 0))

        return record

    def _planned(self, record: RoundStarted) -> RoundStarted:
        """The round begins. Raises UsageError for work whose costs are not known."""
        for assignment in record.assignments.values():
            self._costs.check(assignment)
        self.assignments.update(record.assignments)
        planned_s = self._costs.orchestrator_s("plan", 0)
        self._loop.advance(planned_s)
        return msgspec.structs.replace(record, planned_s=planned_s)
