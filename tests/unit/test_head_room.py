"""What devices need of a host to keep a reference's time: measured batches, ceilings, dilation, threads, yardsticks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from edgebed.errors import CalibrationError, CapacityError, UsageError
from edgebed.wire.messages import Assignment, Cost, Probe, ProbeResult
from edgebed.wire.piece_times import PieceTimes
from orchestrator.calibration.head_room import Yardstick, measure_needs, needs, ratios
from orchestrator.fleet.host.reference_loop import PARTS, times_of
from orchestrator.fleet.spec.capacity import dilation_of, needed_dilation
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec, load_profile
from orchestrator.fleet.spec.speed import AFTERWARDS, Need, Speed
from orchestrator.references.reference import load_reference
from orchestrator.runs.speed import (
    MARGIN,
    SMALL_TASK,
    at_wanted_speed,
    before_measuring,
    demand,
    measured_index,
    yardstick,
)

COSTS = {"batch": Cost(((32, 0.01),)), "first batch": Cost(((32, 0.02),)), "build": Cost(((9, 0.1),))}


def spec(*cpus: float, speed: Speed | None = None, threads: int = 0) -> FleetSpec:
    devices = [
        DeviceSpec(f"d{i}", ProfileSpec(f"p{i}", Limits(c, 1, 1, 64, named_threads=threads)))
        for i, c in enumerate(cpus)
    ]
    return FleetSpec("mine", "local", 0.5, tuple(devices), Path("fleet.yaml"), speed=speed or Speed("core"))


# ---- what is measured ----


def test_each_batch_is_compared_with_the_reference_and_the_first_one_with_a_first_one() -> None:
    work = [
        PieceTimes("build", 9, 1, 5.0, (5_000_000,)),
        PieceTimes("first batch", 32, 1, 1.0, (1_000_000,)),
        PieceTimes("batch", 32, 3, 0.06, (10_000, 20_000, 30_000)),
    ]
    assert ratios(work, COSTS) == pytest.approx([50.0, 1.0, 2.0, 3.0])
    assert ratios(work, {"batch": COSTS["batch"]}) == pytest.approx([1.0, 2.0, 3.0])
    assert ratios(work, {"batch": Cost(((32, 0.0),))}) == []
    assert ratios([PieceTimes("batch", 32, 2, 0.0, (0, -5))], COSTS) == [], "no time that a device can have"


def test_the_head_room_of_a_device_with_few_batches_is_that_of_all_around_its_own_mean() -> None:
    steady = [1.0] * 98 + [1.5, 1.5]
    found = needs({"many": steady, "one": [3.0]})
    assert found["many"].mean == pytest.approx(1.01)
    assert found["many"].p99 == pytest.approx(1.5, rel=0.02)
    assert found["one"].mean == 3.0
    assert found["one"].p99 / 3.0 == pytest.approx(found["many"].p99 / found["many"].mean)
    assert needs({"alone": [2.0]}) == {"alone": Need(2.0, 2.0)}


class Devices:
    """Answer the probe of a task with batches of so many times the reference, all at once."""

    def __init__(self, factors: Mapping[str, float]) -> None:
        self._factors, self._asked, self.probes = factors, asyncio.Event(), list[tuple[str, Probe]]()

    async def probe(self, device: str, probe: Probe) -> ProbeResult:
        self.probes.append((device, probe))
        if len(self.probes) == len(self._factors):
            self._asked.set()
        async with asyncio.timeout(10):
            await self._asked.wait()  # the last one is asked before any has answered
        us = round(self._factors[device] * 10_000)
        return ProbeResult(device, probe.id, work=(PieceTimes("batch", 32, 2, 2 * us / 1e6, (us, us)),) if us else ())


async def test_all_devices_measure_at_once_with_their_own_threads() -> None:
    devices, limits = Devices({"a": 1.5, "b": 0.5}), {"a": Limits(2.0, 1, 1, 64, named_threads=2), "b": LIMITS}
    found = await measure_needs(devices, limits, Yardstick(SMALL_TASK, COSTS))
    assert {name: need.mean for name, need in found.items()} == pytest.approx({"a": 1.5, "b": 0.5})
    asked = dict(devices.probes)
    assert {name: each.threads for name, each in asked.items()} == {"a": 2, "b": 1}
    assert all(each.kind == "task" and each.assignment is not None for each in asked.values())


async def test_a_device_that_measures_nothing_ends_the_start() -> None:
    with pytest.raises(CalibrationError, match="a did not measure what it needs for the reference: it did no batch"):
        await measure_needs(Devices({"a": 0.0}), {"a": LIMITS}, Yardstick(SMALL_TASK, COSTS))


LIMITS = Limits(0.2, 1, 1, 64)

# ---- what follows from it ----


def test_dilation_follows_from_the_mean_and_ceilings_from_the_tail() -> None:
    found = {"d0": Need(2.0, 3.0), "d1": Need(1.0, 1.1)}
    fleet = spec(1.0, 0.5)
    assert demand(fleet, found) == pytest.approx(MARGIN * (2.0 * 1.0 + 1.0 * 0.5) / 1.5)
    measured = msgspec.structs.replace(fleet, speed=Speed("core", demand(fleet, found), needs=found))
    assert measured.cpus == pytest.approx(MARGIN * 2.5)
    assert needed_dilation(measured, 1.5) == pytest.approx(MARGIN * 2.5)
    assert [measured.speed.ceiling(name) for name in ("d0", "d1")] == pytest.approx(
        [AFTERWARDS * 3.0, AFTERWARDS * 1.1]
    )
    assert measured.head_room == pytest.approx(AFTERWARDS * (3.0 + 0.55) / (MARGIN * 2.5))
    assert measured.speed.index_of("d0") == 0.5


def test_a_dilation_that_is_too_small_for_what_was_measured_is_refused_with_both_figures() -> None:
    slow = spec(0.5, 0.5, speed=Speed("core", 3.0, needs={"d0": Need(3.0, 4.0), "d1": Need(3.0, 4.0)}))
    with pytest.raises(CapacityError, match=r"wants 3 CPUs / 1.5, the host has 2 cores") as refused:
        dilation_of(slow, 1.5, 2.0)
    assert "here 2" in refused.value.hint
    assert dilation_of(slow, "auto", 2.0) == pytest.approx(2.0)


def test_a_device_that_needs_more_than_its_threads_can_do_is_dilated_or_refused() -> None:
    needed = {"d0": Need(1.25, 1.5)}
    fast = spec(2.0, speed=Speed("core", 1.25, needs=needed))
    assert dilation_of(fast, "auto", 64.0) == pytest.approx(2.5)
    with pytest.raises(CapacityError, match=r"needs 2.5 of a core for each of its threads .* the reference core"):
        dilation_of(fast, "off", 64.0)
    assert dilation_of(spec(2.0, speed=fast.speed, threads=4), "off", 64.0) == 1.0


def test_a_dilation_that_is_given_is_judged_by_what_is_measured_and_not_by_the_index() -> None:
    by_index = spec(1.0, speed=Speed("core", 9.0))
    (first,) = before_measuring([by_index], "local", 2.0)
    assert dilation_of(first, 2.0, 2.0) == 2.0
    assert before_measuring([by_index], "local", "auto") == [by_index]
    assert before_measuring([by_index], "swarm", 2.0) == [by_index]


# ---- by what devices are measured ----


def test_the_experiments_own_batches_are_measured_unless_the_slowest_device_takes_too_long() -> None:
    large = msgspec.structs.replace(SMALL_TASK, model={"name": "resnet-tiny"}, batch_size=256)
    fast, slow = {"a": Limits(0.5, 1, 1, 64)}, {"a": Limits(0.5, 1, 1, 64), "b": Limits(0.01, 1, 1, 64)}
    own, small = yardstick("x86-avx512", large, fast), yardstick("x86-avx512", large, slow)
    assert own is not None
    assert small is not None
    assert (own.task.batch_size, small.task.batch_size) == (256, 32)
    assert own.batch_s > small.batch_s
    without = yardstick("x86-avx512", None, fast)
    assert without is not None
    assert without.task.batch_size == 32


def test_a_reference_that_knows_no_such_batch_measures_nothing(tmp_path: Path) -> None:
    bare = msgspec.structs.replace(load_reference("x86-avx512"), work={}, layers={})
    (tmp_path / "bare.json").write_bytes(msgspec.json.encode(bare))
    task = Assignment("a", {"name": "fcnn"}, 10, (1, 8, 8), 5, "output")
    assert yardstick(str(tmp_path / "bare.json"), task, {"a": LIMITS}) is None


# ---- the index ----


def test_the_loop_tells_its_error_and_its_drift() -> None:
    calm = times_of([0.002] * 100)
    assert (calm.s, calm.error_s, calm.drift) == (0.002, 0.0, 0.0)
    slower = times_of([0.002] * 50 + [0.003] * 50)
    assert slower.drift == pytest.approx(0.5)
    assert 0 < slower.error_s < 0.001
    assert times_of([0.002 + 0.0001 * (i % 2) for i in range(2 * PARTS)]).s == pytest.approx(0.0021)


def test_the_host_is_compared_with_the_reference_or_else_with_one_that_comes_with_edgebed() -> None:
    found = measured_index(seconds=0.05)
    assert found.reference == "x86-avx512"
    assert found.index > 0
    assert found.error >= 0
    assert measured_index("x86-sse41", 0.05).reference == "x86-sse41"


def test_a_spread_without_a_reference_is_refused() -> None:
    with pytest.raises(UsageError, match="spread: true"):
        at_wanted_speed(msgspec.structs.replace(spec(1.0, speed=Speed()), spread=True))
    played = at_wanted_speed(
        msgspec.structs.replace(spec(1.0, speed=Speed()), wanted_speed="reference x86-avx512", spread=True)
    )
    assert played.spread


# ---- threads ----


def test_threads_of_a_device_are_those_of_its_profile_whatever_the_dilation(tmp_path: Path) -> None:
    (tmp_path / "four.yaml").write_text("cpus: 4\nuplink_mbit_s: 1\ndownlink_mbit_s: 1\nmemory_mib: 64\nthreads: 3\n")
    limits = load_profile("four.yaml", tmp_path / "fleet.yaml").limits
    assert [limits.dilated(factor).threads for factor in (1, 4.87, 40)] == [3, 3, 3]
    (tmp_path / "none.yaml").write_text("cpus: 4\nuplink_mbit_s: 1\ndownlink_mbit_s: 1\nmemory_mib: 64\nthreads: 0\n")
    with pytest.raises(UsageError, match="threads is 0"):
        load_profile("none.yaml", tmp_path / "fleet.yaml")
