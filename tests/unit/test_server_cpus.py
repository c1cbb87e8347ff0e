"""A server with CPUs of its own: what outputs say of it, and how a simulated one is slowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from orchestrator.experiment import Simulation
from orchestrator.records.words.vocabulary import server_note, threads_note
from orchestrator.simulation.costs import CostModel, Device
from orchestrator.simulation.cpu import Cpu, PlainCpu
from orchestrator.simulation.server import server_cpu, slots
from orchestrator.simulation.virtual import START_S, VirtualLoop
from tests.virtual import run_virtual


def test_outputs_say_what_a_dilation_does_to_the_server() -> None:
    assert server_note(1.0, None) == ""
    assert "a large dilation flatters it" in server_note(4.87, None)
    assert "2 CPUs, dilated" in server_note(4.87, 2.0)


@pytest.mark.parametrize(("cpus", "at_once"), [(None, 5), (0.3, 1), (1.9, 1), (4.0, 4)])
def test_a_server_trains_one_half_for_each_whole_cpu(cpus: float | None, at_once: int) -> None:
    assert slots(Simulation(server_slots=0), 5, cpus) == at_once


class Costs:
    """A cost model that divides CPU seconds by CPUs."""

    def cpu(self, who: Callable[[], Device]) -> PlainCpu:
        return PlainCpu(lambda: who().limits.cpus)


async def _wall_s(cpu: Cpu, seconds: float, loop: VirtualLoop) -> float:
    start = loop.time()
    await cpu.use(seconds)
    return loop.time() - start


def test_a_simulated_server_with_a_quarter_of_a_cpu_takes_four_times_as_long() -> None:
    costs = cast(CostModel, Costs())
    quarter = server_cpu(costs, 0.25)
    assert quarter is not None
    assert run_virtual(partial(_wall_s, quarter, 2.0)) == pytest.approx(8.0)
    assert server_cpu(costs, None) is None
    assert server_cpu(costs, 2.0) is None  # each slot has a whole CPU


def test_outputs_name_profiles_that_have_one_thread_left() -> None:
    cpus = {"cpu4": 4.0, "cpu2": 2.0, "cpu1": 1.0}
    assert threads_note(1.0, cpus) == ""
    assert threads_note(4.87, {"cpu1": 1.0}) == ""
    assert "cpu2 (2 CPUs) runs one thread" in threads_note(1.5, cpus)
    assert "cpu2 (2 CPUs), cpu4 (4 CPUs) run one thread" in threads_note(4.87, cpus)


def test_callers_share_a_device_and_urgent_work_goes_first() -> None:
    async def main(loop: VirtualLoop) -> list[float]:
        cpu, ends = PlainCpu(lambda: 0.5), list[float]()

        async def caller(after_s: float, seconds: float, urgent: bool) -> None:
            await asyncio.sleep(after_s)
            await cpu.use(seconds, urgent=urgent)
            ends.append(loop.time() - START_S)

        await asyncio.gather(caller(0.0, 1.0, False), caller(1.0, 0.5, True), caller(1.0, 0.5, True))
        return ends

    assert run_virtual(main) == pytest.approx([3.0, 3.0, 4.0])
