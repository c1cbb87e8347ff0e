"""What things take in a simulation: the questions that the simulated fleet asks of a cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from edgebed.methods.base import CutCost
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment, Codec, Header
from orchestrator.fleet.profile import Limits
from orchestrator.rounds.event_loop import OwnWork
from orchestrator.simulation.cpu import Cpu
from orchestrator.simulation.link import LinkCost


class Device(msgspec.Struct, frozen=True):
    """Who works: the profile's name and the limits in force (after dilation)."""

    name: str
    profile: str
    limits: Limits


class BatchCost(msgspec.Struct, frozen=True):
    """CPU seconds of one batch: until the features are there, and the rest (head, backward, step)."""

    forward_s: float
    rest_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.rest_s


class CostModel(Protocol):
    """What devices do is answered in CPU seconds, which their `cpu` turns into time; the rest in virtual seconds. All
    are those of a fleet with the dilation of the run."""

    kind: str
    """For the records: which model, from what."""
    dilation: float
    """That of the fleet that the costs were taken on; 1 where they are of no fleet."""

    def check(self, assignment: Assignment) -> None:
        """Raises UsageError for work whose costs are not known to it."""

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        """What a method that needs costs plans with; empty: they are measured on this host."""

    def cpu(self, who: Callable[[], Device]) -> Cpu:
        """A device's source of CPU time."""

    def batch(self, device: Device, assignment: Assignment, samples: int) -> BatchCost:
        """One batch of the device half."""

    def decode_s(self, device: Device, assignment: Assignment, size: int, first: bool) -> float:
        """Turning a task's body of `size` bytes into a model. `first`: the agent builds it, too."""

    def reply_s(self, device: Device, assignment: Assignment, size: int) -> float:
        """Receiving a reply of `size` bytes and turning it into tensors."""

    def encode_s(self, device: Device, assignment: Assignment, raw: int, codec: Codec) -> float:
        """Turning tensors of `raw` bytes into a body."""

    def transfer_bytes(self, assignment: Assignment, header: Header, size: int) -> int:
        """Bytes of the frames that carry a body of `size` bytes."""

    def uplink(self, device: Device) -> LinkCost: ...

    def downlink(self, device: Device) -> LinkCost: ...

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        """One step of a server half with one upload of each of its devices."""

    def orchestrator_s(self, work: OwnWork, size: int) -> float:
        """What the orchestrator does itself, on `size` bytes where it depends on them (`decode`)."""
