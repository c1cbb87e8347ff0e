"""The server of a simulated run: real server halves, with the virtual seconds that the cost model gives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import torch

from edgebed.methods.base import Method, Replies, ServerHalf
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.clock import now_ns
from orchestrator.experiment import Simulation
from orchestrator.records.host_records import Spent
from orchestrator.simulation.costs import CostModel
from orchestrator.training.server import ServerTrainer, Step, step_pieces


class SimulatedTrainer(ServerTrainer):
    """A ServerTrainer on a virtual clock: each piece of work keeps one of `slots` workers busy for its virtual seconds.

    Args:
        costs: gives the seconds.
        cpus: of each slot.
        charged: whether the server's work takes time.
    """

    def __init__(
        self, accelerator: torch.device, slots: int, costs: CostModel, cpus: float = 1.0, charged: bool = True
    ) -> None:
        super().__init__(accelerator, slots)
        self._free = asyncio.Semaphore(slots)
        self._costs, self._cpus, self._charged = costs, cpus, charged
        self._method = ""
        self.assignments: Mapping[str, Assignment] = {}
        self._begun: set[tuple[str, ...]] = set()  # devices of the halves that have made a step

    async def make_halves(
        self, method: Method, weights: Weights, assignments: Mapping[str, Assignment]
    ) -> list[ServerHalf]:
        self._method, self.assignments, self._begun = method.name, assignments, set()
        halves = method.server_halves(weights, assignments, self.accelerator)
        async with self._free:
            await asyncio.sleep(self._seconds([(half.devices[0], "make", 1) for half in halves]))
        return halves

    async def run_step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Step:
        async with self._free:
            start, devices = now_ns(), tuple(half.devices)
            replies = self.step(half, uploads)
            kind = "step" if devices in self._begun else "first step"
            self._begun.add(devices)
            await asyncio.sleep(self._seconds(step_pieces(kind, half.worked(uploads))))
            return replies, start, now_ns(), None

    def step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Replies:
        """The work of a step, which takes no virtual time itself."""
        return half.step(uploads)

    async def read_weights(self, half: ServerHalf) -> tuple[Weights, Spent | None]:
        weights = half.weights()
        if seconds := self._seconds([(half.devices[0], "read", 1)]):
            async with self._free:
                await asyncio.sleep(seconds)
        return weights, None

    def _seconds(self, pieces: Iterable[tuple[str, str, int]]) -> float:
        """Virtual seconds of pieces together: device, kind and size of each."""
        work = [(self.assignments[device], kind, size) for device, kind, size in pieces if device in self.assignments]
        return self._costs.server_s(self._method, work) / self._cpus if self._charged else 0.0


def slots(wanted: Simulation, devices: int, cpus: float | None) -> int:
    """Server halves that train at once: one for each whole CPU of a server that has CPUs of its own (before
    dilation), else as the experiment says. 0 in the experiment: one for each device."""
    return max(1, int(cpus)) if cpus is not None else wanted.server_slots or devices
