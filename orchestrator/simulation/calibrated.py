"""The cost model of a calibration: times as measured on a real fleet, scaled by the reference for other work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from edgebed.methods.base import CutCost
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment, Header
from edgebed.wire.settings import Codec
from orchestrator.experiment import Grain
from orchestrator.rounds.event_loop import OwnWork
from orchestrator.simulation.calibration import Calibration, LinkFit, ProfileCosts
from orchestrator.simulation.costs import BatchCost, Device, ServerTurns
from orchestrator.simulation.cpu import Cpu, PlainCpu, QuotaCpu
from orchestrator.simulation.link import LinkCost, wire_bytes
from orchestrator.simulation.reference import Reference, server_key, work_key

OF_WEIGHTS = ("merge", "evaluation", "checkpoint")
"""The orchestrator's work that grows with the model. The costs of a host are scaled by the bytes of the weights."""


class CalibratedCosts:
    """Costs from a calibration file. The costs of a host were measured with another model: what grows with the model
    (building it, merging, evaluation, checkpoints) is scaled by the bytes of its weights.

    Args:
        calibration: of the same model and data. Laws that are missing are measured on this host.
        now_s: the virtual clock.
        grain: of the CPU quotas. With `pacing`, work takes its CPU time ÷ CPUs.
    """

    calibrated = True

    def __init__(
        self, calibration: Calibration, reference: Reference, now_s: Callable[[], float], grain: Grain = "quota"
    ) -> None:
        self._calibration, self.reference, self._now_s, self._grain = calibration, reference, now_s, grain
        source = f"the costs of host {calibration.host}" if calibration.host else ", ".join(calibration.runs)
        self.kind = f"calibrated from {source}"
        self.dilation = 1.0 if calibration.host else calibration.dilation
        self._size = reference.model_bytes / calibration.model_bytes if calibration.host else 1.0

    def check(self, assignment: Assignment) -> None:
        pass

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        known = self._calibration.cuts
        return dict(known) if set(known) >= set(model.cuts_with_head) else {}

    def cpu(self, who: Callable[[], Device]) -> Cpu:
        if self._grain == "pacing":
            return PlainCpu(lambda: who().limits.cpus)
        phase = int.from_bytes(hashlib.sha256(who().name.encode()).digest()[:4], "big") / 2**32
        period_s = who().limits.period_us / 1e6
        return QuotaCpu(lambda: who().limits.cpus, lambda: who().limits.threads, self._now_s, phase, period_s)

    def batch(self, device: Device, assignment: Assignment, samples: int) -> BatchCost:
        law = self.reference.device_law(assignment)
        uploads = "features" in assignment.uploads
        seconds = self._calibration.batch_s(device.profile, work_key(assignment), law.seconds(samples), uploads=uploads)
        return BatchCost(seconds * law.forward, seconds * (1 - law.forward))

    def decode_s(self, device: Device, assignment: Assignment, size: int, first: bool) -> float:
        costs = self._calibration.of(device.profile)
        building = self._size * costs.build_cpu_s if first else self._narrow_s(costs, assignment)
        return costs.decode_cpu_s + size * costs.decode_byte_cpu_s + building

    def _narrow_s(self, costs: ProfileCosts, assignment: Assignment) -> float:
        """CPU seconds to cut a narrow model out of the whole one."""
        if not assignment.keep:
            return 0.0
        if costs.narrow_cpu_s is not None:
            return self._size * costs.narrow_cpu_s
        return costs.other * self.reference.narrow_s(assignment.keep)

    def reply_s(self, device: Device, assignment: Assignment, size: int) -> float:
        return self._calibration.of(device.profile).reply_cpu_s

    def encode_s(self, device: Device, assignment: Assignment, raw: int, codec: Codec) -> float:
        return self.reference.encode_law(codec).seconds(raw)

    def transfer_bytes(self, assignment: Assignment, header: Header, size: int) -> int:
        return wire_bytes(header, size)

    def uplink(self, device: Device) -> LinkCost:
        costs = self._calibration.of(device.profile)
        link = _link(costs.uplink, device.limits.uplink_bit_s)
        return msgspec.structs.replace(
            link, cpu_s=costs.upload_cpu_s, update_cpu_s=costs.update_cpu_s, byte_cpu_s=costs.send_byte_cpu_s
        )

    def downlink(self, device: Device) -> LinkCost:
        return _link(self._calibration.of(device.profile).downlink, device.limits.downlink_bit_s)

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        total = sum(
            self._calibration.server_s(server_key(work), self.reference.server_law(work).seconds(count))
            for work, count in zip(assignments, samples, strict=True)
        )
        return total * (self._calibration.server_group if len(assignments) > 1 else 1.0)

    def server_turns(self) -> ServerTurns:
        return self._calibration.turns

    def orchestrator_s(self, work: OwnWork, size: int) -> float:
        if work == "decode":
            return self._calibration.receive.seconds(size)
        if work == "encode":  # of a reply: without one and without uploads, as long as to take in an update
            return self._calibration.orchestrator.get(work, self._calibration.receive.fixed_s)
        seconds = self._calibration.orchestrator.get(work, 0.0)
        return seconds * self._size if work in OF_WEIGHTS else seconds


def _link(fit: LinkFit, rate_bit_s: int) -> LinkCost:
    return LinkCost(fit.latency_s, fit.stretch * 8 / rate_bit_s, least_s=fit.least_s)
