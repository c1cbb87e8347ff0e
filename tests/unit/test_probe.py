"""The device's side of the calibration, without a fleet: what holds on any host, whatever its speed."""

from __future__ import annotations

import pytest

from edge_agent.probe import run_probe
from edge_agent.software_throttle import SoftwareThrottle
from edgebed.pacing import Pacer
from edgebed.wire.messages import Assignment, Probe, ProbeResult


def probe(kind: str, cpus: float = 0.0, **more: float | Assignment) -> ProbeResult:
    pacer = Pacer()
    pacer.set(cpus)
    asked = Probe(id="0" * 32, kind=kind, period_s=0.002, times=3, **more)  # type: ignore[arg-type]
    return run_probe(asked, "d", SoftwareThrottle(), pacer)


@pytest.mark.parametrize("kind", ["grain", "grain step"])
def test_a_paced_piece_of_work_never_ends_before_its_cpu_time_over_cpus(kind: str) -> None:
    found = probe(kind, cpus=0.5, seconds=0.002)
    assert found.error == ""
    assert found.cpu_s > 0
    assert found.wall_s >= 0.98 * found.cpu_s / 0.5


def test_a_piece_of_work_uses_at_least_the_cpu_time_that_was_asked_for() -> None:
    assert probe("grain", seconds=0.003).cpu_s >= 0.003


@pytest.mark.parametrize("kind", ["busy", "step", "real step"])
def test_a_busy_thread_does_work_and_knows_its_runs(kind: str) -> None:
    found = probe(kind, seconds=0.02)
    assert found.error == ""
    assert found.units > 0
    assert len(found.runs_s) == len(found.gaps_s)
    assert all(length >= 0.001 for length in found.gaps_s)


def test_an_unknown_probe_is_an_error_and_no_exception() -> None:
    assert "no probe" in probe("dance").error


def test_batches_of_a_task_are_timed_as_its_pieces_and_a_slow_device_does_two_at_least() -> None:
    task = Assignment("d", {"name": "fcnn"}, 10, (1, 8, 8), 5, "output", batch_size=4, steps=10**6)
    short = probe("task", seconds=0.0, assignment=task)
    assert short.error == ""
    assert {each.kind: (each.size, each.count) for each in short.work if "batch" in each.kind} == {
        "first batch": (4, 1),
        "batch": (4, 1),
    }
    longer = next(each for each in probe("task", seconds=0.2, assignment=task).work if each.kind == "batch")
    assert longer.count > 1
    assert longer.cpu_s > 0
    assert len(longer.each_us) == min(longer.count, 64)


def test_a_task_that_is_not_said_or_cannot_be_done_is_an_error_and_no_crash() -> None:
    assert "needs an assignment" in probe("task").error
    strange = Assignment("d", {"name": "no-such-model"}, 10, (1, 8, 8), 5, "output", batch_size=4)
    assert "no-such-model" in probe("task", assignment=strange).error
