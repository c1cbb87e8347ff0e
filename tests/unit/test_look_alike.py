"""The profile that is fitted to a board, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.files.yaml_file import write_yaml
from orchestrator.fleet.spec.profile import Limits, ProfileSpec, load_profile
from orchestrator.look_alike.figures import (
    Figures,
    LinkFigures,
    Step,
    corrected,
    fitted_limits,
    median_step,
    memory_of,
    profile_values,
    rows,
    source_of,
)
from orchestrator.look_alike.measure import spread_cuts
from orchestrator.records.account import summarise
from orchestrator.records.compare.comparison import compare, look_alike_notes, ran_on
from orchestrator.records.summary import Summary
from tests.summaries import changed
from tests.synthetic import Synthetic

LINK = LinkFigures(20e6, 40e6, 5.2)


def steps(*seconds: float, cpu_s: float = 0.01) -> dict[int, Step]:
    return {cut: Step(each, cpu_s * cut, 300.0) for cut, each in enumerate(seconds, 1)}


def test_the_cpus_are_those_with_which_a_step_takes_as_long() -> None:
    board = Figures(steps(0.05, 0.1, 0.2), LINK)
    limits = fitted_limits(board, steps(0.01, 0.02, 0.03), 0.2, 4096)
    assert limits == Limits(0.2, 20_000_000, 40_000_000, 4096, 5.0)  # 0.01/0.05, 0.02/0.1, 0.03/0.2: the median


def test_a_latency_that_is_not_known_is_not_added() -> None:
    board = Figures(steps(0.05), LinkFigures(1e6, 1e6, 0.6))
    assert fitted_limits(board, steps(0.01), 0.2, 4096).latency_ms == 0.0


def test_a_look_alike_that_is_too_slow_gets_more_cpu() -> None:
    profile = ProfileSpec("pi", Limits(0.2, 1, 1, 1))
    slow = corrected(profile, steps(0.1, 0.2, 0.3), steps(0.11, 0.22, 0.3))
    assert slow.limits.cpus == pytest.approx(0.22)


def test_rows_have_the_error_of_every_figure() -> None:
    board, like = Figures(steps(0.1, 0.2), LINK), Figures(steps(0.11, 0.2), LinkFigures(19e6, 40e6, 5.2))
    found = {row.name: row for row in rows(board, like)}
    assert found["step, 1 stage"].error == pytest.approx(0.1)
    assert found["step, 2 stages"].error == pytest.approx(0.0)
    assert found["uplink"].error == pytest.approx(-0.05)
    assert found["memory of the agent"].board == 300.0
    nothing = {row.name: row for row in rows(Figures(steps(0.1), LinkFigures(1, 1, 0.0)), like)}
    assert nothing["half a round trip"].error is None


def test_of_repeated_steps_the_median_counts() -> None:
    assert median_step([Step(1, 2, 3), Step(9, 9, 1), Step(2, 3, 2)]) == Step(2, 3, 3)


@pytest.mark.parametrize(
    ("stages", "count", "cuts"), [(8, 3, [1, 4, 7]), (2, 3, [1]), (3, 3, [1, 2]), (56, 1, [55]), (1, 3, [1])]
)
def test_cuts_are_spread_over_the_model(stages: int, count: int, cuts: list[int]) -> None:
    assert spread_cuts(stages, count) == cuts


@given(st.text(max_size=20))
def test_whatever_a_board_says_its_memory_fits_into_a_profile(text: str) -> None:
    assert 64 <= memory_of({"memory_mib": text}) <= 4 << 20


def test_the_written_profile_reads_back_with_its_source(tmp_path: Path) -> None:
    facts = {"board": 'Raspberry Pi 4: "B" # 1', "machine": "aarch64", "kernel": "6.6", "torch": "2.11.0"}
    source = source_of("kitchen-pi", facts, "resnet-tiny in batches of 32", "this host", "2026-11-22", "0.3.0")
    profile = ProfileSpec("kitchen-pi", Limits(0.301, 18_500_000, 33_100_000, 3791, 1.4), source, "kitchen-pi")
    (tmp_path / "kitchen-pi.yaml").write_bytes(write_yaml(profile_values(profile)))
    assert load_profile("kitchen-pi", tmp_path / "fleet.yaml") == profile
    for part in ("2026-11-22", "edgebed 0.3.0", "Raspberry Pi 4", "torch 2.11.0"):
        assert part in source


def summary(method: str, seconds: float, field: str, boards: dict[str, str], **more: object) -> Summary:
    own = {"method": method, "round_s_median": seconds, "profiles": dict.fromkeys(boards, "p"), field: boards}
    return changed(summarise(Synthetic().records), **(own | more))


def test_a_comparison_says_how_unlike_their_boards_look_alikes_were() -> None:
    boards, twins = {"a": "pi-1", "b": "pi-2"}, {"x": "pi-2", "y": "pi-1"}
    runs = [
        summary("fedavg", 10.0, "real_boards", boards),
        summary("fedavg", 11.0, "look_alikes", twins),
        summary("fedavg", 12.0, "look_alikes", twins),
        summary("dtfl", 5.0, "look_alikes", twins),
        summary("dtfl", 4.0, "real_boards", {"a": "pi-1"}),
        summary("fedavg", 99.0, "look_alikes", twins | {"z": "pi-1"}, profiles={"x": "p", "y": "p", "w": "p"}),
    ]
    assert look_alike_notes(runs) == [
        "fedavg: a round on look-alikes of pi-1, pi-2 took 1.15 times as long as on the boards themselves "
        "(11.5 s and 10 s, medians)"
    ]
    assert look_alike_notes(runs[1:]) == []
    assert [ran_on(each) for each in runs] == ["boards", *["look-alikes"] * 3, "boards", ""]


def test_columns_of_a_comparison_say_which_run_was_on_boards() -> None:
    made = summarise(Synthetic().records)
    named = dict.fromkeys(made.profiles, "pi")
    runs = [changed(made, real_boards=named), changed(made, look_alikes=named), made]
    table = compare(runs)
    assert [text["method"] for text in table.texts] == ["dtfl, on boards", "dtfl, on look-alikes", "dtfl"]
    assert [row["method"] for row in table.rows] == ["dtfl"] * 3
    assert table.notes[0].startswith("dtfl: a round on look-alikes of pi")
