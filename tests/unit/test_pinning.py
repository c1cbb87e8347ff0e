"""Which agent is a device, and how often one is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.fleet.control.pinning import NAMED, Pin, Verdict
from orchestrator.fleet.control.restarts import RestartBudget

STEP = st.one_of(st.tuples(st.sampled_from("abc"), st.booleans()), st.none())
"""An agent of this incarnation says that it is the device, which is online or not; None: the fleet starts one."""


@given(st.booleans(), st.lists(STEP, max_size=30))
def test_an_agent_that_was_replaced_never_returns(strict: bool, steps: list[tuple[str, bool] | None]) -> None:
    pin, taken = Pin(strict), list[str]()
    for step in steps:
        if step is None:
            pin.release()
            continue
        incarnation, online = step
        if pin.verdict(incarnation, online=online) is Verdict.NEW:
            assert incarnation not in taken
            taken.append(incarnation)
            pin.take(incarnation)
    assert pin.incarnation == (taken[-1] if taken else "")


@given(st.lists(st.tuples(st.text("abcdef", min_size=1, max_size=3), st.booleans()), max_size=30))
def test_a_strict_pin_moves_only_when_it_is_released(claims: list[tuple[str, bool]]) -> None:
    pin = Pin(strict=True)
    pin.take("first")
    for incarnation, online in claims:
        assert pin.verdict(incarnation, online=online) in (Verdict.FOREIGN, Verdict.PAST)
        pin.refuse(incarnation)
    assert pin.holds("first")
    pin.release()
    assert pin.verdict("second", online=False) is Verdict.NEW
    assert pin.verdict("first", online=False) is Verdict.PAST
    assert not pin.holds("first")


def test_refusals_are_named_once_and_not_without_end() -> None:
    pin = Pin(strict=True)
    pin.take("first")
    assert [pin.refuse("second"), pin.refuse("second")] == [True, False]
    assert sum(pin.refuse(str(number)) for number in range(1000)) == NAMED - 1


def test_restarts_are_bounded_in_any_stretch_of_time() -> None:
    budget = RestartBudget(most=3, within_s=60.0)
    assert [budget.take(now) for now in (0.0, 1.0, 2.0, 3.0, 59.0, 60.0, 60.5, 61.5)] == [
        *(True, True, True, False, False),
        *(True, False, True),
    ]


def test_an_agent_that_ends_rarely_is_started_again_for_ever() -> None:
    budget = RestartBudget(most=3, within_s=60.0)
    assert all(budget.take(21.0 * number) for number in range(1000))


def test_a_finished_task_clears_the_budget() -> None:
    budget = RestartBudget(most=1, within_s=60.0)
    assert budget.take(0.0)
    budget.clear()
    assert budget.take(1.0)
    assert not budget.take(2.0)
