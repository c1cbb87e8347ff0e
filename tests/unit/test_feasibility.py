"""Settings that cannot work together are refused before a fleet starts."""

from __future__ import annotations

from typing import Any

import pytest

from edgebed.errors import UsageError
from edgebed.wire.settings import LearningTask
from orchestrator.runs.feasibility import check_fleet, check_methods
from tests.unit._experiments import PATH, experiment
from tests.unit._fleets import fleet


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"training": {"quorum": 5}}, "training.quorum is 5; a round has 4 devices", "write a number from 1 to 4"),
        ({"training": {"quorum": 3, "sample": 0.5}}, "2 of 4 devices (training.sample)", "or raise training.sample"),
        ({"environment": {"profiles": ["cpu1", "cpu22"]}}, "environment.profiles[1]", "known profiles: "),
    ],
)
def test_what_cannot_come_to_pass_on_a_fleet_is_refused(changes: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_fleet(experiment(**changes), fleet(4), PATH)
    assert str(caught.value).startswith("e.yaml: ")
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_a_quorum_of_all_that_are_drawn_is_taken() -> None:
    check_fleet(experiment(training={"quorum": 2, "sample": 0.5}, environment={"profiles": ["cpu1"]}), fleet(4), PATH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"methods": [{"name": "fedavg"}, {"name": "fedgkt"}], "model": {"name": "resnet18"}},
            "methods[1]: fedgkt with",
        ),
        ({"methods": [{"name": "dtfl", "tier": 8}]}, "methods[0]: dtfl with the model resnet-tiny: tier 8"),
        ({"methods": [{"name": "fedgkt", "cut": 60}]}, "methods[0]"),
        ({"model": {"name": "cnn-cifar10"}}, "model: cnn-cifar10 has no pixel of a 1x8x8 picture left"),
    ],
)
def test_a_method_that_cannot_work_with_the_model_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_methods(experiment(**changes), ["d0", "d1"], LearningTask((1, 8, 8), 10), PATH)
    assert str(caught.value).startswith("e.yaml: ")
    assert message in str(caught.value)
    assert caught.value.hint


def test_methods_that_work_with_the_model_are_taken() -> None:
    check_methods(
        experiment(methods=[{"name": "dtfl"}, {"name": "fedgkt"}]), ["d0", "d1"], LearningTask((1, 8, 8), 10), PATH
    )
