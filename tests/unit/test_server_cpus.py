"""A server with CPUs of its own: what outputs say of it, and how a simulated one is slowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
import torch

from edgebed.methods.base import ServerHalf
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.experiment import Simulation
from orchestrator.records.words.vocabulary import server_note, threads_note
from orchestrator.simulation.paper_costs import PaperCosts
from orchestrator.simulation.server import SimulatedTrainer, slots
from orchestrator.simulation.virtual import START_S, VirtualLoop
from tests.virtual import run_virtual


def test_outputs_say_what_a_dilation_does_to_the_server() -> None:
    assert server_note(1.0, None) == ""
    assert "a large dilation flatters it" in server_note(4.87, None)
    assert "2 CPUs, dilated" in server_note(4.87, 2.0)


@pytest.mark.parametrize(("cpus", "at_once"), [(None, 5), (0.3, 1), (1.9, 1), (4.0, 4)])
def test_a_server_trains_one_half_for_each_whole_cpu(cpus: float | None, at_once: int) -> None:
    assert slots(Simulation(server_slots=0), 5, cpus) == at_once


class Costs(PaperCosts):
    """Each piece of the server's work takes some seconds."""

    def server_s(self, method: str, kind: str, work: Sequence[tuple[Assignment, int]]) -> float:
        return {"make": 1.0, "first step": 3.0, "step": 2.0, "read": 0.5}[kind]


class Nothing:
    """A server half that learns nothing."""

    devices = ("a",)

    def step(self, uploads: Mapping[str, Weights]) -> dict[str, Weights]:
        return {}

    def worked(self, uploads: Mapping[str, Weights]) -> list[tuple[str, int]]:
        return []

    def weights(self) -> Weights:
        return {}


@pytest.mark.parametrize(("cpus", "factor"), [(0.25, 4.0), (1.0, 1.0)])
def test_every_piece_of_a_simulated_servers_work_takes_its_seconds(cpus: float, factor: float) -> None:
    async def pieces(loop: VirtualLoop) -> list[float]:
        trainer, half = SimulatedTrainer(torch.device("cpu"), 1, Costs(), cpus), cast(ServerHalf, Nothing())
        ends = []
        for work in (trainer.run_step(half, {}), trainer.run_step(half, {}), trainer.read_weights(half)):
            await work
            ends.append(loop.time() - START_S)
        return ends

    assert run_virtual(pieces) == pytest.approx([3.0 * factor, 5.0 * factor, 5.5 * factor])


def test_outputs_name_profiles_that_have_one_thread_left() -> None:
    cpus = {"cpu4": 4.0, "cpu2": 2.0, "cpu1": 1.0}
    assert threads_note(1.0, cpus) == ""
    assert threads_note(4.87, {"cpu1": 1.0}) == ""
    assert "cpu2 (2 CPUs) runs one thread" in threads_note(1.5, cpus)
    assert "cpu2 (2 CPUs), cpu4 (4 CPUs) run one thread" in threads_note(4.87, cpus)
