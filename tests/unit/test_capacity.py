"""Sizes for devices: the rule by hand, before and after anything was measured."""

from __future__ import annotations

import json

import msgspec
import pytest

from edgebed.errors import UsageError
from edgebed.methods.base import DeviceView, Outcome
from edgebed.methods.parts.capacity import Powers, checked_levels, fit, fit_line, largest_within
from edgebed.wire.messages import Assignment, Report
from orchestrator.testing.rounds import BATCH, SCHEDULE, view

COSTS = (0.25, 0.5, 1.0)
ALIKE = (1000, 1000, 1000)  # bytes
EIGHT = 2 * BATCH  # samples: two batches


def devices(**cpus: float) -> list[DeviceView]:
    return [view(name, EIGHT, share) for name, share in cpus.items()]


def outcome(device: str, batch_s: float, communication_s: float = 0.0, batches: int = 2) -> Outcome:
    report = Report(EIGHT, batches, 1.0, batch_s * batches, 0.5, None, 100, 0.1, 100, 0.1, 0.0)
    assignment = Assignment(device, {"name": "small"}, 4, (1, 6, 6), 4, "output")
    return Outcome(device, assignment, report, 9.0, communication_s, 1e6, 0.0)


def test_unmeasured_devices_go_by_their_cpus() -> None:
    """Two batches at 1 CPU s each: slow 0.25·2/0.1 = 5 s at least, so 5 is the bound: 0.25 CPU may take half (4 s, not
    8), the others the whole (2 and 0.5 s)."""
    powers = Powers()
    fleet = devices(fast=4, good=1, weak=0.25, slow=0.1)
    powers.meet(fleet)
    fitted = fit(fleet, SCHEDULE, COSTS, ALIKE, powers)
    assert fitted.bound_s == pytest.approx(5)
    assert fitted.sizes == {"fast": 2, "good": 2, "weak": 1, "slow": 0}
    assert fitted.predicted_s() == {}


def test_the_fastest_device_always_has_the_full_model() -> None:
    """Alike devices: the smallest size would take a quarter, but the full one of the fastest is the later bound."""
    powers = Powers()
    fleet = devices(a=1, b=1)
    powers.meet(fleet)
    assert fit(fleet, SCHEDULE, COSTS, ALIKE, powers).sizes == {"a": 2, "b": 2}


def test_measurements_count_more_than_declared_cpus() -> None:
    """Both say 1 CPU. a took 2 s per batch, b 0.5 s, both at the full model. Bound max(0.25·4 + 1, 1 + 0) = 2: a gets a
    quarter (2 s; half would be 3 s), b everything."""
    powers = Powers()
    fleet = devices(a=1, b=1)
    powers.meet(fleet)
    powers.observe([outcome("a", 2.0, communication_s=1.0), outcome("b", 0.5)], lambda _: 2, ALIKE)
    fitted = fit(fleet, SCHEDULE, COSTS, ALIKE, powers)
    assert fitted.seconds == {"a": [2.0, 3.0, 5.0], "b": [0.25, 0.5, 1.0]}
    assert fitted.sizes == {"a": 0, "b": 2}
    assert fitted.predicted_s() == {"a": 2.0, "b": 1.0}


def test_what_a_size_costs_is_learned() -> None:
    """0.3 + 0.7·cost seconds at 1 CPU, shown by two devices of different speed at two sizes."""
    powers = Powers()
    powers.meet(devices(a=1, b=0.5))
    powers.observe([outcome("a", 0.3 + 0.7), outcome("b", 2 * (0.3 + 0.7))], lambda _: 2, ALIKE)
    assert powers.shown_costs(COSTS) == list(COSTS)
    powers.observe([outcome("b", 2 * (0.3 + 0.7 * 0.25))], lambda _: 0, ALIKE)
    assert powers.shown_costs(COSTS) == pytest.approx([0.3 + 0.7 * cost for cost in COSTS])
    assert powers.seconds(view("b", EIGHT, 0.5), SCHEDULE, powers.shown_costs(COSTS), ALIKE) == pytest.approx(
        [2 * 2 * (0.3 + 0.7 * cost) for cost in COSTS]
    )


def test_where_a_smaller_size_saves_nothing_everybody_has_the_full_model() -> None:
    powers = Powers()
    fleet = devices(a=1, b=0.1)
    powers.meet(fleet)
    powers.observe([outcome("a", 1.0)], lambda _: 2, ALIKE)
    powers.observe([outcome("b", 10.0)], lambda _: 0, ALIKE)
    fitted = fit(fleet, SCHEDULE, COSTS, ALIKE, powers)
    assert fitted.sizes == {"a": 2, "b": 2}
    assert fitted.predicted_s()["b"] == pytest.approx(20)


def test_a_line_through_points() -> None:
    assert fit_line([(1.0, 5.0), (2.0, 7.0), (3.0, 9.0)]) == pytest.approx((3, 2))
    assert fit_line([(1.0, 3.0), (2.0, 1.0)]) == (2.0, 0.0)  # falling: flat
    assert fit_line([(1.0, 1.0), (2.0, 4.0)]) == pytest.approx((0, 9 / 5))  # below the origin: through it
    assert fit_line([(1.0, 3.0), (1.0, 5.0)]) == fit_line([]) == (0.0, 1.0)


def test_measurements_are_averaged_and_follow_a_change_of_quota() -> None:
    powers = Powers()
    powers.meet(devices(a=1))
    for seconds in (1.0, 3.0):
        powers.observe([outcome("a", seconds)], lambda _: 2, ALIKE)
    for cpus, expected in ((1.0, 4.0), (0.5, 8.0)):
        assert powers.seconds(view("a", EIGHT, cpus), SCHEDULE, COSTS, ALIKE)[-1] == pytest.approx(expected)


def test_a_batch_that_ran_on_a_rested_quota_does_not_make_a_device_quick() -> None:
    """0.1 CPU: 0.25 CPU seconds a batch (`outcome` says 0.5 for two) take 2.5 s, though the clock saw 0.4 s."""
    powers, device = Powers(), view("a", EIGHT, 0.1)
    powers.meet([device])
    powers.observe([outcome("a", 0.4)], lambda _: 2, ALIKE)
    assert powers.seconds(device, SCHEDULE, COSTS, ALIKE)[-1] == pytest.approx(2 * 2.5)


def test_a_device_that_was_not_measured_is_judged_by_those_that_were() -> None:
    powers = Powers()
    powers.meet(devices(a=2, b=1))
    powers.observe([outcome("a", 1.0, communication_s=0.5)], lambda _: 2, ALIKE)
    expected = [1000 * 8 / 10_000 + 2 * cost * 2 for cost in COSTS]  # its link by its declared rates
    unknown = view("b", EIGHT, 1, uplink_bit_s=10_000)
    assert powers.seconds(unknown, SCHEDULE, COSTS, ALIKE) == pytest.approx(expected)


def test_the_link_takes_as_long_as_a_size_has_bytes() -> None:
    """500 bytes took 2 s, so 1000 take 4 and 2000 8; two batches of 1 s at the smallest size by its cost."""
    powers = Powers()
    powers.meet(devices(a=1))
    powers.observe([outcome("a", 0.25, communication_s=2.0)], lambda _: 0, (500, 1000, 2000))
    expected = [2 + 0.5, 4 + 1.0, 8 + 2.0]
    assert powers.seconds(view("a", EIGHT, 1), SCHEDULE, COSTS, (500, 1000, 2000)) == pytest.approx(expected)


def test_a_deadline_is_the_bound_once_something_was_measured() -> None:
    powers = Powers()
    fleet = devices(a=1, b=0.5)
    powers.meet(fleet)
    assert fit(fleet, SCHEDULE, COSTS, ALIKE, powers, deadline_s=1.0).bound_s == pytest.approx(2)
    powers.observe([outcome("a", 1.0), outcome("b", 2.0)], lambda _: 2, ALIKE)
    assert fit(fleet, SCHEDULE, COSTS, ALIKE, powers, deadline_s=2.0).sizes == {"a": 2, "b": 1}
    assert fit(fleet, SCHEDULE, COSTS, ALIKE, powers, deadline_s=0.1).sizes == {"a": 0, "b": 0}


def test_levels_are_shares_of_the_fastest_device_ever_met() -> None:
    powers = Powers()
    powers.meet(devices(fastest=5))
    fleet = devices(full=5, half=2.5, fifth=1, less=0.5)
    powers.meet(fleet)
    levels = (0.2, 0.5, 1.0)
    assert fit(fleet, SCHEDULE, COSTS, ALIKE, powers, levels=levels).sizes == {
        "full": 2,
        "half": 1,
        "fifth": 0,
        "less": 0,
    }
    assert fit(fleet[1:], SCHEDULE, COSTS, ALIKE, powers, levels=levels).sizes["half"] == 1


def test_rounding_costs_nobody_a_size() -> None:
    assert largest_within(0.1 + 0.2, (0.1, 0.3)) == 1
    assert largest_within(0.3, (0.1, 0.1 + 0.2)) == 1


def test_levels_are_checked() -> None:
    for wrong in ((0.5,), (0.5, 0.2, 1.0)):
        with pytest.raises(UsageError, match="levels"):
            checked_levels(wrong, 3)


def test_it_survives_a_checkpoint() -> None:
    powers = Powers()
    powers.meet(devices(a=1))
    powers.observe([outcome("a", 1.0, 0.5)], lambda _: 1, ALIKE)
    saved = json.loads(json.dumps(msgspec.to_builtins(powers, str_keys=True)))
    assert msgspec.convert(saved, Powers, strict=False) == powers
