"""`edgebed run --estimate`: the first rounds are those of a simulation that trains, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import build
from orchestrator.experiment import load, only_methods
from orchestrator.records.account import load_summary
from orchestrator.runs import session
from orchestrator.simulation.run import SimulationRequest, simulate

FILE = """\
name: small
fleet: desk-5
data: {name: digits, train_samples: 60, test_samples: 20}
speed: reference x86-avx512
methods: [{name: dtfl}, {name: fedgkt}]
seeds: [4, 5, 6]
dilation: 30
sweep: {training.batch_size: [5, 10]}
training: {rounds: 9, target_accuracy: 0.1}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


def test_it_tells_rounds_dilation_time_and_what_the_reference_does_not_know(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path / "runs"))
    done = CliRunner().invoke(build("run"), ["run", str(path), "--estimate", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    methods = ["dtfl, batch_size 5", "fedgkt, batch_size 5", "dtfl, batch_size 10", "fedgkt, batch_size 10"]
    assert [each["method"].removesuffix(" (simulated)") for each in found] == methods
    assert not (tmp_path / "runs").exists()
    first = {"rounds": 3, "stop_at_target": False, "batch_size": 10}
    changes = {**{f"training.{key}": value for key, value in first.items()}, "seeds": [4], "sweep": None}
    for each, method in zip(found[2:], ("dtfl", "fedgkt"), strict=True):
        alone = only_methods(load(path, changes), [method], path)
        (folder,) = simulate(SimulationRequest(alone, path, tmp_path / method), session.Watch(session.quiet))
        summary = load_summary(folder)
        first, *later = [row.round_s for row in summary.rounds]
        assert (each["seeds"], each["rounds"], each["dilation"]) == (3, 9, 30)
        assert each["first_round_s"] == pytest.approx(first)
        assert each["round_s"] == pytest.approx(sum(later) / 2)
        assert each["wall_s"] == pytest.approx(3 * 30 * (first + 8 * sum(later) / 2))
        assert each["reference_s"] == pytest.approx(summary.reference_s)
        assert each["reference_s"]["layers"] > 0
        assert each["memory_mib"] > 0


def test_a_person_gets_a_table(path: Path) -> None:
    few = ["--set", "sweep=null", "--method", "fedgkt"]
    done = CliRunner().invoke(build("run"), ["run", str(path), "--estimate", *few])
    assert done.exit_code == 0, done.output
    assert "3 × 9" in done.stdout
    assert "by layers" in " ".join(done.stdout.split())
    assert "Memory: the devices may use" in done.stdout


def test_a_run_with_a_budget_takes_no_longer(path: Path) -> None:
    one = ["--json", "--set", "sweep=null", "--method", "fedgkt"]
    done = CliRunner().invoke(build("run"), ["run", str(path), "--estimate", *one])
    (whole,) = json.loads(done.stdout)
    budget_s = whole["first_round_s"] + 4.5 * whole["round_s"]
    done = CliRunner().invoke(
        build("run"), ["run", str(path), "--estimate", *one, "--set", f"training.budget_s={budget_s}"]
    )
    (found,) = json.loads(done.stdout)
    assert (found["rounds"], found["first_round_s"]) == (6, pytest.approx(whole["first_round_s"]))
    assert found["wall_s"] == pytest.approx(3 * 30 * budget_s)
