"""The server of a simulated run: real server halves, with the virtual seconds that the cost model gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import torch

from edgebed.methods.base import Replies, ServerHalf
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.experiment import Simulation
from orchestrator.rounds.event_loop import now_ns
from orchestrator.training.server import ServerTrainer

StepCost = Callable[[Sequence[Assignment], Sequence[int]], float]


class SimulatedTrainer(ServerTrainer):
    """A ServerTrainer on a virtual clock: each step keeps one of `slots` workers busy for its virtual seconds.

    Args:
        step_s: gives the seconds of a step from the assignments of its devices and their samples.
        assignments: by device, those of the rounds in hand.
    """

    def __init__(
        self, accelerator: torch.device, slots: int, step_s: StepCost, assignments: Mapping[str, Assignment]
    ) -> None:
        super().__init__(accelerator, slots)
        self._free = asyncio.Semaphore(slots)
        self._step_s, self._assignments = step_s, assignments

    async def run_step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> tuple[Replies, int, int]:
        async with self._free:
            start = now_ns()
            replies = half.step(uploads)
            known = [(self._assignments[d], n) for d, n in half.worked(uploads) if d in self._assignments]
            await asyncio.sleep(self._step_s([a for a, _ in known], [n for _, n in known]))
            return replies, start, now_ns()


def slots(wanted: Simulation, devices: int) -> int:
    """Server halves that train at once. 0 in the experiment: one for each device."""
    return wanted.server_slots or devices
