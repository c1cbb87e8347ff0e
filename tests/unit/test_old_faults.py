"""`simulation.faults`, a key of version 0.2: it becomes events of the scenario, for simulations only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from edgebed.errors import UsageError
from orchestrator.experiment import Experiment, from_dict
from orchestrator.runs.feasibility import check_fleet
from orchestrator.scenario.spec import ScenarioEvent
from orchestrator.simulation.old_faults import with_events
from tests.unit._fleets import fleet

PATH = Path("e.yaml")
FAULTS = [
    {"device": "d0", "round": 1, "after_s": 0.5, "away_s": 20},
    {"device": "d1", "round": 2},
    {"device": "d2", "round": 0, "after_s": 1e9, "away_s": 0},
]


def experiment(**changes: Any) -> Experiment:
    return from_dict({"name": "t", "fleet": "f.yaml", "methods": [{"name": "fedavg"}], **changes})


def test_each_fault_is_an_event_behind_those_of_the_scenario() -> None:
    first = ScenarioEvent(at_s=3.0, device="d3", do="freeze")
    old = experiment(simulation={"faults": FAULTS}, scenario=[msgspec.to_builtins(first)])
    told: list[str] = []
    new = with_events(old, PATH, told.append)
    assert new.scenario == [
        first,
        ScenarioEvent(round=2, after_s=0.5, device="d0", do="leave", for_s=20.0),
        ScenarioEvent(round=3, after_s=0.0, device="d1", do="leave"),
        ScenarioEvent(round=1, after_s=1e7, device="d2", do="leave", for_s=1e-6),
    ]
    assert msgspec.structs.replace(new, scenario=old.scenario, simulation=old.simulation) == old
    # What is told can be written in place of the old key, and then nothing more is told.
    (said,) = told
    notice, _, events = said.partition("\n")
    assert notice.startswith("e.yaml: simulation.faults is an old key")
    again = experiment(scenario=[msgspec.to_builtins(first), *yaml.safe_load(events)])
    assert with_events(again, PATH, told.append) is again
    assert again == new
    assert len(told) == 1


def test_a_run_does_not_keep_the_old_key() -> None:
    old = experiment(simulation={"faults": FAULTS})
    new = with_events(old, PATH, lambda text: None)
    assert "faults" in msgspec.to_builtins(old)["simulation"]
    assert "faults" not in msgspec.to_builtins(new)["simulation"]
    assert "faults" not in msgspec.to_builtins(experiment())["simulation"]


def test_a_real_run_leaves_it_out_as_ever_and_an_empty_list_says_nothing() -> None:
    check_fleet(experiment(simulation={"faults": [{"device": "d9", "round": 0}]}), fleet(3), PATH)
    empty = experiment(simulation={"faults": []})
    assert with_events(empty, PATH, pytest.fail) is empty


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        ({"device": "d9", "round": 0}, "device: the fleet has no device 'd9'", "it has: d0, d1, d2"),
        ({"device": "d1", "round": 20}, "round: round is 21; there are 20 rounds", "write a round from 1 to 20"),
    ],
)
def test_what_cannot_come_to_pass_is_refused(fault: dict[str, Any], message: str, hint: str) -> None:
    """In the words of the event, whose rounds count from 1: the user was told what to write."""
    told: list[str] = []
    new = with_events(experiment(simulation={"faults": [fault]}), PATH, told.append)
    with pytest.raises(UsageError, match=rf"^e\.yaml: scenario\[0\]\.{message}") as refused:
        check_fleet(new, fleet(3), PATH)
    assert refused.value.hint == hint
    assert f"round: {fault['round'] + 1}\n" in told[0]


@pytest.mark.parametrize("wrong", [3, [{"device": "d1"}], [{"device": "d1", "round": -1}]])
def test_a_mistake_in_it_is_named_by_its_place(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"experiment: simulation\.faults"):
        experiment(simulation={"faults": wrong})
