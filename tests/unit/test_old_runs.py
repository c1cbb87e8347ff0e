"""Run folders and YAML files of version 0.2.0 still open, and say what they said then."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import build
from orchestrator.runs.folder import RunFolder

OLD = Path(__file__).parents[1] / "recorded" / "v0.2"
FEDAVG, DTFL = "old-fedavg-sim-20261122-014328-af21", "old-dtfl-20261122-014347-0faa"
KEY_FIGURES: dict[str, dict[str, Any]] = {
    FEDAVG: {
        "method": "fedavg",
        "ended": "rounds done",
        "rounds": 4,
        "best_accuracy": 0.13333333333333333,
        "time_to_target_s": None,
        "total_s": 66.59494933333333,
        "round_s_median": 16.648737333333333,
        "bytes_up_total": 3_639_366,
        "bytes_down_total": 3_972_388,
        "enforcement": "simulated",
        "dilation": 1.5,
        "calibrated": False,
    },
    DTFL: {
        "method": "dtfl",
        "ended": "rounds done",
        "rounds": 4,
        "best_accuracy": 0.16666666666666666,
        "time_to_target_s": 0.3498616985,  # 0.15 between 0.1 and 0.1667: version 0.2 gave the end of the round
        "total_s": 0.696534808,
        "round_s_median": 0.1628231175,
        "bytes_up_total": 103_913,
        "bytes_down_total": 35_190,
        "enforcement": "kernel",
        "dilation": 1.0,
        "calibrated": True,
    },
}
SHARES = {
    "kitchen": [5, 15, 15, 1, 12, 12, 6, 13, 3, 12],
    "cpu0.2-1": [21, 2, 4, 16, 1, 4, 11, 3, 12, 6],
    "cpu0.2-2": [1, 10, 8, 10, 14, 11, 10, 11, 12, 9],
}


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for run in KEY_FIGURES:
        shutil.copytree(OLD / run, tmp_path / run)
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    return tmp_path


def printed(app: typer.Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_runs_lists_them(runs: Path, app: typer.Typer) -> None:
    rows = {row["id"]: row for row in json.loads(printed(app, "runs", "--json"))}
    assert {run: (row["rounds"], row["status"]) for run, row in rows.items()} == dict.fromkeys(rows, (4, "finished"))
    assert rows[DTFL]["time_to_target_s"] == pytest.approx(0.349861699, abs=1e-9)
    assert rows[FEDAVG]["accuracy"] == pytest.approx(8 / 60)


def test_compare_prints_their_key_figures(runs: Path, app: typer.Typer) -> None:
    rows = json.loads(printed(app, "compare", DTFL, FEDAVG, "--json"))["rows"]
    found = {row["run"]: row for row in rows}
    assert {run: {key: found[run][key] for key in figures} for run, figures in KEY_FIGURES.items()} == KEY_FIGURES


@pytest.mark.parametrize("run", KEY_FIGURES)
def test_report_makes_the_same_summary_of_the_records(run: str, runs: Path, app: typer.Typer) -> None:
    (runs / run / "summary.json").unlink()
    printed(app, "report", run)
    before = json.loads((OLD / run / "summary.json").read_text())
    after = json.loads((runs / run / "summary.json").read_text())
    now_otherwise = {key for key in before if key.startswith("straggler") or key in ("what_if", "time_to_target_s")}
    assert {key: after[key] for key in before if key not in now_otherwise} == {
        key: value for key, value in before.items() if key not in now_otherwise
    }
    assert after["time_to_target_s"] == pytest.approx(KEY_FIGURES[run]["time_to_target_s"])
    assert after["straggler_gaps_s"] == before["straggler_gaps_s"]
    assert after["straggler"] == [None] * 4  # no gap is 5 % of its round
    assert run in (runs / run / "report.html").read_text()


def test_what_bounded_old_rounds_is_told_where_the_records_tell_it(runs: Path, app: typer.Typer) -> None:
    found = {}
    for run in KEY_FIGURES:
        printed(app, "report", run)
        found[run] = json.loads((runs / run / "summary.json").read_text())
    assert "older version" in found[DTFL]["bound_by"]["why_not"]
    assert found[DTFL]["round_bounds"] == [None] * 4
    assert found[DTFL]["what_if"]["savings"] == []
    assert found[FEDAVG]["bound_by"]["rounds"] == 4
    assert "CPU" in found[FEDAVG]["bound_by"]["text"]


@pytest.mark.parametrize("run", KEY_FIGURES)
def test_export_writes_every_record(run: str, runs: Path, app: typer.Typer, tmp_path: Path) -> None:
    printed(app, "export", run, "--csv", str(tmp_path / "tables"))
    lines = (OLD / run / "records.jsonl").read_text().splitlines()
    types = Counter(json.loads(line)["type"] for line in lines)
    for kind in ("round_started", "evaluated", "round_finished", "limits_set"):
        table = tmp_path / "tables" / f"{kind}.csv"
        assert len(table.read_text().splitlines()) == 1 + types[kind], kind


@pytest.mark.parametrize("run", KEY_FIGURES)
def test_the_checkpoint_is_read(run: str) -> None:
    saved = RunFolder(OLD / run).restore()
    assert saved is not None
    assert saved.progress.round == 4
    assert saved.progress.best_accuracy == KEY_FIGURES[run]["best_accuracy"]
    assert sum(value.numel() for name, value in saved.weights.items() if name.endswith("weight")) > 1000


def test_experiment_fleet_and_profile_are_read(app: typer.Typer) -> None:
    assert json.loads(printed(app, "data", str(OLD / "experiment.yaml"), "--json"))["devices"] == SHARES


@pytest.mark.parametrize("run", KEY_FIGURES)
def test_the_experiment_in_the_run_folder_is_read(run: str, runs: Path, app: typer.Typer) -> None:
    experiment = runs / run / "experiment.yaml"
    experiment.write_text(experiment.read_text().replace("/experiments/", f"{OLD}/"))
    assert json.loads(printed(app, "data", str(experiment), "--json"))["devices"] == SHARES
