"""A server with CPUs of its own: what outputs say of it, and how a simulated one is slowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
import torch

from edgebed.methods.base import Method, ServerHalf
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from orchestrator.experiment import Simulation
from orchestrator.records.words.vocabulary import server_note, threads_note
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.server import SimulatedTrainer, slots
from orchestrator.simulation.virtual import START_S, VirtualLoop
from tests.virtual import run_virtual


def test_outputs_say_what_a_dilation_does_to_the_server() -> None:
    assert server_note(1.0, None) == ""
    assert "seconds are divided by D" in server_note(4.87, None)
    assert "2 CPUs, and are slowed D times" in server_note(4.87, 2.0)


@pytest.mark.parametrize(("cpus", "at_once"), [(None, 5), (0.3, 1), (1.9, 1), (4.0, 4)])
def test_a_server_trains_one_half_for_each_whole_cpu(cpus: float | None, at_once: int) -> None:
    assert slots(Simulation(server_slots=0), 5, cpus) == at_once


class Costs(CostModel):
    """Each piece of the server's work takes some seconds."""

    def server_s(self, method: str, work: Sequence[tuple[Assignment, str, int]]) -> float:
        return sum(SECONDS[kind] for _, kind, _ in work)


SECONDS = {"make": 1.0, "first step": 3.0, "first joined step": 0.75, "step": 2.0, "joined step": 0.25, "read": 0.5}


class Nothing:
    """A server half of two devices that learns nothing."""

    devices = ("a", "b")

    def step(self, uploads: Mapping[str, Weights]) -> dict[str, Weights]:
        return {}

    def worked(self, uploads: Mapping[str, Weights]) -> list[tuple[str, int]]:
        return [("a", 8), ("b", 8)]

    def weights(self) -> Weights:
        return {}


@pytest.mark.parametrize(("cpus", "factor"), [(0.25, 4.0), (1.0, 1.0)])
def test_every_piece_of_a_simulated_servers_work_takes_its_seconds(cpus: float, factor: float) -> None:
    async def pieces(loop: VirtualLoop) -> list[float]:
        trainer, half = SimulatedTrainer(torch.device("cpu"), 1, Costs(), cpus), cast(ServerHalf, Nothing())
        made = trainer.make_halves(cast(Method, Halves()), {}, {name: assignment(name) for name in "ab"})
        ends = []
        for work in (made, trainer.run_step(half, {}), trainer.run_step(half, {}), trainer.read_weights(half)):
            await work
            ends.append(loop.time() - START_S)
        return ends

    # a half is made and read once, and a step of two devices takes a step, and what the second one adds
    assert run_virtual(pieces) == pytest.approx([1.0 * factor, 4.75 * factor, 7.0 * factor, 7.5 * factor])


class Halves:
    """A method with one half for all."""

    name = "fake"

    def server_halves(self, weights: Weights, assignments: object, accelerator: torch.device) -> list[Nothing]:
        return [Nothing()]


def assignment(device: str) -> Assignment:
    return Assignment(device, {"name": "resnet-tiny"}, 10, (1, 8, 8), 3, "head")


def test_outputs_name_profiles_with_several_cpus_and_one_thread() -> None:
    assert threads_note(4.87, {"cpu1": 1.0}) == ""
    assert "cpu2 (2 CPUs) runs one thread" in threads_note(1.0, {"cpu2": 2.0, "cpu1": 1.0})
    assert "cpu2 (2 CPUs), cpu4 (4 CPUs) run one thread" in (note := threads_note(4.87, {"cpu4": 4.0, "cpu2": 2.0}))
    assert "uses at most D CPUs" in note
    assert "the others are idle" in threads_note(1.0, {"cpu2": 2.0})
