"""Measures one device of a standing fleet as it is: steps of training, its link, its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from edgebed.errors import CalibrationError
from edgebed.link.probe_server import ProbeServer
from edgebed.models.staged import StagedModel
from edgebed.wire.frames import WIRE_SHARE
from orchestrator.calibration.probing import move
from orchestrator.fleet.control.controller import FleetController
from orchestrator.look_alike.figures import LinkFigures, Step
from orchestrator.runs.one_task import OneTask, half, weights_of

FIRST_STEPS, MOST_STEPS = 3, 10_000

LINK_S = 3.0
"""Seconds of a measurement of a rate."""

FIRST_BYTES, MOST_BYTES = 256 << 10, 256 << 20

PINGS = 40


class Job(msgspec.Struct, frozen=True):
    """What devices train while they are measured: a model, as built and as spec, at some cuts."""

    model: StagedModel
    spec: Mapping[str, object]
    cuts: Sequence[int]
    batch_size: int
    # seconds of a measurement of steps: by default 40 periods of a quota, so that where in a period it begins, which
    # changes it by up to 80 ms, hardly counts
    steps_s: float = 4.0
    repeats: int = 3  # measurements of each cut, of which the median counts

    def __str__(self) -> str:
        return f"{self.spec['name']} in batches of {self.batch_size}, {', '.join(map(str, self.cuts))} stages"


class Bench:
    """One device. `peer`: listens at the address at which the device reaches this host."""

    def __init__(self, controller: FleetController, device: str, peer: ProbeServer, job: Job) -> None:
        self._controller, self._device, self._peer, self._job = controller, device, peer, job
        self._runner = OneTask(controller)
        self._count: dict[int, int] = {}

    async def step(self, cut: int) -> Step:
        """Mean over as many steps as take `steps_s`. Raises RunError, FleetError."""
        if cut not in self._count:
            await self._steps(cut, FIRST_STEPS)  # new shapes, new memory
            first = await self._steps(cut, FIRST_STEPS)
            self.expect(cut, first.wall_s)
        return await self._steps(cut, self._count[cut])

    def expect(self, cut: int, wall_s: float) -> None:
        """A step of this cut takes so long now."""
        self._count[cut] = min(MOST_STEPS, max(FIRST_STEPS, math.ceil(self._job.steps_s / wall_s)))

    async def _steps(self, cut: int, steps: int) -> Step:
        job = self._job
        order = half(self._device, job.model, job.spec, cut, job.batch_size, steps)
        report = await self._runner.run(self._device, order, weights_of(job.model, cut))
        return Step(report.compute_s / report.batches, report.compute_cpu_s / report.batches, report.memory_mib)

    async def link(self) -> LinkFigures:
        """Raises CalibrationError."""
        latency_ms = await self.latency_ms()
        return LinkFigures(await self._rate("upload"), await self._rate("download"), latency_ms)

    async def latency_ms(self) -> float:
        clock = await self._controller.membership.measure_clock(self._device, PINGS)
        return clock.uncertainty_ns / 1e6

    async def _rate(self, kind: str) -> float:
        """Bits per second on the wire, of one connection, as a run has one. The first transfer only tells how large
        the second should be."""
        rate = await self._move(kind, FIRST_BYTES, 60.0)
        size = min(MOST_BYTES, max(FIRST_BYTES, int(rate / 8 * WIRE_SHARE * LINK_S)))
        return await self._move(kind, size, size * 8 / rate)

    async def _move(self, kind: str, size: int, seconds: float) -> float:
        host = self._controller.backend.host_of(self._device)
        moved = await move(self._controller.membership, self._peer, self._device, host, kind, size, 1, seconds)
        if moved.error or moved.seconds <= 0 or moved.payload <= 0:
            raise CalibrationError(
                f"the {kind} of {size} bytes with {self._device} could not be measured: {moved.error or 'no time'}",
                hint="a firewall between board and host? The board must reach any port of this host; then try again",
            )
        return moved.payload * 8 / WIRE_SHARE / moved.seconds
