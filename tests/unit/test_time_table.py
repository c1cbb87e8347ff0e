"""The client time table and the median rule, by hand."""

from __future__ import annotations

import json

import msgspec
import pytest

from edgebed.methods.parts.time_table import TimeTable, median_rule

COSTS = {1: 10.0, 2: 20.0, 4: 40.0}


def test_measurements_of_a_cut_are_averaged() -> None:
    table = TimeTable()
    for seconds in (4.0, 6.0, 11.0):
        table.add("a", 2, seconds)
    assert table.row("a", COSTS)[2] == pytest.approx(7)


def test_a_cut_without_measurement_is_scaled_from_the_nearest_by_the_ratio_of_costs() -> None:
    table = TimeTable()
    table.add("a", 1, 3.0)
    assert table.row("a", COSTS) == {1: 3.0, 2: 6.0, 4: 12.0}
    table.add("a", 4, 8.0)  # 2 lies between both: the shallower one counts
    assert table.row("a", COSTS) == {1: 3.0, 2: 6.0, 4: 8.0}
    alone = TimeTable()
    alone.add("b", 4, 8.0)
    assert alone.row("b", COSTS) == {1: 2.0, 2: 4.0, 4: 8.0}


def test_a_cut_is_scaled_as_rounds_of_others_were_once_one_had_both() -> None:
    """b and c took 0.5 and 1.5 times as long at cut 2 as at cut 1, d twice: median 1.5; nobody had cuts 1 and 4."""
    table = TimeTable()
    table.add("a", 1, 3.0)
    for device, first, second in (("b", 2.0, 1.0), ("c", 2.0, 3.0), ("d", 1.0, 2.0)):
        table.add(device, 1, first)
        table.add(device, 2, second)
    assert table.row("a", COSTS) == {1: 3.0, 2: 4.5, 4: 12.0}
    assert table.row("b", COSTS)[4] == 2.0  # from cut 2


def test_a_device_that_was_never_measured_has_no_row() -> None:
    assert TimeTable().row("a", COSTS) == {}


def test_the_median_rule() -> None:
    """Times 1 2 3, 2 4 6, 5 10 15: median 4; the slow device ends nearest to it at its first cut."""
    rows = {"fast": {1: 1.0, 2: 2.0, 4: 3.0}, "middle": {1: 2.0, 2: 4.0, 4: 6.0}, "slow": {1: 5.0, 2: 10.0, 4: 15.0}}
    assert median_rule(rows) == (4.0, {"fast": 4, "middle": 2, "slow": 1})


def test_an_even_number_of_times_and_a_tie() -> None:
    """Times 1, 3, 5, 7: median 4; 3 and 5 are as near, the shallower cut is taken."""
    assert median_rule({"a": {1: 3.0, 2: 5.0}, "b": {1: 1.0, 2: 7.0}}) == (4.0, {"a": 1, "b": 1})


def test_devices_without_a_row_have_no_say() -> None:
    assert median_rule({"a": {1: 3.0}, "new": {}}) == (3.0, {"a": 1})


def test_it_survives_a_checkpoint() -> None:
    table = TimeTable()
    table.add("a", 12, 3.5)
    saved = json.loads(json.dumps(msgspec.to_builtins(table, str_keys=True)))
    again = msgspec.convert(saved, TimeTable, strict=False)
    again.add("a", 12, 4.5)
    assert again.means["a"][12].value == 4.0
