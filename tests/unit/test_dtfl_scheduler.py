"""The tier scheduler against hand-worked cases, and what holds whatever is measured."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.methods.base import CutCost, DeviceView, Outcome
from edgebed.methods.dtfl import History, contended_s, round_s, schedule_tiers
from edgebed.methods.parts.local_training import count_batches
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Assignment, Report
from edgebed.wire.order import batch_bounds
from orchestrator.testing.rounds import SCHEDULE, view

# Per batch: deeper cuts cost the device more and the link less. Model transfers 0 unless a test says otherwise.
COSTS = {
    1: CutCost(1, model_bytes=0, feature_bytes=400, device_s=1.0, server_s=3.0),
    2: CutCost(2, model_bytes=0, feature_bytes=200, device_s=2.0, server_s=2.0),
    3: CutCost(3, model_bytes=0, feature_bytes=100, device_s=3.0, server_s=1.0),
}


def outcome(device: str, cut: int, compute_s: float, link: float, server_s: float = 0.0, batches: int = 10) -> Outcome:
    assignment = Assignment(device, {}, 4, (1, 6, 6), cut, "head")
    report = Report(100, batches, 1.0, compute_s, compute_s, None, 0, 0.0, 0, 0.0, 0.0)
    return Outcome(device, assignment, report, 0.0, 0.0, link, server_s)


def history(**seconds_and_speed: tuple[int, float, float]) -> History:
    """device=(cut, seconds per batch there, bytes per second)"""
    result = History()
    for device, (cut, seconds, speed) in seconds_and_speed.items():
        result.observe([outcome(device, cut, seconds * 10, speed)], COSTS, ema=0.5)
    return result


def cuts(
    measured: History, *devices: str, overlap: bool = False, slots: int = 100, batches: int = 10
) -> dict[str, int]:
    views = [view(name) for name in devices]
    plenty = dict.fromkeys(devices, batches)
    return schedule_tiers(views, COSTS, measured, plenty, server_slots=slots, overlap=overlap).cuts


def test_eq_5_by_hand() -> None:
    """10 batches at 100 bytes/s. T^c from 1.5 s at cut 1: 15, 30, 45; T^com = 40, 20, 10; T^s = 30, 20, 10.
    max(T^c, T^s) + T^com = 70, 50, 55."""
    choice = schedule_tiers([view("a")], COSTS, history(a=(1, 1.5, 100.0)), {"a": 10}, server_slots=1, overlap=False)
    assert {cut: each.total_s for cut, each in choice.estimates["a"].items()} == pytest.approx({1: 70, 2: 50, 3: 55})
    assert choice.t_max_s == pytest.approx(50)
    assert choice.cuts == {"a": 2}


def test_the_pipeline_by_hand() -> None:
    """The same device streaming: pace 4, 3, 4.5 s a batch; 9 paces and each of the three once (15+40+30)/10 …"""
    choice = schedule_tiers([view("a")], COSTS, history(a=(1, 1.5, 100.0)), {"a": 10}, server_slots=1, overlap=True)
    expected = {1: 9 * 4 + 8.5, 2: 9 * 3 + 7, 3: 9 * 4.5 + 6.5}
    assert {cut: each.total_s for cut, each in choice.estimates["a"].items()} == pytest.approx(expected)
    assert choice.cuts == {"a": 2}


def test_both_models_count_two_model_transfers() -> None:
    for overlap in (False, True):
        with_model = round_s(10, 4, 10, 0, 5, overlap=overlap)
        assert with_model - round_s(10, 0, 10, 0, 5, overlap=overlap) == pytest.approx(8)


def test_the_model_goes_up_while_a_slow_server_half_still_trains() -> None:
    """One batch: compute 1, features 1, then server 5 beside the model's 2 seconds upwards."""
    assert round_s(1, 2, 1, 5, 1, overlap=True) == pytest.approx(2 + 1 + 1 + 5)


def test_t_max_is_set_by_the_slowest_device_and_the_fast_one_keeps_as_much_as_fits() -> None:
    """slow: 15 s a batch at cut 1 -> 150 + 4, 300 + 2, …: its best is cut 1, T_max = 154 s. fast: 0.1 s a batch; every
    cut fits, so it keeps the most stages."""
    assert cuts(history(slow=(1, 15.0, 1000.0), fast=(1, 0.1, 1000.0)), "slow", "fast") == {"slow": 1, "fast": 3}


def test_a_device_with_a_slower_cpu_keeps_fewer_stages() -> None:
    """T_max is 104 s, from b (T = 104, 202, …); a takes 20 + 4, …, at all cuts: 24..61."""
    assert cuts(history(a=(1, 2.0, 1000.0), b=(1, 10.0, 1000.0)), "a", "b") == {"a": 3, "b": 1}


def test_a_device_with_a_slow_link_keeps_more_stages() -> None:
    """Features of cut 1 at 20 bytes/s: 200 s, of cut 3: 50 s, which saves more than compute costs."""
    assert cuts(history(a=(1, 1.0, 20.0)), "a") == {"a": 3}
    assert cuts(history(a=(1, 10.0, 1e6)), "a") == {"a": 1}


def test_a_device_never_seen_starts_from_its_declared_profile() -> None:
    views = [DeviceView("new", 10, cpus=0.5, uplink_bit_s=8000, downlink_bit_s=8000)]
    choice = schedule_tiers(views, COSTS, History(), {"new": 10}, server_slots=1, overlap=False)
    assert choice.estimates["new"][2].compute_s == pytest.approx(2.0 * 10 / 0.5)
    assert choice.estimates["new"][2].communication_s == pytest.approx(200 * 10 / (1000 * WIRE_SHARE))


def test_the_ratio_of_reference_seconds_carries_an_estimate_to_other_tiers() -> None:
    measured = history(a=(2, 8.0, 100.0))
    per_batch = {cut: measured.batch_s(view("a"), cost, COSTS) for cut, cost in COSTS.items()}
    assert per_batch == pytest.approx({1: 4.0, 2: 8.0, 3: 12.0})


def test_moving_averages_and_the_last_tier() -> None:
    measured = history(a=(1, 1.0, 100.0))
    measured.observe([outcome("a", 1, 30.0, 300.0)], COSTS, ema=0.5)
    assert measured.compute_s["a"][1] == pytest.approx(2.0)
    assert measured.link_bytes_s["a"] == pytest.approx(200.0)
    measured.observe([outcome("a", 3, 60.0, 200.0)], COSTS, ema=0.5)
    assert measured.batch_s(view("a"), COSTS[1], COSTS) == pytest.approx(2.0)  # now from 6 s at cut 3
    assert measured.compute_s["a"] == pytest.approx({1: 2.0, 3: 6.0})


def test_turning_features_into_bytes_counts_as_work_of_the_device() -> None:
    measured, report = History(), outcome("a", 1, 10.0, 100.0)
    report = msgspec.structs.replace(report, report=msgspec.structs.replace(report.report, encode_s=20.0))
    measured.observe([report], COSTS, ema=0.5)
    assert measured.batch_s(view("a"), COSTS[1], COSTS) == pytest.approx(3.0)


def rested(device: str, cut: int, *, wall_s: float, cpu_s: float, encode_cpu_s: float = 0.0) -> Outcome:
    """Ten batches, each after a rest in which the quota was refilled: less wall time than the quota allows for long."""
    measured = outcome(device, cut, wall_s, 100.0)
    report = msgspec.structs.replace(measured.report, compute_cpu_s=cpu_s, encode_cpu_s=encode_cpu_s)
    return msgspec.structs.replace(measured, report=report)


def test_a_batch_that_ran_on_a_rested_quota_does_not_make_a_device_quick() -> None:
    """0.1 CPU, 10 batches of 20 ms CPU, in 30 ms each since uploads held them up: 200 ms a batch is what it can do."""
    measured = History()
    measured.meet([view("a", cpus=0.1)])
    measured.observe([rested("a", 1, wall_s=0.3, cpu_s=0.15, encode_cpu_s=0.05)], COSTS, ema=0.5)
    assert measured.batch_s(view("a", cpus=0.1), COSTS[1], COSTS) == pytest.approx(0.2)
    measured.observe([rested("a", 1, wall_s=4.0, cpu_s=0.2)], COSTS, ema=1.0)  # slower than its quota: the wall counts
    assert measured.batch_s(view("a", cpus=0.1), COSTS[1], COSTS) == pytest.approx(0.4)


def test_a_rested_quota_does_not_make_the_next_plan_too_deep() -> None:
    """a at 0.1 CPU computed 10 x 0.2 CPU seconds at cut 1, within 3 s: 20 s, not 3. Cut 3 would take it 60 s; b takes
    35 s at its best, and a keeps no more than fits."""
    measured = history(b=(1, 3.5, 1e9))
    measured.meet([view("a", cpus=0.1), view("b")])
    measured.observe([rested("a", 1, wall_s=3.0, cpu_s=2.0)], COSTS, ema=0.5)
    measured.link_bytes_s["a"] = 1e9
    assert cuts(measured, "a", "b")["a"] == 1


@pytest.mark.parametrize("dilation", [1.0, 2.0, 4.87])
def test_estimates_are_in_the_seconds_of_the_dilated_fleet(dilation: float) -> None:
    """A profile of 0.2 CPU, dilated: its quota is 0.2 ÷ D, its own account and the clock are in dilated seconds, and
    what is shown is the estimate ÷ D. Work of 0.1 CPU seconds a batch is 0.5 s of a device of 0.2 CPU, whatever D."""
    device, measured = view("a", cpus=0.2 / dilation), History()
    measured.meet([device])
    measured.observe([rested("a", 1, wall_s=0.0001, cpu_s=1.0)], COSTS, ema=0.5)
    estimate = schedule_tiers([device], COSTS, measured, {"a": 10}, server_slots=1, overlap=False).estimates["a"][1]
    assert estimate.compute_s / dilation == pytest.approx(10 * 0.5)


def test_a_failed_device_keeps_its_estimate() -> None:
    measured = history(a=(1, 2.0, 100.0), b=(1, 1.0, 100.0))
    before = measured.batch_s(view("a"), COSTS[2], COSTS), measured.speed(view("a"))
    measured.observe([outcome("b", 1, 90.0, 50.0)], COSTS, ema=0.5)
    assert (measured.batch_s(view("a"), COSTS[2], COSTS), measured.speed(view("a"))) == before


@pytest.mark.parametrize(
    "bad",
    [outcome("a", 1, 0.0, 0.0), outcome("a", 1, 5.0, float("inf"), batches=0), outcome("a", 1, 5.0, -1.0, batches=0)],
)
def test_a_report_that_measured_nothing_changes_nothing(bad: Outcome) -> None:
    measured = history(a=(1, 2.0, 100.0))
    measured.observe([bad], COSTS, ema=0.5)
    assert measured == history(a=(1, 2.0, 100.0))


def test_measured_server_steps_scale_every_server_estimate() -> None:
    measured = history(a=(1, 1.0, 100.0))
    measured.observe([outcome("a", 2, 20.0, 100.0, server_s=60.0)], COSTS, ema=1.0)  # 3 x the profiled 20 s
    assert measured.server_factor == pytest.approx(3.0)
    choice = schedule_tiers([view("a")], COSTS, measured, {"a": 10}, server_slots=1, overlap=False)
    assert choice.estimates["a"][3].server_s == pytest.approx(30.0)


def test_server_halves_that_share_a_slot_wait_for_each_other() -> None:
    assert contended_s(10, [], 1) == 10
    assert contended_s(10, [10, 10], 1) == 30
    assert contended_s(10, [1, 1], 1) == 12  # the others are soon done
    assert contended_s(1, [100, 100], 1) == 3  # taking turns, a short half is not held up by a long one
    assert contended_s(10, [10], 2) == 10


def test_a_crowded_server_makes_devices_keep_more() -> None:
    """Fast link, one second a batch at cut 1: alone cut 2 is best (20 s of T^s against 20 s of T^c). Beside nine like
    it on one slot T^s is 10 x as much, and cut 3 with 100 s is the best."""
    crowd = {f"d{i}": (1, 1.0, 1e9) for i in range(10)}
    assert set(cuts(history(**crowd), *crowd, slots=100).values()) == {2}
    assert set(cuts(history(**crowd), *crowd, slots=1).values()) == {3}


def test_batches_of_a_round() -> None:
    assert count_batches(10, SCHEDULE) == 3
    limited = type(SCHEDULE)(4, 2, 2, SCHEDULE.optimizer, SCHEDULE.codec, 0)
    assert count_batches(10, limited) == 4


@pytest.mark.parametrize(("samples", "batch_size"), [(10, 1), (9, 4), (5, 4), (3, 8)])
def test_as_many_batches_are_planned_as_devices_train_in(samples: int, batch_size: int) -> None:
    schedule = msgspec.structs.replace(SCHEDULE, batch_size=batch_size, epochs=2, max_batches=0)
    assert count_batches(samples, schedule) == 2 * len(batch_bounds(samples, batch_size))


def test_one_round_of_measurements_mends_a_wrong_profile() -> None:
    """The fleet file says one CPU and 10 Mbit/s for all; the truth is what the first round measures."""
    truth = {"a": (0.2, 500.0), "b": (3.0, 2000.0), "c": (9.0, 100.0)}  # seconds per batch at cut 1, bytes per second
    measured = History()
    guess = cuts(measured, *truth)
    measured.observe(
        [
            outcome(name, guess[name], 10 * slow * COSTS[guess[name]].device_s, link)
            for name, (slow, link) in truth.items()
        ],
        COSTS,
        ema=0.5,
    )
    known = history(**{name: (1, slow, link) for name, (slow, link) in truth.items()})
    assert cuts(measured, *truth) == cuts(known, *truth) != guess


seconds = st.floats(0.001, 1000)
fleets = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.sampled_from([1, 2, 3]), seconds, st.floats(1, 1e9)), min_size=1
)


@settings(deadline=None)
@given(fleets, st.booleans(), st.integers(1, 4), st.integers(1, 50))
def test_no_device_is_planned_slower_than_t_max_and_none_could_keep_more(
    fleet: dict[str, tuple[int, float, float]], overlap: bool, slots: int, batches: int
) -> None:
    views, counts = [view(name) for name in fleet], dict.fromkeys(fleet, batches)
    choice = schedule_tiers(views, COSTS, history(**fleet), counts, server_slots=slots, overlap=overlap)
    assert choice.t_max_s == max(min(e.total_s for e in each.values()) for each in choice.estimates.values())
    for name, cut in choice.cuts.items():
        assert choice.estimates[name][cut].total_s <= choice.t_max_s
        assert all(e.total_s > choice.t_max_s for other, e in choice.estimates[name].items() if other > cut)


@settings(deadline=None)
@given(st.tuples(seconds, seconds, seconds, seconds), st.integers(1, 100), st.booleans())
def test_more_of_anything_never_takes_less_time(
    parts: tuple[float, float, float, float], batches: int, overlap: bool
) -> None:
    base = round_s(*parts, batches, overlap=overlap)
    for i in range(4):
        more = [part * (1.5 if i == j else 1) for j, part in enumerate(parts)]
        assert round_s(*more, batches, overlap=overlap) >= base * (1 - 1e-12)


@settings(deadline=None)
@given(st.tuples(seconds, seconds, seconds, seconds), st.integers(1, 100))
def test_overlap_lies_between_the_slowest_part_and_all_parts_in_turn(
    parts: tuple[float, float, float, float], batches: int
) -> None:
    compute, model, features, server = parts
    streamed = round_s(*parts, batches, overlap=True)
    assert streamed >= max(compute, features, server) * (1 - 1e-9)
    assert streamed <= (compute + 2 * model + features + server) * (1 + 1e-9)
