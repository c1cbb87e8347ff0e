"""Ratios of interleaved rounds: pairs of one block, intervals over rounds or experiments, and what is said without."""

from __future__ import annotations

import random
from math import exp, log
from statistics import fmean, stdev

import pytest

from orchestrator.analysis.compared import comparison_table
from orchestrator.records.account import summarise
from orchestrator.records.compare.comparison import compare
from orchestrator.records.compare.paired import paired, round_ratios, unpaired
from orchestrator.records.compare.tabulate import PAIRED, time_in_words
from orchestrator.records.summary import Summary
from orchestrator.report.page import comparison_page
from tests.summaries import changed
from tests.synthetic import Synthetic


def run(
    method: str, seconds: list[float], blocks: list[str | None], series: str = "one", time: float | None = None
) -> Summary:
    whole = summarise(Synthetic(method=method, rounds=len(seconds)).records)
    interleaved = any(block is not None for block in blocks)
    own = {"series": series, "interleaved": interleaved, "block": blocks, "round_s": seconds, "time_to_target_s": time}
    return changed(whole, **own)


def blocks(count: int, fleet: str = "f1", first: int = 1) -> list[str | None]:
    return [f"{fleet}/{number}" for number in range(first, first + count)]


def test_a_ratio_is_of_rounds_of_one_block_and_leaves_out_the_first_on_each_fleet() -> None:
    own = run("dtfl", [9, 2, 6, 50, 8], [*blocks(3), *blocks(2, "f2", 4)])
    base = run("fedavg", [1, 1, 2, 99, 5, 4], [*blocks(4), *blocks(2, "f2", 4)])
    # Block 4 was played twice by the baseline: on the first fleet it has no partner, on the second it is the first.
    assert round_ratios(own, base) == [2, 3, 2]
    (found,) = paired([own, base])
    assert (found.method, found.baseline, found.rounds, found.experiments) == ("dtfl", "fedavg", 3, 1)
    assert found.round_ratio.mean == pytest.approx(12 ** (1 / 3))
    assert (found.round_ratio.low, found.round_ratio.high) == pytest.approx((1.27989, 4.09525), rel=1e-5)


def test_with_several_experiments_the_interval_is_over_them() -> None:
    runs = [
        run(method, seconds, blocks(3), series, time)
        for series, seconds, time in (
            ("a", [1.0, 2.0, 8.0], 10.0),
            ("b", [1.0, 9.0, 9.0], 40.0),
            ("c", [1.0, 6.0, 6.0], 20.0),
        )
        for method, seconds, time in (("dtfl", seconds, time), ("fedavg", [1.0, 1.0, 1.0], 20.0))
    ]
    (found,) = paired(runs)
    assert (found.rounds, found.experiments, found.round_ratio.count) == (6, 3, 3)
    assert found.round_ratio.mean == pytest.approx(6)  # of 4, 9 and 6
    assert found.time_ratio.mean == pytest.approx(1)  # of 0.5, 2 and 1
    assert found.time_ratio.low is not None
    (few,) = paired(runs[:4])
    assert (few.round_ratio.values, few.round_ratio.low) == (pytest.approx((4, 9)), None)


def test_seeds_of_one_experiment_are_pairs_of_their_own_and_the_interval_is_over_them() -> None:
    runs = [
        changed(run(method, [1.0, s, s], blocks(3), time=time), seed=seed)
        for seed, own, own_time in ((1, 2.0, 10.0), (2, 3.0, 20.0), (3, 4.0, 15.0))
        for method, s, time in (("dtfl", own, own_time), ("fedavg", 4.0, 20.0))
    ]
    (found,) = paired(runs)
    assert (found.experiments, found.seeds, found.unit) == (3, (1, 2, 3), "seeds")
    assert found.round_ratio.mean == pytest.approx((0.5 * 0.75 * 1.0) ** (1 / 3))
    assert found.time_ratio.count == 3
    logs = [log(ratio) for ratio in (0.5, 1.0, 0.75)]
    assert found.time_ratio.low == pytest.approx(exp(fmean(logs) - 4.302653 * stdev(logs) / 3**0.5))
    said = time_in_words(found)
    assert "95 % over 3 seeds" in said
    assert "interpolated between evaluations" in said
    assert "no interval" in time_in_words(paired(runs[:2])[0])
    missed = [changed(each, time_to_target_s=None) if each is runs[0] else each for each in runs]
    assert "95 % over 2 seeds" in time_in_words(paired(missed)[0]), "not those that missed it"
    assert time_in_words(paired([changed(each, time_to_target_s=None) for each in runs])[0]) == ""


def test_two_runs_of_a_method_in_one_experiment_have_a_ratio_each() -> None:
    runs = [run("dtfl", [1, s, s], blocks(3)) for s in (2.0, 3.0)] + [run("fedavg", [1, 1, 1], blocks(3))]
    found = paired(runs)
    assert [(each.method, each.round_ratio.mean) for each in found] == [
        ("dtfl", pytest.approx(2)),
        ("dtfl #2", pytest.approx(3)),
    ]


def test_the_interval_holds_the_true_ratio_though_the_host_drifts() -> None:
    """The drift is a random walk of a tenth per block: without pairs it would be most of the difference."""
    chance, hits, trials = random.Random(1), 0, 400
    template = run("a", [1.0] * 13, blocks(13))
    for _ in range(trials):
        drift, own, base = 0.0, [], []
        for _ in range(13):
            drift += chance.gauss(0, 0.1)
            own.append(exp(drift + chance.gauss(0, 0.05)) * 0.8)
            base.append(exp(drift + chance.gauss(0, 0.05)))
        pair = [changed(template, method=m, round_s=s) for m, s in (("a", own), ("b", base))]
        (found,) = paired(pair, pair[1])
        assert found.round_ratio.low is not None
        assert found.round_ratio.high is not None
        hits += found.round_ratio.low <= 0.8 <= found.round_ratio.high
    assert 0.92 <= hits / trials <= 0.98


def test_runs_that_were_not_interleaved_have_no_pairs_and_are_told_so() -> None:
    alone = [run(method, [1.0, 2.0, 3.0], [None] * 3) for method in ("dtfl", "fedavg")]
    both = [run(method, [1.0, 2.0, 3.0], blocks(3)) for method in ("dtfl", "fedavg")]
    assert paired(alone) == []
    assert any("did not alternate" in note for note in compare(alone).notes)
    for fine in (both, alone[:1], [changed(each, enforcement="simulated") for each in alone]):
        assert unpaired(fine) == []
    old = [
        Summary.of_dict(
            {key: value for key, value in each.as_dict().items() if key not in ("series", "interleaved", "block")}
        )
        for each in alone
    ]
    assert paired(old) == []


def test_page_and_table_show_the_pairs() -> None:
    both = [run("dtfl", [1.0, 2.0, 3.0, 2.5], blocks(4)), run("fedavg", [1.0, 4.0, 4.0, 4.0], blocks(4))]
    (found,) = paired(both)
    page = comparison_page(both)
    assert all(show(found) in page for _, show in PAIRED)
    (row,) = comparison_table(both).attrs["paired"]
    assert row["round_ratio"] == pytest.approx((0.5 * 0.75 * 0.625) ** (1 / 3))
    assert row["round_ratio_low"] < row["round_ratio"] < row["round_ratio_high"]
    assert '"paired":{' in page
    assert '"paired":null' in comparison_page([changed(each, interleaved=False) for each in both])
