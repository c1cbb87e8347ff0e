"""Server halves in the trainer's process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from edgebed.errors import EdgebedError, RunError
from edgebed.methods.base import Method, ServerHalf
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.records.host_records import Spent
from orchestrator.training import orders as o
from orchestrator.training.copies import copy_of
from orchestrator.training.process import TrainerProcess, expect
from orchestrator.training.server import HalfTrainer, Step


class RemoteHalf(ServerHalf):
    """A server half in the trainer's process."""

    def __init__(self, number: int, devices: Sequence[str]) -> None:
        self.number, self.devices = number, tuple(devices)


class RemoteTrainer(HalfTrainer):
    """A server trainer for one round at a time, whose halves are in the trainer's process."""

    def __init__(self, process: TrainerProcess) -> None:
        super().__init__()
        self._process, self._number = process, process.new_number()

    async def make_halves(
        self, method: Method, weights: Weights, assignments: Mapping[str, Assignment]
    ) -> list[ServerHalf]:
        """Made by a copy of the method, so what it stores in itself meanwhile is lost."""
        if type(method).server_halves is Method.server_halves:
            return []
        context = await self._process.keep_context(method.context)
        copy = await asyncio.to_thread(copy_of, (method, dict(assignments)), method.context)
        held_to = self._process.held_to
        costs = {} if held_to is None else held_to.halves(method.name, assignments)
        order = o.MakeHalves(self._number, context, costs)
        answer = await self._process.call(order, {o.COPY: {o.COPY: copy}, "weights": weights})
        self.made = answer.head.spent
        return [RemoteHalf(number, each) for number, each in enumerate(expect(answer, o.Halves).devices)]

    async def run_step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Step:
        answer = await self._process.call(o.TakeStep(self._number, number_of(half)), uploads)
        step = expect(answer, o.Stepped)
        replies: dict[str, Weights | EdgebedError] = dict(answer.groups)
        replies |= {device: problem.error() for device, problem in step.refused.items()}
        return replies, step.start_ns, step.end_ns, answer.head.spent

    async def read_weights(self, half: ServerHalf) -> tuple[Weights, Spent | None]:
        answer = await self._process.call(o.ReadWeights(self._number, number_of(half)))
        return answer.groups["weights"], answer.head.spent

    async def close(self) -> None:
        await super().close()
        with contextlib.suppress(RunError):  # a process that has ended holds no halves
            await self._process.call(o.Forget(self._number))


def number_of(half: ServerHalf) -> int:
    assert isinstance(half, RemoteHalf)
    return half.number
