"""Runs of one method with different seeds: intervals, speed-ups, stragglers by profile, tables for papers."""

from __future__ import annotations

import csv
import io
import re

import pytest

from orchestrator.records.compare.comparison import compare
from orchestrator.records.compare.groups import Estimate, default_baseline, estimate, group, profiles, speed_up
from orchestrator.records.compare.tabulate import to_csv, to_latex, with_interval
from orchestrator.records.summary import Summary
from orchestrator.records.words.formatting import seconds
from tests.summaries import changed, timed
from tests.synthetic import FLEET

QUICK = [timed("dtfl", seed, time) for seed, time in ((1, 10.0), (2, 12.0), (3, 14.0))]
SLOW = [timed("fedavg", seed, time) for seed, time in ((1, 30.0), (2, 24.0), (3, 28.0))]


def test_the_interval_is_students() -> None:
    found = estimate([10.0, 12.0, 14.0])  # mean 12, s 2, t(0.975, 2) = 4.30265
    assert found.mean == 12
    assert (found.low, found.high) == pytest.approx((12 - 4.30265 * 2 / 3**0.5, 12 + 4.30265 * 2 / 3**0.5), rel=1e-5)
    assert estimate([5.0]) == Estimate(5.0, count=1, values=(5.0,))
    assert estimate([]) == Estimate(None)


def test_two_seeds_have_no_interval_and_no_interval_is_clamped() -> None:
    few = [timed("dtfl", seed, time) for seed, time in ((1, 1.0), (2, 20.0))]
    (found,) = group(few)
    assert (found.time_to_target_s.low, found.time_to_target_s.values) == (None, (1.0, 20.0))
    assert with_interval(found.time_to_target_s, seconds) == "1 s, 20 s"
    (three,) = group([*few, timed("dtfl", 3, 2.0)])
    assert three.time_to_target_s.low is not None
    assert three.time_to_target_s.low < 0
    high = estimate([0.7, 0.99, 0.99]).high
    assert high is not None
    assert high > 1


def test_the_baseline_is_chosen_by_its_method_and_is_named() -> None:
    assert default_baseline([*QUICK, *SLOW, timed("tifl", 1, 5.0)]) is SLOW[-1]
    assert default_baseline([timed("tifl", 1, 5.0), *QUICK]).method == "tifl"
    found = compare([*SLOW, *QUICK])
    assert found.labels["speed_up"] == "speed-up over fedavg"
    assert [row["speed_up"] for row in found.rows] == pytest.approx([1, 1, 1, 3, 2, 2])  # each beside its own seed
    assert compare([*SLOW, *QUICK], QUICK[0]).labels["speed_up"] == "speed-up over dtfl"
    assert compare([SLOW[0], QUICK[1]]).texts[1]["speed_up"] == "– (no run of its seed)"


def test_runs_of_one_method_are_one_group() -> None:
    groups = group([QUICK[0], *SLOW, *QUICK[1:]], SLOW[0])
    assert [(g.method, g.runs, g.seeds) for g in groups] == [("dtfl", 3, (1, 2, 3)), ("fedavg", 3, (1, 2, 3))]
    assert groups[0].time_to_target_s.mean == 12


def test_simulated_runs_are_never_averaged_with_real_ones() -> None:
    assert len(group([QUICK[0], changed(QUICK[1], enforcement="simulated")])) == 2


def test_a_speed_up_is_of_pairs_of_one_seed() -> None:
    found = speed_up(QUICK, SLOW)
    assert found.mean == pytest.approx((3.0 * 2.0 * 2.0) ** (1 / 3))
    assert found.count == 3
    assert found.low is not None
    assert found.high is not None
    assert found.low < 2.0 < 3.0 < found.high
    assert speed_up(QUICK[:1], SLOW[1:]) == Estimate(None)  # no seed in common


def test_runs_that_did_not_reach_the_target_are_counted_and_part_of_the_mean() -> None:
    (found,) = group([*QUICK[:2], changed(timed("dtfl", 3, None), total_s=20.0)])
    assert (found.reached, found.runs, found.time_to_target_s.count) == (2, 3, 3)
    assert found.time_to_target_s.mean == pytest.approx((10 + 12 + 20) / 3)
    assert found.restricted_to_s == 20
    (never,) = group([timed("dtfl", 1, None)])
    assert never.time_to_target_s == Estimate(None)


def test_every_group_of_an_experiment_is_restricted_to_the_same_time() -> None:
    """The last FedAvg ends at 26 s without the target: the curve is 1 to 24 s, then 2/3 to 30 s."""
    slow = [*SLOW[:2], changed(timed("fedavg", 3, None), total_s=26.0)]
    dtfl, fedavg = group([*QUICK, *slow])
    assert (dtfl.restricted_to_s, fedavg.restricted_to_s) == (30, 30)
    assert dtfl.time_to_target_s.mean == pytest.approx(12)
    assert fedavg.time_to_target_s.mean == pytest.approx(24 + 2 / 3 * 6)
    assert dtfl.speed_up.mean == pytest.approx(28 / 12)
    assert dtfl.log_rank_p is not None
    assert dtfl.log_rank_p < 0.1
    assert fedavg.log_rank_p is None
    text = to_latex([dtfl, fedavg], "fedavg", [])
    assert "Kaplan" in text
    assert "(to 30 s)" in text
    assert "log-rank p 0.0" in text


def test_experiments_do_not_restrict_each_other_and_one_run_is_no_test() -> None:
    late = [SLOW[0], changed(timed("fedavg", 2, None), total_s=20.0)]
    others = [changed(each, experiment="other") for each in (QUICK[0], *late)]
    dtfl, fedavg, lone, _ = group([*QUICK, *SLOW, *others])
    assert (dtfl.restricted_to_s, fedavg.restricted_to_s, lone.restricted_to_s) == (None, None, 30)
    assert lone.log_rank_p is None
    assert group([*QUICK, late[1]])[0].log_rank_p is None
    assert group([*QUICK, *late])[0].log_rank_p is not None


def in_setting(summaries: list[Summary], size: int) -> list[Summary]:
    return [changed(each, setting={"training.batch_size": size}) for each in summaries]


def test_a_setting_of_a_sweep_is_a_group_and_is_compared_within_itself() -> None:
    doubled = [changed(each, time_to_target_s=2 * (each.time_to_target_s or 0)) for each in SLOW]
    found = group([*in_setting(QUICK, 32), *in_setting(SLOW, 32), *in_setting(QUICK, 64), *in_setting(doubled, 64)])
    names = ["dtfl, batch_size 32", "fedavg, batch_size 32", "dtfl, batch_size 64", "fedavg, batch_size 64"]
    assert [each.method for each in found] == names
    means = [each.speed_up.mean for each in found]
    assert means[1] == means[3] == 1
    assert means[2] == pytest.approx(2 * (means[0] or 0))


def test_a_simulated_run_is_put_beside_a_real_one_only_where_that_was_asked() -> None:
    simulated = [changed(each, enforcement="simulated") for each in QUICK]
    assert group([*simulated, *SLOW])[0].speed_up == Estimate(None)
    assert group([*simulated, *SLOW], SLOW[-1])[0].speed_up.count == 3
    both = group([*simulated, *(changed(each, enforcement="simulated") for each in SLOW), *SLOW])
    assert both[0].speed_up.mean == pytest.approx(12 ** (1 / 3))


def test_stragglers_are_told_by_profile() -> None:
    (row,) = profiles(QUICK)
    assert (row.profile, row.rounds, row.share, row.why) == ("profile-weak", 12, 1.0, {"cpu": 12})
    each = sum(1470 - 30 - sum_of(name) for name in ("middle", "strong")) / 1e3
    assert row.waited_s == pytest.approx(4 * each, abs=0.3)
    assert row.waited_s == pytest.approx(sum(row.waited_s for row in QUICK[0].rounds))


def sum_of(name: str) -> int:
    speed = FLEET[name]
    return speed.download + speed.decode + 3 * (speed.compute + speed.encode) + speed.blocked + speed.tail


def test_csv_has_a_line_per_run() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(compare([*QUICK, timed("dtfl", 4, None)]).rows))))
    assert [row["seed"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[0]["time_to_target_s"] == "10.0"
    assert rows[3]["time_to_target_s"] == ""


def test_latex_escapes_and_says_how_it_was_made() -> None:
    odd = [changed(summary, method="a_b & c%") for summary in QUICK]
    text = to_latex(group([*odd, *SLOW]), "fedavg", ["care\n\\end{x}"])
    assert "a\\_b \\& c\\%" in text
    assert "Student's t" in text
    assert "3 of 3" in text
    assert text.count("\\\\") == 3  # head and two methods
    assert all(line.startswith("%") for line in text.splitlines() if "care" in line)
    widths = {line.count(" & ") for line in text.splitlines() if re.search(r" \\\\$", line)}
    assert len(widths) == 1


def test_an_interval_is_shown_only_where_there_is_one() -> None:
    assert with_interval(Estimate(None), str) == "–"
    assert with_interval(Estimate(2.0, count=1), str) == "2.0"
    assert with_interval(Estimate(2.0, 1.0, 3.0, 2), str) == "2.0 [1.0, 3.0]"
