"""Runs the experiments of `cases.py` with the `edgebed` of a checkout and keeps what they gave."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.equality import cases, normal

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The order in which a sum is taken, and with it the last bit, depends on the number of threads."""


def record(into: Path, checkout: Path, names: Sequence[str]) -> None:
    """Write `into`/CASE/METHOD.json for every run of the cases `names`."""
    command = checkout.resolve() / ".venv" / "bin" / "edgebed"
    for name in names:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            play = _real if name in cases.REAL else _simulated
            found = play(command, _files(Path(scratch), name))
        keep(into / name, found)


def _simulated(command: Path, experiment: Path) -> dict[str, Any]:
    runs = experiment.parent / "runs"
    printed = _edgebed(command, runs, "simulate", str(experiment), "--quiet", "--json")
    found = {label(folder): normal.simulated(folder) for folder in runs.iterdir()}
    return found | {"comparison": _comparison(printed, runs)}


def _real(command: Path, experiment: Path) -> dict[str, Any]:
    """The plan comes from a simulation of the same experiment by the same checkout."""
    plans, runs = experiment.parent / "plans", experiment.parent / "runs"
    _edgebed(command, plans, "simulate", str(experiment), "--quiet")
    (plan,) = plans.iterdir()
    real = ("--backend", "local", "--plan", str(plan), "--allow-uncalibrated")
    _edgebed(command, runs, "run", str(experiment), *real, "--quiet")
    (folder,) = runs.iterdir()
    return {label(folder): normal.real(folder)}


def _files(folder: Path, name: str) -> Path:
    """Write profiles, fleet and experiment; the experiment's path."""
    for profile, content in cases.PROFILES.items():
        held = {key: value for key, value in content.items() if name not in cases.REAL or key != cases.UNSIMULATED}
        (folder / f"{profile}.yaml").write_text(yaml.safe_dump(held))
    (folder / "fleet.yaml").write_text(yaml.safe_dump(cases.FLEET))
    experiment = folder / "experiment.yaml"
    experiment.write_text(yaml.safe_dump((cases.SIMULATED | cases.REAL)[name]))
    return experiment


def _edgebed(command: Path, runs: Path, *arguments: str) -> str:
    """What the command printed. Raises SystemExit with its message where it failed."""
    environment = os.environ | ONE_THREAD | {"EDGEBED_RUNS": str(runs), "EDGEBED_CACHE": str(runs.parent / "cache")}
    done = subprocess.run(
        [str(command), *arguments], env=environment, cwd=runs.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"edgebed {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _comparison(printed: str, runs: Path) -> Any:
    """What `--json` printed, with the runs' ids replaced by their labels."""
    for folder in runs.iterdir():
        printed = printed.replace(folder.name, json.dumps(label(folder))[1:-1])
    return json.loads(printed)


def label(folder: Path) -> str:
    """A run's method with the options that it was given: `fedat mu=0.1 tiers=3`."""
    (options,) = yaml.safe_load((folder / "experiment.yaml").read_text())["methods"]
    rest = sorted((key, value) for key, value in options.items() if key != "name")
    return " ".join([options["name"], *(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in rest)])


def keep(folder: Path, found: dict[str, Any]) -> None:
    """Write one file per run, in place of those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for name, content in found.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=None, sort_keys=True))
