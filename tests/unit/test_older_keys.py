"""What older versions wrote under `simulation`: faults, which become events of the scenario; words for costs."""

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
from orchestrator.simulation.older_keys import in_new_words
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
    new = in_new_words(old, PATH, told.append)
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
    assert in_new_words(again, PATH, told.append) is again
    assert again == new
    assert len(told) == 1


def test_a_run_does_not_keep_the_old_key() -> None:
    old = experiment(simulation={"faults": FAULTS})
    new = in_new_words(old, PATH, lambda text: None)
    assert "faults" in msgspec.to_builtins(old)["simulation"]
    assert "faults" not in msgspec.to_builtins(new)["simulation"]
    assert "faults" not in msgspec.to_builtins(experiment())["simulation"]


def test_a_real_run_leaves_it_out_as_ever_and_an_empty_list_says_nothing() -> None:
    check_fleet(experiment(simulation={"faults": [{"device": "d9", "round": 0}]}), fleet(3), PATH)
    empty = experiment(simulation={"faults": []})
    assert in_new_words(empty, PATH, pytest.fail) is empty


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
    new = in_new_words(experiment(simulation={"faults": [fault]}), PATH, told.append)
    with pytest.raises(UsageError, match=rf"^e\.yaml: scenario\[0\]\.{message}") as refused:
        check_fleet(new, fleet(3), PATH)
    assert refused.value.hint == hint
    assert f"round: {fault['round'] + 1}\n" in told[0]


@pytest.mark.parametrize("wrong", [3, [{"device": "d1"}], [{"device": "d1", "round": -1}]])
def test_a_mistake_in_it_is_named_by_its_place(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"experiment: simulation\.faults"):
        experiment(simulation={"faults": wrong})


def test_the_old_word_for_timed_costs_is_read_and_the_new_one_is_told() -> None:
    told: list[str] = []
    new = in_new_words(experiment(simulation={"cost": "reference"}), PATH, told.append)
    assert new == experiment(simulation={"cost": "timed"})
    assert told == [
        "e.yaml: simulation.cost: reference is an old word, which the next version refuses; write timed, or name a "
        "reference: reference NAME"
    ]
    assert in_new_words(new, PATH, pytest.fail) is new


@pytest.mark.parametrize(
    "gone", [{"cost": "host"}, {"cost": "calibrated", "calibration": "c.yaml"}, {"calibration": "c"}]
)
def test_costs_that_a_reference_replaces_are_refused_with_what_to_do(gone: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no calibration and no costs of a host") as refused:
        experiment(simulation=gone)
    assert "`edgebed reference record NAME`" in refused.value.hint
    assert "{cost: reference NAME.json}" in refused.value.hint
    assert experiment(simulation={"calibration": None}).simulation.cost is None  # as older versions wrote every run


@pytest.mark.parametrize("cost", ["refrence x86", "flop", "", "references x", "timed x"])
def test_a_strange_cost_is_refused_with_those_that_there_are(cost: str) -> None:
    with pytest.raises(UsageError, match="simulation: cost"):
        experiment(simulation={"cost": cost})
