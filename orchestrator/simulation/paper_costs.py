"""The cost models of the papers: DTFL eq. 5 from profiled cuts, S²FL eq. 1 from FLOPs, FedPMT from its counts.

In all of them a device's seconds are work ÷ speed and a link's are bytes ÷ rate. There are no quota periods, no latency
and no cost of encoding, and the orchestrator takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from edgebed.methods.base import CutCost
from edgebed.models.costs import size_bytes
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment, Header
from edgebed.wire.settings import Codec
from orchestrator.rounds.event_loop import OwnWork
from orchestrator.simulation.costs import BatchCost, Device, ServerTurns
from orchestrator.simulation.counts import Flops, Operations
from orchestrator.simulation.cpu import Cpu, PlainCpu
from orchestrator.simulation.link import LinkCost, wire_bytes
from orchestrator.simulation.reference import Reference


class PaperCosts:
    """The common part of the papers' cost models."""

    kind = ""
    calibrated = False
    dilation = 1.0
    reference: Reference | None = None

    def check(self, assignment: Assignment) -> None:
        pass

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        return {}

    def cpu(self, who: Callable[[], Device]) -> Cpu:
        return PlainCpu(lambda: who().limits.cpus)

    def decode_s(self, device: Device, assignment: Assignment, size: int, first: bool) -> float:
        return 0.0

    def reply_s(self, device: Device, assignment: Assignment, size: int) -> float:
        return 0.0

    def encode_s(self, device: Device, assignment: Assignment, raw: int, codec: Codec) -> float:
        return 0.0

    def transfer_bytes(self, assignment: Assignment, header: Header, size: int) -> int:
        return wire_bytes(header, size)

    def uplink(self, device: Device) -> LinkCost:
        return LinkCost(device.limits.latency_ms / 1e3, 8 / device.limits.uplink_bit_s)

    def downlink(self, device: Device) -> LinkCost:
        return LinkCost(device.limits.latency_ms / 1e3, 8 / device.limits.downlink_bit_s)

    def server_turns(self) -> ServerTurns:
        return ServerTurns()

    def orchestrator_s(self, work: OwnWork, size: int) -> float:
        return 0.0


BYTES = {"float32": 4, "float16": 2, "uint8": 1}


def cut_cost(model: StagedModel, cut: int, samples: float, codec: Codec, device_s: float, server_s: float) -> CutCost:
    """The costs of a cut with a batch of so many samples.

    Args:
        device_s, server_s: seconds of that batch on both sides.
    """
    weights, elements = model.weights(), math.prod(model.feature_shape(cut))
    return CutCost(
        cut=cut,
        model_bytes=size_bytes({name: weights[name] for name in model.names_below(cut, head=True)}),
        feature_bytes=int(samples * (elements * BYTES[codec.dtype] + 8)),
        device_s=device_s,
        server_s=server_s,
    )


class ReferenceCosts(PaperCosts):
    """DTFL: T^c = reference seconds of the cut ÷ CPUs, T^com = bytes ÷ rate, T^s = reference seconds of the server
    ÷ `server_speed`."""

    kind = "reference"

    def __init__(self, reference: Reference, server_speed: float = 1.0) -> None:
        self.reference: Reference = reference
        self._server_speed = server_speed

    def batch(self, device: Device, assignment: Assignment, samples: int) -> BatchCost:
        return self.work(assignment, samples)

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        law = self.reference.device_law(assignment)
        seconds = law.seconds(samples)
        return BatchCost(seconds * law.forward, seconds * (1 - law.forward))

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        laws = [self.reference.server_law(assignment) for assignment in assignments]
        return sum(law.seconds(count) for law, count in zip(laws, samples, strict=True)) / self._server_speed


class FlopCosts(PaperCosts):
    """S²FL eq. 1: (2|W_c| + 2pq) / R + F_c / Comp_c + F_s / Comp_s, with `device_flops` for each CPU.

    The method's own transfers are counted: weights down and up, features up, gradients down.

    Args:
        batch_size, codec: of the run, with which the cuts are profiled; 0: they are measured.
    """

    kind = "flops"

    def __init__(
        self, flops: Flops, device_flops: float, server_flops: float, batch_size: int = 0, codec: Codec | None = None
    ) -> None:
        self._flops, self._batch_size, self._codec = flops, batch_size, codec or Codec()
        self._device, self._server = device_flops, server_flops

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        return {cut: self._cut_cost(model, cut) for cut in model.cuts_with_head if self._batch_size}

    def _cut_cost(self, model: StagedModel, cut: int) -> CutCost:
        half, samples = Assignment("reference", {}, model.classes, model.input_shape, cut, "head"), self._batch_size
        device_s, server_s = self.work(half, samples).total_s, self.server_step_s([half], [samples])
        return cut_cost(model, cut, samples, self._codec, device_s, server_s)

    def batch(self, device: Device, assignment: Assignment, samples: int) -> BatchCost:
        return self.work(assignment, samples)

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        forward, backward = self._flops.device(assignment)
        return BatchCost(forward * samples / self._device, backward * samples / self._device)

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        pairs = zip(assignments, samples, strict=True)
        return sum(self._flops.server(each) * count for each, count in pairs) / self._server


class OperationCosts(PaperCosts):
    """FedPMT's complexity: the operations of its table II ÷ the operations per second of a device."""

    kind = "operations"

    def __init__(self, operations: Operations, device_flops: float) -> None:
        self._operations = operations
        self._device = device_flops

    def check(self, assignment: Assignment) -> None:
        self._operations.check(assignment)

    def batch(self, device: Device, assignment: Assignment, samples: int) -> BatchCost:
        return self.work(assignment, samples)

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        forward, backward = self._operations.batch(assignment, samples)
        return BatchCost(forward / self._device, backward / self._device)

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        for assignment in assignments:
            self.check(assignment)
        return 0.0  # there are no stages above a whole model
