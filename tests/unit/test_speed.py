"""Devices that keep a reference's time: late rounds, what a rival leaves, and which runs make no reference."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edgebed.errors import UsageError
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.held import HeldTask, by_origin, late_rounds
from orchestrator.records.types import RunStarted
from orchestrator.references.recording import record
from orchestrator.scenario.agenda import Condition
from tests.synthetic import Synthetic


def test_a_round_is_late_from_a_hundredth_of_its_length_on() -> None:
    assert late_rounds([(None, 1.0)]) is None
    assert late_rounds([(0.011, 1.0), (0.009, 1.0), (1.0, None)]) == 1


def test_work_is_added_up_by_the_origin_of_its_costs() -> None:
    assert by_origin([]) == {}
    tasks = [HeldTask(0.0, {"recorded": 1.0}), None, HeldTask(0.0, {"recorded": 2.0, "index": 0.5})]
    assert by_origin(tasks) == {"recorded": 3.0, "index": 0.5}


def test_a_rival_takes_at_most_a_half_and_a_frozen_device_has_nothing() -> None:
    assert Condition().share(0.4) == 1.0
    assert Condition(rival_cpus=0.1).share(0.4) == pytest.approx(0.75)
    assert Condition(rival_cpus=1.0).share(0.4) == 0.5
    assert Condition(running=False).share(0.4) == 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"speed": "core"}, "was held to the reference core"), ({"enforcement": "simulated"}, "is a simulation")],
)
def test_runs_that_tell_nothing_of_a_core_make_no_reference(changes: dict[str, Any], said: str) -> None:
    records = [
        msgspec.structs.replace(each, **changes) if isinstance(each, RunStarted) else each
        for each in Synthetic().records
    ]
    with pytest.raises(UsageError, match=said):
        record("x", [sort(records)], {}, {})
