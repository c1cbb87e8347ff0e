"""The cost models' common base: the simulated fleet asks them how long everything takes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgebed.methods.base import CutCost
from edgebed.models.staged import StagedModel
from edgebed.pacing import HOST
from edgebed.wire.messages import Assignment, Cost, Header
from orchestrator.references.work_laws import WorkLaws
from orchestrator.simulation.link import LinkCost, wire_bytes
from orchestrator.training.slot import HeldTo


class BatchCost(msgspec.Struct, frozen=True):
    """CPU seconds of one batch: until the features are ready, and the rest (head, backward, step)."""

    forward_s: float
    rest_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.rest_s


class CostModel:
    """Work of devices is given in CPU seconds, which their CPUs turn into time. Everything else is given in virtual
    seconds. The orchestrator's own work takes none. Unless a derived class says more, transfers take their time at the
    declared rates, and no work does."""

    kind = ""
    """A description for the records: which model, and from what."""
    speed = HOST
    """Name of the reference whose CPU seconds they are, or `host`: of none."""
    held_server: HeldTo | None = None
    """What its server's pieces cost, for methods that plan with it; None: as it is measured here."""
    laws: WorkLaws | None = None
    """What is timed during the simulation, if anything is."""

    def task_costs(self, assignment: Assignment) -> dict[str, Cost]:
        """What a device's task says that its pieces cost, as in a real run that is held to a reference. {}: `piece_s`
        tells. Raises UsageError: the model does not know what this work costs."""
        return {}

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        """Costs of the cuts, for methods that plan with them. Empty: they are measured on this host."""
        return {}

    def piece_s(self, assignment: Assignment, kind: str, size: int) -> float:
        """CPU seconds of a piece of a task (`edgebed.device.pieces`)."""
        return 0.0

    def transfer_bytes(self, assignment: Assignment, header: Header, size: int) -> int:
        """Bytes of the frames that carry a body of `size` bytes."""
        return wire_bytes(header, size)

    def link(self, latency_ms: float, rate_bit_s: int) -> LinkCost:
        """One direction of a device's link."""
        return LinkCost(latency_ms / 1e3, 8 / rate_bit_s)

    def server_s(self, method: str, work: Sequence[tuple[Assignment, str, int]]) -> float:
        """Seconds of pieces of the server's work on one of its CPUs.

        Args:
            method: that made the halves.
            work: for each piece the assignment of its device, its kind, and samples, or 1. Kinds: `make` a half, `first
                step`, `step` and what further batches add to them (`joined step`), or `read` (its weights).
        """
        return 0.0
