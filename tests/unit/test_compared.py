"""What a comparison page shows: methods with bands, a table for every baseline, reasons for what is missing."""

from __future__ import annotations

import pytest

from orchestrator.records.account import summarise
from orchestrator.records.compare import tabulate
from orchestrator.records.compare.page import compared
from orchestrator.records.summary import Summary
from tests.summaries import changed
from tests.synthetic import Synthetic


def run(method: str, seed: int, accuracy: float = 0.2) -> Summary:
    made = summarise(Synthetic(method=method, accuracy=accuracy).records)
    return changed(made, seed=seed, run=f"{method}-{seed}")


def test_seeds_of_a_method_are_one_curve_with_a_band() -> None:
    few = [run("dtfl", 1, 0.2), run("dtfl", 2, 0.1), run("fedavg", 1)]
    assert compared(few)["methods"][0]["charts"]["time"]["band"] is None
    found = compared([*few, run("dtfl", 3, 0.15)])
    dtfl, fedavg = found["methods"]
    assert [dtfl["name"], fedavg["name"]] == ["dtfl", "fedavg"]
    for _, mean, low, high in dtfl["charts"]["time"]["band"]:
        assert low <= mean <= high
    last = dtfl["charts"]["rounds"]["band"][-1]
    assert last == pytest.approx([4, 0.6, 0.4, 0.8])
    assert [len(one["points"]) for one in dtfl["charts"]["time"]["seeds"]] == [4, 4, 4]
    assert fedavg["charts"]["time"]["band"] is None
    xs = [x for x, _ in fedavg["charts"]["bytes"]["seeds"][0]["points"]]
    assert xs == sorted(xs)
    assert xs[-1] == run("fedavg", 1).bytes_up_total + run("fedavg", 1).bytes_down_total


def test_settings_of_a_sweep_have_names_of_their_own() -> None:
    runs = [changed(run("dtfl", 1), setting={"training.batch_size": size}, run=f"r{size}") for size in (32, 64)]
    names = ["dtfl, batch_size 32", "dtfl, batch_size 64"]
    found = compared(runs)
    assert [method["name"] for method in found["methods"]] == names
    assert list(found["tables"]) == names
    assert [row["label"] for row in found["times"]["rows"]] == names


def test_a_method_has_one_style_whatever_is_beside_it() -> None:
    alone, beside = compared([run("fedavg", 1)]), compared([run("dtfl", 1), run("fedavg", 1)])
    assert alone["methods"][0]["style"] == beside["methods"][1]["style"] != beside["methods"][0]["style"]


def test_groups_of_one_method_have_names_and_lines_of_their_own() -> None:
    own = run("dtfl", 1)
    found = compared([own, changed(own, enforcement="unlimited"), changed(own, experiment="other")])["methods"]
    names = [method["name"] for method in found]
    assert names == ["dtfl, synthetic, limits held by kernel", "dtfl, synthetic, unlimited: real boards", "dtfl, other"]
    styles = [method["style"] for method in found]
    assert len({each["colour"] for each in styles}) == 1
    assert len({each["dash"] for each in styles}) == len({each["marker"] for each in styles}) == 3


def test_every_method_can_be_the_baseline_and_a_missing_speed_up_says_why() -> None:
    found = compared([run("dtfl", 1), run("splitfed", 1), run("fedavg", 1, 0.1)])
    place = found["labels"].index("speed-up")
    assert found["baseline"] == "fedavg"
    by_method = {row[0]: row[place] for row in found["tables"]["dtfl"]}
    assert by_method == {"dtfl": "1.00 ×", "splitfed": "1.00 ×", "fedavg": "– (fedavg missed the target)"}
    assert {row[0]: row[place] for row in found["tables"]["fedavg"]}["dtfl"] == "– (fedavg missed the target)"
    assert found["runs"]["texts"][0]["speed_up"] == "– (fedavg missed it)"


def test_the_seconds_of_a_method_add_up_to_its_rounds() -> None:
    summary = run("dtfl", 1)
    (row,) = compared([summary])["spent"]["rows"]
    shares = [sum(device.phase_s.values()) for device in summary.devices.values()]
    assert row["bars"][-1][2] == pytest.approx(sum(shares) / len(shares) / len(summary.rounds), rel=1e-4)


def test_a_run_without_a_round_is_compared_too() -> None:
    found = compared([summarise(Synthetic(method="dtfl", rounds=0).records), run("fedavg", 1)])
    assert [row["label"] for row in found["spent"]["rows"]] == ["fedavg"]
    assert found["methods"][0]["charts"]["bytes"]["seeds"] == []
    assert {row[0] for row in found["profiles"]} == {"fedavg"}
    assert compared([])["methods"] == []


def test_simulations_are_named_so_only_beside_real_runs() -> None:
    real, made = run("fedavg", 1), changed(run("dtfl", 1), enforcement="simulated")
    assert [method["name"] for method in compared([made, made])["methods"]] == ["dtfl"]
    assert [method["name"] for method in compared([made, real])["methods"]] == ["dtfl (simulated)", "fedavg"]


def test_one_method_in_two_experiments_has_two_names() -> None:
    found = compared([run("dtfl", 1), changed(run("dtfl", 1), experiment="other")])
    assert [method["name"] for method in found["methods"]] == ["dtfl, synthetic", "dtfl, other"]


def test_latex_has_the_paired_ratio_where_rounds_alternated() -> None:
    from orchestrator.records.compare.groups import group
    from orchestrator.records.compare.paired import paired

    def interleaved(method: str, slower: float) -> Summary:
        summary = run(method, 1)
        blocks = [f"fleet/{index}" for index in range(4)]
        rounds = [slower * row.round_s for row in summary.rounds]
        return changed(summary, interleaved=True, series="s", block=blocks, round_s=rounds)

    both = [interleaved("dtfl", 0.5), interleaved("fedavg", 1.0)]
    text = tabulate.to_latex(group(both), "fedavg", [], paired(both))
    assert "round, paired ratio" in text
    (line,) = [line for line in text.splitlines() if line.startswith("dtfl &")]
    assert "0.500 [0.500, 0.500]" in line
    assert "round, paired ratio" not in tabulate.to_latex(group(both), "fedavg", [])
