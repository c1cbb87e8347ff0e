"""`edgebed profile host` on a real local fleet, and the simulation that takes what it measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.simulation.calibration import load_calibration
from tests.e2e.cli import command
from tests.hangs import run

pytestmark = [pytest.mark.root, pytest.mark.alone]

EXPERIMENT = """
name: other-model
fleet: {fleet}
model: {{name: fcnn}}
methods: [{{name: fedavg}}]
training: {{rounds: 1}}
"""


def edgebed(folder: Path, *arguments: str) -> str:
    environment = os.environ | {"EDGEBED_CACHE": str(folder / "cache"), "EDGEBED_RUNS": str(folder / "runs")}
    done = run([*command(calibrated=False), *arguments], 300, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_host_is_measured_once_and_simulations_of_other_models_take_its_costs(tmp_path: Path) -> None:
    fleet = Path(__file__).parents[2] / "profiles" / "fleets" / "desk-5.yaml"
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT.format(fleet=fleet))
    before = edgebed(tmp_path, "simulate", "experiment.yaml", "--quiet")
    assert "cost model (reference)" in " ".join(before.split())

    printed = edgebed(tmp_path, "profile", "host", "--backend", "local", "--rounds", "1", "--quiet")
    file = tmp_path / "cache" / "host-costs.yaml"
    assert str(file) in printed
    costs = load_calibration(file)
    assert costs.host
    assert costs.server_other > 0
    assert set(costs.profiles) == {"cpu0.1", "cpu0.2", "desk-cpu0.15", "desk-cpu0.3", "desk-cpu0.5"}
    assert all(profile.other > 0 and profile.upload_cpu_s > 0 for profile in costs.profiles.values())

    after = edgebed(tmp_path, "simulate", "experiment.yaml", "--quiet")
    assert f"calibrated from the costs of host {costs.host}" in " ".join(after.split())
