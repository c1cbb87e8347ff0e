"""When a run crossed its target: on the line between two evaluations, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dashboard.run_list import make_card
from orchestrator.records.account import load_summary, summarise, write_summary
from orchestrator.records.compare.quantities import figures_of, quantity
from orchestrator.records.crossing import time_to
from tests.synthetic import Synthetic
from tests.unit._runs import keep

EVALUATED = [(1.0, 0.2), (2.0, None), (3.5, 0.6), (5.0, 0.95), (6.0, 0.1)]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0.6, 3.5),
        (0.4, 2.25),  # the round without an evaluation is no point of the line
        (0.8, 3.5 + 1.5 * 0.2 / 0.35),
        (0.96, None),
        (0.2, 1.0),  # nothing is known before the first evaluation
        (0.1, 1.0),
    ],
)
def test_the_target_is_crossed_between_two_evaluations(target: float, expected: float | None) -> None:
    assert time_to(EVALUATED, target) == (None if expected is None else pytest.approx(expected))
    assert time_to([], target) is None


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.none() | st.floats(0, 1)), min_size=1, max_size=20),
    st.floats(0.01, 1),
)
def test_it_is_never_after_the_evaluation_that_shows_the_target_nor_before_the_one_before_it(
    rounds: list[tuple[float, float | None]], target: float
) -> None:
    ends = [sum(seconds for seconds, _ in rounds[: i + 1]) for i in range(len(rounds))]
    points = [(end, accuracy) for end, (_, accuracy) in zip(ends, rounds, strict=True)]
    known = [(end, accuracy) for end, accuracy in points if accuracy is not None]
    shown = next((i for i, (_, accuracy) in enumerate(known) if accuracy >= target), None)
    found = time_to(points, target)
    if shown is None:
        assert found is None
    else:
        assert found is not None
        assert known[max(0, shown - 1)][0] - 1e-9 <= found <= known[shown][0] + 1e-9


def test_summary_quantity_and_card_tell_the_same_time(tmp_path: Path) -> None:
    records = Synthetic(accuracy=0.3, target=0.5).records
    summary = summarise(records)
    first, second = summary.rounds[:2]
    expected = first.elapsed_s + (second.elapsed_s - first.elapsed_s) * (0.5 - 0.3) / 0.3
    assert summary.time_to_target_s == pytest.approx(expected)
    assert quantity("time_to_target_s", figures_of(summary), None) == summary.time_to_target_s
    keep(tmp_path / "run", records)
    write_summary(tmp_path / "run")
    card = make_card(tmp_path / "run" / "records.jsonl")
    assert card is not None
    assert card["time_to_target_s"] == pytest.approx(expected)


def test_the_file_of_an_earlier_version_is_read_with_the_same_rule(tmp_path: Path) -> None:
    keep(tmp_path / "run", Synthetic(accuracy=0.3, target=0.5).records)
    new = write_summary(tmp_path / "run")
    file = tmp_path / "run" / "summary.json"
    text = file.read_text()
    assert new.time_to_target_s is not None
    file.write_text(text.replace(f'"time_to_target_s": {new.time_to_target_s!r}', '"time_to_target_s": 3.0'))
    assert file.read_text() != text
    assert load_summary(tmp_path / "run").time_to_target_s == pytest.approx(new.time_to_target_s)
