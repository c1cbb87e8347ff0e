"""Verdicts of calibration: what passes, what fails, and what cause is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import ProbeResult
from orchestrator.calibration import verdicts as j
from orchestrator.fleet.base import Held
from orchestrator.fleet.spec.profile import Limits

LIMITS = Limits(cpus=0.2, uplink_bit_s=10_000_000, downlink_bit_s=30_000_000, memory_mib=512)
HELD = Held("d", LIMITS, 0.2, 10_000_000, 30_000_000, 512, 0.0, 0.0, 0, 0.0, 0, 0, True)


SOFTWARE: dict[str, Any] = {"cpus": None, "uplink_bit_s": None, "downlink_bit_s": None, "read_back": False}


def context(**held: object) -> j.Context:
    return j.Context("d", LIMITS, msgspec.structs.replace(HELD, **held), cores=2, at_ns=1)


def cpu(share: float, **held: Any) -> j.Calibrated:
    return j.judge_cpu(context(**held), j.Item("busy", True, seconds=2.0), ProbeResult("d", "1", 2.0, 2.0 * share))


def link(ratio: float, *, up: bool = True, size: int = 1_000_000, **held: Any) -> j.Calibrated:
    rate = LIMITS.uplink_bit_s if up else LIMITS.downlink_bit_s
    item = j.Item("upload" if up else "download", False, size=size)
    return j.judge_link(context(**held), item, size * 8 / WIRE_SHARE / (rate * ratio), size)


@pytest.mark.parametrize(
    ("share", "passed"), [(0.2, True), (0.209, True), (0.191, True), (0.212, False), (0.188, False)]
)
def test_five_per_cent_of_cpu_time(share: float, passed: bool) -> None:
    assert cpu(share).passed is passed


def test_ceilings_that_all_devices_share_may_not_be_used_up_and_are_never_exceeded() -> None:
    """Quotas that add up to more than the cores: together a device may get less, alone it must get all."""
    ceilings = msgspec.structs.replace(context(), ceilings=True)

    def passes(share: float, *, together: bool) -> bool:
        result = ProbeResult("d", "1", 2.0, 2.0 * share)
        return j.judge_cpu(ceilings, j.Item("busy", together, seconds=2.0), result).passed

    assert passes(0.05, together=True)
    assert not passes(0.25, together=True)
    assert not passes(0.05, together=False)
    assert passes(0.2, together=False)
    assert not cpu(0.05).passed


def test_headers_count_as_bytes_of_the_link() -> None:
    assert link(1.0).error == pytest.approx(0.0)
    assert link(1.0).measured == pytest.approx(10.0)


@pytest.mark.parametrize(("ratio", "passed"), [(1.04, True), (0.96, True), (1.06, False), (0.94, False)])
def test_five_per_cent_of_a_megabyte(ratio: float, passed: bool) -> None:
    assert link(ratio).passed is passed


@pytest.mark.parametrize(("ratio", "passed"), [(0.3, True), (1.09, True), (1.11, False)])
def test_64_kb_may_be_slow_but_not_fast(ratio: float, passed: bool) -> None:
    assert link(ratio, size=64_000).passed is passed


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (cpu(1.0, cpus=None), "no CPU quota is set"),
        (cpu(0.4, cpus=0.4), "the quota in force is 0.4"),
        (cpu(1.0), "has no effect"),
        (cpu(0.1), "the host is too busy"),
        (cpu(0.1, cpus=0.1), "the quota in force is 0.1"),
        (link(8.0, uplink_bit_s=80_000_000), "mbps (megabytes) used instead of mbit"),
        (link(7.7), "mbps (megabytes) used instead of mbit"),
        (link(90.0, up=False, downlink_bit_s=None), "the downlink is not shaped, only the uplink is"),
        (link(90.0, uplink_bit_s=None, downlink_bit_s=None), "nothing limits the uplink"),
        (link(90.0), "find the path that bypasses the limit"),
        (link(1.2), "a smaller tbf burst"),
        (link(0.7), "too slow"),
        (cpu(1.0, **SOFTWARE), "software throttle"),
        (cpu(0.1, **SOFTWARE), "the host is too busy"),
        (link(8.0, **SOFTWARE), "software throttle"),
        (link(0.7, **SOFTWARE), "too slow"),
    ],
)
def test_the_fault_is_named_with_its_hint(row: j.Calibrated, words: str) -> None:
    assert not row.passed
    assert words in row.cause
    assert "hint:" in row.cause


def test_a_broken_probe_fails_with_its_error() -> None:
    row = j.judge_link(context(), j.Item("upload", False, size=64_000), 0.0, 0, "the peer closed")
    assert not row.passed
    assert row.cause == "the peer closed"
    row = j.judge_cpu(context(), j.Item("busy", False, seconds=1.0), ProbeResult("d", "1", error="no answer"))
    assert not row.passed
    assert row.cause == "no answer"


def test_a_transfer_that_was_not_timed_is_no_pass() -> None:
    row = j.judge_link(context(), j.Item("upload", False, size=64_000), 0.001, 0)
    assert not row.passed
    assert "before the clock" in row.cause


def test_work_is_reported_and_not_judged() -> None:
    result = ProbeResult("d", "1", wall_s=1.0, cpu_s=0.2, units=100.0)
    row = j.report_work(context(), j.Item("busy", False, seconds=1.0), result, reference=1000.0)
    assert (row.judged, row.measured, row.error) == (False, 500.0, -0.5)


def test_what_a_real_board_does_is_reported_and_not_judged() -> None:
    board = msgspec.structs.replace(context(**SOFTWARE), limits=msgspec.structs.replace(LIMITS, unlimited=True))
    item = j.Item("download", True, seconds=1.2)
    rows = [
        j.judge_cpu(board, j.Item("busy", True, seconds=2.0), ProbeResult("d", "1", 2.0, 7.0)),
        j.judge_link(board, item, 1.0, 10_000_000),
        j.judge_link(board, item, 0.0, 0, "no route to host"),
    ]
    assert [(row.judged, row.passed, row.requested, row.error) for row in rows] == [(False, True, 0.0, 0.0)] * 3
    assert [row.measured for row in rows[:2]] == pytest.approx([3.5, 80 / WIRE_SHARE])
    assert [row.cause for row in rows] == ["unlimited: a real board", "unlimited: a real board", "no route to host"]


def test_the_full_plan_has_every_combination() -> None:
    links = [i for i in j.full_plan() if i.kind in ("upload", "download")]
    assert {(i.kind, i.together, i.connections, i.size) for i in links} == {
        (kind, together, connections, size)
        for kind in ("upload", "download")
        for together in (False, True)
        for connections in (1, 8)
        for size in (64_000, 1_000_000, 10_000_000)
    }
    assert {(i.kind, i.together) for i in j.full_plan() if i not in links} == {
        *((kind, together) for kind in ("busy", "step") for together in (False, True)),
        *((kind, False) for kind in ("grain", "grain step", "efficiency")),
    }


def test_a_piece_of_work_is_shown_beside_its_cpu_time_over_cpus() -> None:
    item = j.Item("grain", True, seconds=0.010)
    row = j.report_grain(context(), item, ProbeResult("d", "1", wall_s=0.010, cpu_s=0.010))
    assert (row.requested, row.measured, row.judged) == (pytest.approx(0.05), 0.010, False)
    assert row.error == pytest.approx(-0.8)
    assert "10 ms after a rest" in row.condition


def test_small_devices_do_fewer_pieces() -> None:
    item = j.Item("grain", True, seconds=0.010)
    devices = [Limits(cpus, 10**7, 10**7, 64).dilated(1) for cpus in (1.0, 0.05, 0.002)]
    assert [j.pieces(item, device) for device in devices] == [5, 4, 1]


def test_runs_and_gaps_stand_beside_quota_and_pause() -> None:
    result = ProbeResult("d", "1", 2.0, 0.4, runs_s=(0.021, 0.024), gaps_s=(0.079, 0.083))
    run, gap = j.report_stops(context(), j.Item("busy", True, seconds=2.0), result)
    assert (run.quantity, run.requested, run.measured) == ("run", pytest.approx(0.02), 0.021)
    assert (gap.quantity, gap.requested, gap.measured) == ("gap", pytest.approx(0.08), 0.079)
    assert "p95 83 ms" in gap.condition
    assert not run.judged
    assert not gap.judged


def test_a_thread_that_nothing_stops_has_no_runs() -> None:
    assert j.report_stops(context(), j.Item("busy", True, seconds=2.0), ProbeResult("d", "1", 2.0, 0.4)) == []


def test_efficiency_compares_medians_and_is_not_judged() -> None:
    pairs = [
        (ProbeResult("d", "1", 1.0, under * 100, units=100.0), ProbeResult("d", "2", 1.0, free * 100, units=100.0))
        for under, free in ((0.012, 0.010), (0.013, 0.010), (0.050, 0.011))
    ]
    row = j.report_efficiency(context(), j.Item("efficiency", False, seconds=1.0), pairs)
    assert (row.requested, row.measured) == (pytest.approx(0.010), pytest.approx(0.013))
    assert row.error == pytest.approx(0.3)
    assert not row.judged


def test_window_and_tolerance_follow_the_tick_where_the_quota_is_small() -> None:
    item = j.Item("busy", True, seconds=2.0)
    windows = [j.window_s(item, Limits(cpus, 10**7, 10**7, 64), tick_s=0.004) for cpus in (0.1, 0.02, 0.002)]
    assert windows == [2.0, pytest.approx(4.0), 20.0]
    assert j.cpu_tolerance(2.0 * 0.1, tick_s=0.001) == 0.05
    assert j.cpu_tolerance(4.0 * 0.02, tick_s=0.004) == pytest.approx(0.075)
    assert j.cpu_tolerance(20.0 * 0.002, tick_s=0.004) == pytest.approx(0.15)


@pytest.mark.parametrize(("cpu_s", "passed"), [(0.0055, True), (0.0075, False)])
def test_a_small_quota_is_judged_by_that_tolerance(cpu_s: float, passed: bool) -> None:
    limits = msgspec.structs.replace(LIMITS, cpus=0.002)
    where = msgspec.structs.replace(context(), limits=limits, tick_s=0.001)
    row = j.judge_cpu(where, j.Item("busy", True, seconds=2.0), ProbeResult("d", "1", wall_s=2.5, cpu_s=cpu_s))
    assert row.passed is passed


def test_the_short_plan_stays_under_ten_seconds_even_dilated() -> None:
    dilated = [Limits(4, 10**8, 10**8, 1).dilated(5), Limits(0.1, 10**7, 10**7, 1).dilated(5)]
    assert j.estimate_s(j.short_plan(len(dilated)), dilated) < 10


def test_the_short_plan_of_many_devices_measures_links_longer_and_ends_within_thirty_seconds() -> None:
    many = [Limits(0.004, 3 * 10**6, 3 * 10**6, 64)] * 200
    plan = j.short_plan(len(many))
    assert [item.seconds for item in plan if item.kind == "upload"] == [pytest.approx(2.4)]
    assert j.window_s(plan[0], many[0], tick_s=0.004) == 15.0
    assert j.estimate_s(plan, many) < 30
