"""Which tests one worker runs, so that there is one fleet at a time."""

from __future__ import annotations

from tests.one_fleet import scope


def test_all_tests_that_start_a_fleet_are_one_scope() -> None:
    fleets = ["tests/e2e/test_faults.py::test_a[x::y]", "tests/component/test_docker_fleet.py::test_b"]
    assert {scope(each) for each in fleets} == {"fleet"}
    others = ["tests/unit/test_void.py::test_a", "tests/unit/test_void.py::test_b[root]"]
    assert "fleet" not in {scope(each) for each in others}


def test_every_other_test_is_a_scope_but_for_those_of_a_file_with_the_same_first_parameter() -> None:
    tests = [f"tests/unit/{each}" for each in ("test_void.py::test_a", "test_void.py::test_b", "test_host.py::test_a")]
    cases = [f"{each}[{case}]" for each in tests for case in ("1-x", "2")]
    assert len({scope(each) for each in tests}) == 3
    assert len({scope(each) for each in cases}) == 2 * 2
    assert len({scope(f"tests/unit/test_void.py::{each}") for each in ("test_a[1-x]", "test_b[1-y]", "test_b[1]")}) == 1


def test_in_a_file_with_both_only_the_tests_that_start_a_fleet_are_in_its_scope() -> None:
    file = "tests/e2e/test_dashboard.py"
    assert scope(f"{file}::test_a_real_run_is_seen_while_it_goes_on_and_after") == "fleet"
    assert scope(f"{file}::test_three_runs_are_compared_with_the_keyboard_alone").endswith("alone")
