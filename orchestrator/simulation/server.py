"""The server of a simulated run: real server halves, with the virtual seconds that the cost model gives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import torch

from edgebed.methods.base import Method, Replies, ServerHalf
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.clock import now_ns
from orchestrator.experiment import Simulation
from orchestrator.fleet.spec.profile import Limits
from orchestrator.rounds.event_loop import in_thread
from orchestrator.simulation.costs import CostModel, Device
from orchestrator.simulation.cpu import Cpu
from orchestrator.training.server import ServerTrainer


class SimulatedTrainer(ServerTrainer):
    """A ServerTrainer on a virtual clock: each step keeps one of `slots` workers busy for its virtual seconds.

    Args:
        costs: gives the seconds of steps and turns.
        assignments: by device, those of the rounds in hand.
        cpu: gives a server with less than one CPU its time. None: steps run at full speed.
        charged: whether steps take time.
    """

    def __init__(
        self,
        accelerator: torch.device,
        slots: int,
        costs: CostModel,
        assignments: Mapping[str, Assignment],
        cpu: Cpu | None = None,
        charged: bool = True,
    ) -> None:
        super().__init__(accelerator, slots)
        self._free = asyncio.Semaphore(slots)
        self._costs, self.assignments, self._cpu, self._charged = costs, assignments, cpu, charged
        self._turns = costs.server_turns()

    async def make_halves(
        self, method: Method, weights: Weights, assignments: Mapping[str, Assignment]
    ) -> list[ServerHalf]:
        halves = await in_thread("server_halves", method.server_halves, weights, assignments, self.accelerator)
        await asyncio.sleep(self._turns.half_s * len(halves))
        return halves

    async def run_step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> tuple[Replies, int, int]:
        async with self._turn():
            start = now_ns()
            replies = self.step(half, uploads)
            known = [(self.assignments[d], n) for d, n in half.worked(uploads) if d in self.assignments]
            seconds = self._costs.server_step_s([a for a, _ in known], [n for _, n in known]) if self._charged else 0.0
            await (asyncio.sleep(seconds) if self._cpu is None else self._cpu.use(seconds))
            return replies, start, now_ns()

    def step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Replies:
        """The work of a step, which takes no virtual time itself."""
        return half.step(uploads)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of the slots; the next step gets it a little after this one has ended."""
        await self._free.acquire()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(self._turns.turn_s, self._free.release)


def slots(wanted: Simulation, devices: int, cpus: float | None) -> int:
    """Server halves that train at once: one for each whole CPU of a server that has CPUs of its own (after dilation),
    else as the experiment says. 0 in the experiment: one for each device."""
    return max(1, int(cpus)) if cpus is not None else wanted.server_slots or devices


def server_cpu(costs: CostModel, cpus: float | None) -> Cpu | None:
    """The CPU time of a server with `cpus` of its own, after dilation. None: its steps run at full speed."""
    if cpus is None or cpus >= 1:
        return None
    server = Device("server", "server", Limits(cpus, 0, 0, 0))
    return costs.cpu(lambda: server)
