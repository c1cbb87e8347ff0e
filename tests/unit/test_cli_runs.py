"""`edgebed runs`, patterns of ids, the version, and the shell's completion."""

from __future__ import annotations

import fcntl
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from edgebed.errors import UsageError
from orchestrator.cli import build
from orchestrator.cli.runs import status_of
from orchestrator.records import types as t
from orchestrator.records.account import write_summary
from orchestrator.runs.find import complete_run, find_run, find_runs
from tests.synthetic import Synthetic
from tests.unit._runs import keep


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One finished run of DTFL, one of FedAvg that was killed, one of FedAvg that an error ended."""
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    keep(tmp_path / "demo-dtfl-1", Synthetic().records)
    write_summary(tmp_path / "demo-dtfl-1")
    killed = [r for r in Synthetic(method="fedavg").records if not isinstance(r, t.RunFinished)]
    keep(tmp_path / "demo-fedavg-2", killed)
    keep(tmp_path / "mine-fedavg-3", [*killed, t.RunFinished(10**12, "error: no quorum", "failed")])
    (tmp_path / "no-run").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build()


def listed(app: typer.Typer, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["runs", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def ids(app: typer.Typer, *arguments: str) -> list[str]:
    return [row["id"] for row in listed(app, *arguments)]


def test_every_run_has_a_row_with_its_state(runs: Path, app: typer.Typer) -> None:
    rows = {row["id"]: row for row in listed(app)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "demo-dtfl-1": "finished",
        "demo-fedavg-2": "killed",
        "mine-fedavg-3": "failed",
    }
    assert rows["demo-dtfl-1"]["rounds"] == 4
    assert rows["demo-dtfl-1"]["time_to_target_s"] > 0
    assert rows["mine-fedavg-3"]["ended"] == "error: no quorum"


def test_a_run_that_is_being_written_goes_on(runs: Path, app: typer.Typer) -> None:
    with (runs / "demo-fedavg-2" / "records.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert ids(app, "--status", "running") == ["demo-fedavg-2"]
    assert status_of("interrupted", writing=True) == "running"  # resumed
    assert status_of("interrupted", writing=False) == "interrupted"
    assert status_of("finished", writing=True) == "finished"  # its report is being written
    assert status_of("failed", writing=False) == "failed"


def test_the_state_of_a_run_does_not_depend_on_how_its_end_is_worded(runs: Path, app: typer.Typer) -> None:
    whole = [record for record in Synthetic().records if not isinstance(record, t.RunFinished)]
    keep(runs / "re-worded-1", [*whole, t.RunFinished(10**12, "no quorum was there", "failed")])
    keep(runs / "re-worded-2", [*whole, t.RunFinished(10**12, "error-free to the last round", "finished")])
    rows = {row["id"]: (row["status"], row["ended"]) for row in listed(app, "re-worded")}
    assert rows == {
        "re-worded-1": ("failed", "no quorum was there"),
        "re-worded-2": ("finished", "error-free to the last round"),
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["demo"], ["demo-dtfl-1", "demo-fedavg-2"]),
        (["*fedavg*"], ["demo-fedavg-2", "mine-fedavg-3"]),
        (["mine", "*dtfl*"], ["demo-dtfl-1", "mine-fedavg-3"]),
        (["--method", "dtfl"], ["demo-dtfl-1"]),
        (["--method", "fed*", "--status", "killed"], ["demo-fedavg-2"]),
        (["--experiment", "no-such"], []),
    ],
)
def test_runs_are_chosen(runs: Path, app: typer.Typer, arguments: list[str], expected: list[str]) -> None:
    assert ids(app, *arguments, "--sort", "id") == expected


def test_runs_are_sorted_and_those_without_a_value_come_last(runs: Path, app: typer.Typer) -> None:
    assert ids(app, "--sort", "id", "--reverse") == ["mine-fedavg-3", "demo-fedavg-2", "demo-dtfl-1"]
    assert ids(app, "--sort", "time")[0] == ids(app, "--sort", "time", "--reverse")[0] == "demo-dtfl-1"


def test_no_id_is_broken_however_narrow_the_terminal(
    runs: Path, app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "an-experiment-with-a-long-name-fedavg-20261121-223904-bbf1"
    records = [msgspec.structs.replace(r, run=long) if isinstance(r, t.RunStarted) else r for r in Synthetic().records]
    keep(runs / long, records)
    assert long in CliRunner().invoke(app, ["runs"]).stdout
    shown = CliRunner().invoke(app, ["compare", "demo-dtfl", long]).stdout
    assert long in shown


def test_no_run_was_made_yet(tmp_path: Path, app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    assert "No runs under" in CliRunner().invoke(app, ["runs"]).stdout
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path / "gone"))
    done = CliRunner().invoke(app, ["runs"])
    assert done.exit_code == 0
    assert "gone yet" in " ".join(done.stdout.split())
    assert json.loads(CliRunner().invoke(app, ["runs", "--json"]).stdout) == []


def test_patterns_name_several_runs_each_once(runs: Path, app: typer.Typer) -> None:
    assert [path.name for path in find_runs(["demo*", "demo-dtfl-1", "mine"])] == [
        "demo-dtfl-1",
        "demo-fedavg-2",
        "mine-fedavg-3",
    ]
    assert find_run("*dtfl*").name == "demo-dtfl-1"
    assert find_run(str(runs / "min*")).name == "mine-fedavg-3"
    for name, why in (("*fedavg*", "2 runs fit"), ("demo", "2 runs begin with"), ("nix*", "there is no run")):
        with pytest.raises(UsageError, match=why):
            find_run(name)
    with pytest.raises(UsageError, match="2 runs begin with 'demo'"):
        find_runs(["demo", "mine"])
    with pytest.raises(UsageError, match=r"did you mean 'demo-dtfl-1'\?"):
        find_run("demo-dftl-1")
    rows = json.loads(CliRunner().invoke(app, ["compare", "demo*", "--json"]).stdout)["rows"]
    assert [row["method"] for row in rows] == ["dtfl", "fedavg"]


def test_ids_complete(runs: Path) -> None:
    assert sorted(complete_run("demo")) == ["demo-dtfl-1", "demo-fedavg-2"]
    assert complete_run("x") == []


def test_version_and_completion_are_there(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"edgebed {metadata.version('edgebed')} ")
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
