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
from orchestrator.simulation.virtual import VirtualLoop
from tests.virtual import run_virtual


def test_outputs_say_what_a_dilation_does_to_the_server() -> None:
    assert server_note(1.0, None) == ""
    assert "a large dilation flatters it" in server_note(4.87, None)
    assert "2 CPUs, dilated" in server_note(4.87, 2.0)


@pytest.mark.parametrize(("cpus", "at_once"), [(None, 5), (0.3, 1), (1.9, 1), (4.0, 4)])
def test_a_server_trains_one_half_for_each_whole_cpu(cpus: float | None, at_once: int) -> None:
    assert slots(Simulation(server_slots=0), 5, cpus) == at_once


class Costs(PaperCosts):
    """A step takes two seconds."""

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        return 2.0


class Nothing:
    """A server half that learns nothing."""

    def step(self, uploads: Mapping[str, Weights]) -> dict[str, Weights]:
        return {}

    def worked(self, uploads: Mapping[str, Weights]) -> list[tuple[str, int]]:
        return []


@pytest.mark.parametrize(("cpus", "seconds"), [(0.25, 8.0), (None, 2.0), (2.0, 2.0)])  # each slot has a whole CPU
def test_a_simulated_server_with_a_quarter_of_a_cpu_takes_four_times_as_long(
    cpus: float | None, seconds: float
) -> None:
    async def step(loop: VirtualLoop) -> float:
        trainer = SimulatedTrainer(torch.device("cpu"), 1, Costs(), cpus)
        _, start_ns, end_ns = await trainer.run_step(cast(ServerHalf, Nothing()), {})
        return (end_ns - start_ns) / 1e9

    assert run_virtual(step) == pytest.approx(seconds)


def test_outputs_name_profiles_that_have_one_thread_left() -> None:
    cpus = {"cpu4": 4.0, "cpu2": 2.0, "cpu1": 1.0}
    assert threads_note(1.0, cpus) == ""
    assert threads_note(4.87, {"cpu1": 1.0}) == ""
    assert "cpu2 (2 CPUs) runs one thread" in threads_note(1.5, cpus)
    assert "cpu2 (2 CPUs), cpu4 (4 CPUs) run one thread" in threads_note(4.87, cpus)
