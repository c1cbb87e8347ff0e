"""S²FL's table 3 follows from eq. 1, VGG-16, and whole numbers of rounds."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import mean, pstdev

import msgspec
import pytest

from edgebed.models.costs import model_costs
from edgebed.models.staged import MODELS
from edgebed.wire.settings import LearningTask
from orchestrator.papers.eq1 import Check, check_eq1, slowest, work_of
from orchestrator.papers.tables import Reproduction, load_reproduction

PATH = Path(__file__).parents[2] / "profiles" / "experiments" / "papers" / "s2fl-eq1.yaml"


@pytest.fixture(scope="module")
def table() -> Reproduction:
    return load_reproduction(PATH)


def test_every_printed_figure_follows(table: Reproduction) -> None:
    checks = check_eq1(table, PATH)
    assert sum(check.what == "million elements" for check in checks) == 10
    assert [check for check in checks if not check.agrees] == []


def test_the_seconds_of_a_round_are_the_paper_s(table: Reproduction) -> None:
    """119.3 and 119.6 s of FedAvg, 100.7 and 100.9 of SFL, from 89, 134, 89 and 133 rounds."""
    found = {(check.method, check.rounds): check for check in check_eq1(table, PATH) if check.what == "seconds"}
    assert found["fedavg", 134].ours / 134 == pytest.approx(119.2, abs=0.5)
    assert found["sfl", 133].ours / 133 == pytest.approx(100.6, abs=0.5)


def test_a_figure_that_does_not_follow_is_named(table: Reproduction) -> None:
    figures = {name: {key: list(values) for key, values in rows.items()} for name, rows in table.figures.items()}
    figures["fedavg"]["elements"][0] = 29937
    figures["sfl"]["seconds"][7] = 13800
    wrong = [c for c in check_eq1(msgspec.structs.replace(table, figures=figures), PATH) if not c.agrees]
    assert [(check.method, check.what, check.paper) for check in wrong] == [
        ("fedavg", "million elements", 29937),
        ("sfl", "seconds", 13800),
    ]


def test_elements_of_a_device_are_both_models_and_features_with_their_gradients() -> None:
    """SFL's cut is the fourth pool: 512 maps of 2x2."""
    costs = model_costs(MODELS.create({"name": "vgg16"}), LearningTask((3, 32, 32), 10), 2)
    assert work_of(costs, 14).elements == 2 * 15_119_690
    assert work_of(costs, 10).elements == 2 * 7_640_640 + 2 * 500 * 512 * 2 * 2
    assert work_of(costs, 14).server == 0
    assert work_of(costs, 10).device + work_of(costs, 10).server == work_of(costs, 14).device


def test_the_slowest_of_a_draw_over_all_draws() -> None:
    seconds = [5.0, 1.0, 2.0, 9.0, 4.0]
    longest = [max(drawn) for drawn in combinations(seconds, 3)]
    assert slowest(seconds, 3) == (pytest.approx(mean(longest)), pytest.approx(pstdev(longest)))


def test_a_check_without_chance_must_be_equal() -> None:
    assert Check("a", "b", 1, 10.0, 10.0, 0.0).agrees
    assert not Check("a", "b", 1, 10.0, 11.0, 0.0).agrees
    assert Check("a", "b", 1, 10.0, 11.9, 1.0).agrees
    assert not Check("a", "b", 1, 10.0, 12.1, 1.0).agrees
