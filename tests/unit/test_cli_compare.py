"""`edgebed compare` and `edgebed report` as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from edgebed.errors import UsageError
from orchestrator.cli import compare, comparison_tables, report
from orchestrator.records.account import summarise
from orchestrator.records.compare import comparison
from orchestrator.records.summary import Summary
from orchestrator.records.types import RunStarted
from orchestrator.runs.find import find_run
from tests.summaries import changed
from tests.synthetic import Synthetic
from tests.unit._runs import keep


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    keep(tmp_path / "demo-dtfl-1", Synthetic(dilation=3.0).records)
    keep(tmp_path / "demo-fedavg-2", Synthetic(method="fedavg").records)
    return tmp_path


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command("compare")(compare.command)
    app.command("report")(report.command)
    return app


def test_compare_finds_runs_by_the_beginning_of_their_id(runs: Path, app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["compare", "demo-dtfl", str(runs / "demo-fedavg-2"), "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [row["speed_up"] for row in found["rows"]] == pytest.approx([3.0, 1.0])
    assert any("dilation" in note for note in found["notes"])


def test_of_a_simulation_beside_its_real_run_the_error_is_told(runs: Path, app: typer.Typer) -> None:
    real = Synthetic(dilation=3.0).records
    simulated = [
        msgspec.structs.replace(record, enforcement="simulated", backend="simulated")
        if isinstance(record, RunStarted)
        else record
        for record in real
    ]
    keep(runs / "sim-dtfl-1", simulated)
    said = CliRunner().invoke(app, ["compare", "sim-dtfl-1", "demo-dtfl-1"], env={"COLUMNS": "200"}).stdout
    assert "Error of the simulation over" in said
    assert "100% of the assignments are the same" in said
    found = json.loads(CliRunner().invoke(app, ["compare", "sim-dtfl-1", "demo-dtfl-1", "--json"]).stdout)["sim_error"]
    assert {row["error"] for row in found["rounds"]} == {0.0}
    alone = json.loads(CliRunner().invoke(app, ["compare", "sim-dtfl-1", "demo-fedavg-2", "--json"]).stdout)
    assert "sim_error" not in alone, "another method's"


def test_the_baseline_can_be_named(runs: Path, app: typer.Typer) -> None:
    arguments = ["compare", "demo-dtfl", "demo-fedavg", "--baseline", "demo-dtfl", "--json"]
    rows = json.loads(CliRunner().invoke(app, arguments).stdout)["rows"]
    assert [(row["method"], row["speed_up"]) for row in rows] == [("fedavg", pytest.approx(1 / 3)), ("dtfl", 1.0)]


def test_a_method_can_be_the_baseline_and_files_are_written(runs: Path, app: typer.Typer) -> None:
    files = ["--csv", str(runs / "all.csv"), "--latex", str(runs / "all.tex")]
    result = CliRunner().invoke(app, ["compare", "demo-dtfl", "demo-fedavg", "--baseline", "dtfl", "--json", *files])
    assert json.loads(result.stdout)["groups"][1]["method"] == "dtfl"
    assert (runs / "all.csv").read_text().count("\n") == 3
    assert "\\toprule" in (runs / "all.tex").read_text()
    refused = CliRunner().invoke(app, ["compare", "demo-dtfl", "--baseline", "nobody"])
    assert isinstance(refused.exception, UsageError)
    assert "dtfl" in refused.exception.hint


def test_compare_prints_a_table_and_writes_a_page(runs: Path, app: typer.Typer) -> None:
    page = runs / "all.html"
    result = CliRunner().invoke(app, ["compare", "demo-dtfl", "demo-fedavg", "--all", "--html", str(page)])
    assert result.exit_code == 0
    for text in ("time to target", "limits held by", "dilation", "calibrated", "timeline residual"):
        assert text in result.stdout
    assert page.is_file()


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_comparison_fits_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: typer.Typer, width: int, count: int
) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    monkeypatch.setattr(comparison_tables.console, "_width", width)
    methods = ["dtfl", "fedavg", "splitfed", "heterofl", "drop-slowest", "early-exit"][:count]
    for method in methods:
        keep(tmp_path / f"demo-{method}-20261122-{method}", Synthetic(method=method, facts=True).records)
    said = CliRunner().invoke(app, ["compare", "demo-*"]).stdout
    lines = [line for line in said.splitlines() if "demo-" not in line]
    assert max(map(len, lines)) <= width
    table = [line for line in lines if line.startswith(" ") and not set(line) <= set(" ─")]
    assert len(table) <= 10 if count < 4 else all(said.count(f" {method} ") for method in methods)
    assert "…" not in said
    assert {"speed-up", "over", "fedavg"} <= set(said.split())
    whole = " ".join(CliRunner().invoke(app, ["compare", "demo-*", "--all"], env={"COLUMNS": "400"}).stdout.split())
    words = {word for line in lines for word in line.split()}
    assert all(word in whole or word.strip(".;:,") in whole for word in words), "a word was split"


def test_names_of_files_and_figures_are_checked_before_anything_is_done(runs: Path, app: typer.Typer) -> None:
    for command in (["compare", "demo-dtfl", "demo-fedavg"], ["report", "demo-dtfl-1"]):
        for wrong in (["--svg", str(runs / "cmp")], ["--pdf", str(runs / "a.pdf"), "--figure", "violins"]):
            result = CliRunner().invoke(app, [*command, *wrong])
            assert isinstance(result.exception, UsageError), (command, wrong)
            assert result.stdout == ""
    assert {path.name for path in (runs / "demo-dtfl-1").iterdir()} == {"records.jsonl"}


def test_report_takes_the_options_of_compare(runs: Path, app: typer.Typer) -> None:
    files = ["--svg", str(runs / "one.svg"), "--figure", "round", "--round", "2", "--width", "page", "--no-title"]
    result = CliRunner().invoke(app, ["report", "demo-dtfl-1", *files])
    assert result.exit_code == 0, result.output
    assert 'width="504pt"' in (runs / "one.svg").read_text()
    assert "Round 2." in (runs / "one.caption.txt").read_text()
    assert "Round 2" not in (runs / "one.svg").read_text(), "the title was left out"


def test_report_writes_every_file_again(runs: Path, app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["report", "demo-dtfl-1", "--json"])
    assert json.loads(result.stdout)["rounds"] == 4
    names = {path.name for path in (runs / "demo-dtfl-1").iterdir()}
    assert names == {"records.jsonl", "summary.json", "calibration.json", "report.html", "trace.json"}


def test_unknown_and_ambiguous_runs_are_refused_with_what_there_is(runs: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_run("nothing")
    assert "demo-dtfl-1" in caught.value.hint
    with pytest.raises(UsageError, match="2 runs begin"):
        find_run("demo")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8997, "89.9%"), (0.9, "90.0%"), (0.57, "57.0%"), (1.0, "100.0%"), (0.99999, "99.9%"), (0.0, "0.0%")],
)
def test_an_accuracy_is_never_rounded_up(value: float, text: str) -> None:
    assert comparison.accuracy(value) == text


def test_what_a_dilation_does_to_the_server_and_to_threads_is_told() -> None:
    dilated = changed(summarise(Synthetic(dilation=2.5).records), threads_note="cpu4 runs one thread")
    notes = comparison.compare([dilated, changed(dilated, run="second")]).notes
    assert [note for note in notes if note.startswith("2 runs: The server is not dilated")]
    assert "2 runs: cpu4 runs one thread" in notes
    assert not [note for note in comparison.compare([summarise(Synthetic().records)]).notes if "dilated" in note]


def test_a_run_that_just_missed_its_target_does_not_seem_to_have_reached_it() -> None:
    figures = changed(summarise(Synthetic().records), target_accuracy=0.9, best_accuracy=0.8997)
    (texts,) = comparison.compare([figures]).texts
    assert (texts["target_accuracy"], texts["best_accuracy"]) == ("90.0%", "89.9%")


def test_methods_with_several_seeds_stand_in_one_row_each_with_what_their_runs_had(
    runs: Path, app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for seed in (3, 4, 5, 6):
        found = changed(
            summarise(Synthetic(method="dtfl").records), run=f"more-{seed}", seed=seed, dilation=float(seed)
        )
        keep(runs / f"more-{seed}", Synthetic(method="dtfl").records)
        (runs / f"more-{seed}" / "summary.json").write_text(json.dumps(found.as_dict()))
    out = CliRunner().invoke(app, ["compare", "more-*"]).stdout
    assert max(map(len, out.splitlines()[:12])) <= 80
    (row,) = [line.split() for line in out.splitlines() if line.split()[:2] == ["dtfl", "4"]][:1]
    assert row[2:5] == ["4", "of", "4"]
    said = " ".join(out.split())
    assert "dilation 3, 4, 5, 6; late rounds –; rounds disturbed by the host –; calibrated yes." in said
    assert "Times to target are interpolated between evaluations." in said


def held(method: str, seed: int, dilation: float, series: str = "one") -> Summary:
    return changed(
        summarise(Synthetic(method=method).records),
        run=f"{method}-{seed}",
        seed=seed,
        dilation=dilation,
        series=series,
        speed="x86",
    )


def test_the_seeds_of_one_held_experiment_may_have_dilations_of_their_own() -> None:
    def told(runs: list[Summary]) -> bool:
        return any("differ in dilation" in note for note in comparison.compare(runs).notes)

    both = [held(method, seed, seed + 1.0) for seed in (1, 2) for method in ("dtfl", "fedavg")]
    assert not told(both)
    assert told([*both[:3], held("fedavg", 2, 9.0)]), "methods of one seed on different fleets"
    assert told([*both[:2], *(changed(run, series="two") for run in both[2:])])
    assert told([changed(run, speed="host") for run in both])
