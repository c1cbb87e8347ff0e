"""The interface of cost models: the simulated fleet asks them how long everything takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from edgebed.methods.base import CutCost
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment, Header
from edgebed.wire.settings import Codec
from orchestrator.fleet.spec.profile import Limits
from orchestrator.rounds.event_loop import OwnWork
from orchestrator.simulation.cpu import Cpu
from orchestrator.simulation.link import LinkCost
from orchestrator.simulation.reference import Reference


class Device(msgspec.Struct, frozen=True):
    """A device that works: its profile's name and its limits in force (after dilation)."""

    name: str
    profile: str
    limits: Limits


class BatchCost(msgspec.Struct, frozen=True):
    """CPU seconds of one batch: until the features are ready, and the rest (head, backward, step)."""

    forward_s: float
    rest_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.rest_s


class ServerTurns(msgspec.Struct, frozen=True):
    """Seconds of the trainer besides its steps.

    Attributes:
        half_s: to make one server half at the start of a round.
        turn_s: between the end of a step and the start of one that waited for it.
    """

    half_s: float = 0.0
    turn_s: float = 0.0


class CostModel(Protocol):
    """Costs on a fleet with the dilation of the run. Work of devices is given in CPU seconds, which their `cpu` turns
    into time. Everything else is given in virtual seconds."""

    kind: str
    """A description for the records: which model, and from what."""
    calibrated: bool
    """Whether the costs were measured in real runs, or on the host for which they are made."""
    dilation: float
    """The dilation of the fleet on which the costs were measured; 1 if they were not measured on a fleet."""

    @property
    def reference(self) -> Reference | None:
        """What measures laws during the simulation, if anything does."""

    def check(self, assignment: Assignment) -> None:
        """Raises UsageError for work whose costs the model does not know."""

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        """Costs of the cuts, for methods that plan with them. Empty: they are measured on this host."""

    def cpu(self, who: Callable[[], Device]) -> Cpu:
        """A device's source of CPU time."""

    def batch(self, device: Device, assignment: Assignment, samples: int) -> BatchCost:
        """One batch of the device half."""

    def decode_s(self, device: Device, assignment: Assignment, size: int, first: bool) -> float:
        """Seconds to turn a task's body of `size` bytes into a model. `first`: the agent must also build the model."""

    def reply_s(self, device: Device, assignment: Assignment, size: int) -> float:
        """Seconds to receive a reply of `size` bytes and turn it into tensors."""

    def encode_s(self, device: Device, assignment: Assignment, raw: int, codec: Codec) -> float:
        """Seconds to turn tensors of `raw` bytes into a body."""

    def transfer_bytes(self, assignment: Assignment, header: Header, size: int) -> int:
        """Bytes of the frames that carry a body of `size` bytes."""

    def uplink(self, device: Device) -> LinkCost: ...

    def downlink(self, device: Device) -> LinkCost: ...

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        """Seconds of one step of a server half, with one upload from each of its devices."""

    def server_turns(self) -> ServerTurns:
        """What the trainer takes besides its steps."""

    def orchestrator_s(self, work: OwnWork, size: int) -> float:
        """Seconds of the orchestrator's own work, for `size` bytes if the work depends on them (`decode`)."""
