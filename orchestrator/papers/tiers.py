"""Table 2 of the DTFL paper on a real device: the time of every tier's device half at several CPU quotas.

Uses one device, no uploads within batches, and the same batches for every tier. The quota changes while the device
runs. Each repeat measures all tiers in turn, so that slow changes of a shared host affect all tiers alike.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from edgebed.errors import FleetError, RunError, TransferRefused
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.models.staged import StagedModel
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Codec, Failure, Header, Optimizer, Report, Task, Update
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.profile import ProfileSpec

PAPER_DEVICE = (1.00, 1.63, 2.16, 2.68, 3.30, 3.81)
PAPER_SERVER = (1.00, 0.82, 0.65, 0.51, 0.33, 0.20)
"""DTFL, table 2: ResNet-56, M = 6, relative to tier 1."""


class Measurement(msgspec.Struct, frozen=True):
    """Seconds per batch of one tier's device half at one quota, over the repeats."""

    quota: float
    tier: int
    cut: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class OneTask:
    """Replaces the round driver: runs one task at a time."""

    def __init__(self, controller: FleetController) -> None:
        self._controller = controller
        self._waiting: dict[str, asyncio.Future[Report]] = {}

    async def run(self, device: str, assignment: Assignment, body: bytes | bytearray) -> Report:
        """Send the assignment and wait for its update. Raises RunError if the device fails or is lost."""
        task = Task(f"tiers/{device}/{time.time_ns():x}", "tiers", 0, assignment)
        future: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._waiting[device] = future
        await self._controller.endpoint.send(device, task, body)
        return await future

    def admit(self, peer: str, header: Header, size: int) -> None:
        if not isinstance(header, Update | Failure):
            raise TransferRefused("only updates are accepted")

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        future = self._waiting.get(inbound.peer)
        if future is None or future.done():
            return
        match inbound.header:
            case Update(_, _, report):
                future.set_result(report)
            case Failure(device, _, why):
                future.set_exception(RunError(f"{device} could not do the task: {why}", hint="see the cause named"))

    def progress(self, device: str) -> None:
        pass

    def heard(self, device: str, moved: bool, task: str, phase: str) -> None:
        pass

    def lost(self, device: str, why: str) -> None:
        future = self._waiting.get(device)
        if future is not None and not future.done():
            future.set_exception(FleetError(f"{device}: {why}", hint="give it more memory, or a smaller batch"))


async def measure_tiers(
    controller: FleetController,
    model: StagedModel,
    spec: Mapping[str, object],
    *,
    cuts: Sequence[int],
    quotas: Sequence[float],
    batch_size: int,
    repeats: int,
    on_task: Callable[[float, int], None],
) -> list[Measurement]:
    """Measure seconds per batch for every quota and cut, on the first device of the fleet."""
    device, runner = controller.names[0], OneTask(controller)
    controller.attach(None, runner)
    results = []
    for quota in quotas:
        await controller.change(device, _profile(controller, device, quota))
        times: dict[int, list[float]] = {cut: [] for cut in cuts}
        for repeat in range(-1, repeats):  # the first pass is a warm-up: new shapes, new memory
            for cut in cuts:
                on_task(quota, cut)
                report = await runner.run(device, _assignment(device, model, spec, cut, batch_size), _body(model, cut))
                if repeat >= 0:
                    times[cut].append(report.compute_s / report.batches)
        results += [Measurement(quota, i + 1, cut, tuple(times[cut])) for i, cut in enumerate(cuts)]
    return results


def _profile(controller: FleetController, device: str, quota: float) -> ProfileSpec:
    profile = controller.profiles[device]
    limits = msgspec.structs.replace(profile.limits, cpus=quota * controller.dilation)
    return msgspec.structs.replace(profile, name=f"cpu{quota:g}", limits=limits)


def _assignment(device: str, model: StagedModel, spec: Mapping[str, object], cut: int, batch_size: int) -> Assignment:
    return Assignment(
        device=device,
        model=dict(spec),
        classes=model.classes,
        input_shape=model.input_shape,
        stages=cut,
        objective="head",
        uploads=("weights",),
        batch_size=batch_size,
        optimizer=Optimizer(),
    )


def _body(model: StagedModel, cut: int) -> bytes | bytearray:
    weights = model.weights()
    return encode_tensors({name: weights[name] for name in model.names_below(cut, head=True)}, Codec())


def normalised(measurements: Sequence[Measurement]) -> dict[float, list[float]]:
    """For each quota, each tier's median time divided by tier 1's."""
    quotas = dict.fromkeys(m.quota for m in measurements)
    rows = {quota: [m for m in measurements if m.quota == quota] for quota in quotas}
    return {quota: [m.median / row[0].median for m in row] for quota, row in rows.items()}


def spread(table: Mapping[float, Sequence[float]]) -> list[tuple[float, float]]:
    """For each tier, mean and standard deviation over the quotas, as in the paper."""
    return [
        (statistics.mean(column), statistics.stdev(column) if len(column) > 1 else 0.0)
        for column in zip(*table.values(), strict=True)
    ]
