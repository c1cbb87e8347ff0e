"""Single tasks outside any run, to measure how long a device takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from edgebed.errors import FleetError, RunError, TransferRefused
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.models.learning import task_at
from edgebed.models.staged import StagedModel
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Failure, Header, Report, Task, Update
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.fleet.control.controller import FleetController


class OneTask:
    """Runs one task at a time: the `Driver` of its device meanwhile (`RunFleet.driven`)."""

    def __init__(self, controller: FleetController) -> None:
        self._controller = controller
        self._waiting: dict[str, asyncio.Future[Report]] = {}

    async def run(self, device: str, assignment: Assignment, body: bytes | bytearray) -> Report:
        """Send the assignment and wait for its update. Raises RunError if the device fails or is lost."""
        task = Task(f"alone/{device}/{time.time_ns():x}", "alone", 0, assignment)
        future: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._waiting[device] = future
        with self._controller.driven([device], self):
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


def half(
    device: str, model: StagedModel, spec: Mapping[str, object], cut: int, batch_size: int, steps: int = 0
) -> Assignment:
    """The device half at a cut, with its head and without uploads in between. `steps`: 0 for one pass over the data."""
    return task_at(
        device,
        dict(spec),
        model.task,
        cut,
        "head",
        uploads=("weights",),
        batch_size=batch_size,
        steps=steps,
        optimizer=Optimizer(),
    )


def weights_of(model: StagedModel, cut: int) -> bytes | bytearray:
    """What a device needs for its half, as it is sent."""
    weights = model.weights()
    return encode_tensors({name: weights[name] for name in model.names_below(cut, head=True)}, Codec())
