"""`edgebed check-method` and `pytest --edgebed-method`: what they say of a method that is right, and of others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from tests import warm
from tests.strangers import write_file, write_folder

ROOT = Path(__file__).parents[2]

MUTANT = """
import torch

from edgebed.methods.fedavg import FedAvg


class Mutant(FedAvg):
    name = "mutant"

    def setup(self, context):
        super().setup(context)
        self.momentum = {}

    def merge(self, weights, contributions):
        merged = super().merge(weights, contributions)
        {body}
        return merged
"""
BODIES = {
    "for name in merged: merged[name] = merged[name] * float('nan')": (
        "trains on one device: training diverged: the loss of batch 0",
    ),
    "for name in merged: weights[name].copy_(merged[name])": ("it changed the weights that it was given",),
    "merged = dict(weights)": ("trains on one device: after two rounds", "the weights are those of the start"),
    "self.momentum = {n: 0.5 * self.momentum.get(n, 0.0) + merged[n] - weights[n] for n in merged}; "
    "merged = {n: (weights[n] + self.momentum[n]).to(weights[n].dtype) for n in merged}": (
        "resumes to the same weights and plans: it forgets something at a resumption",
    ),
    "merged = {n: (weights[n] - 0.5 * (w - weights[n])).to(w.dtype) for n, w in merged.items()}": (
        "gets better at what it trains on: after 6 rounds the loss on the devices' samples is",
    ),
    "return None": ("`merge` returned a NoneType",),
    "merged.popitem()": ("`merge` returned other names",),
    "merged = {n: w + torch.rand(()).to(w.dtype) for n, w in merged.items()}": ("has other weights",),
    "raise ValueError('too few')": ("ValueError: too few, in line 16 of ",),
}


def check(*arguments: str, python: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*(python or warm.python()), "-m", "orchestrator", "check-method", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_method_that_is_right(tmp_path: Path) -> None:
    done = check(str(write_folder(tmp_path)), python=[sys.executable])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 14
    assert all(line.startswith("ok    damped ") for line in lines)


@pytest.mark.parametrize("body", BODIES)
def test_a_fault_is_told_in_words(body: str, tmp_path: Path) -> None:
    path = tmp_path / "mutant.py"
    path.write_text(MUTANT.replace("{body}", body))
    done = check(str(path), "--json")
    assert done.returncode == 2
    failed = [f"{each['check']}: {each['why']}" for each in json.loads(done.stdout) if each["why"]]
    assert f"{len(failed)} of 14 checks of {path} fail" in done.stderr
    for text in BODIES[body]:
        assert any(text in line for line in failed), failed


def test_a_plug_in_without_a_method_and_none_at_all_are_told(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("x = 1")
    assert "has no method, model or data set" in check(str(tmp_path / "nothing.py")).stderr
    assert "there is no plug-in 'nowhere.py'" in check("nowhere.py").stderr


def test_a_file_that_imports_its_neighbour_is_told_to_become_a_folder(tmp_path: Path) -> None:
    (tmp_path / "shares.py").write_text("HALF = 0.5")
    path = tmp_path / "mine.py"
    for line in ("from shares import HALF", "from .shares import HALF"):
        path.write_text(line)
        assert "Hint: a plug-in of several files is a folder" in check(str(path)).stderr


def test_pytest_collects_the_checks_of_a_plug_in_and_nothing_else(tmp_path: Path) -> None:
    installed = metadata.entry_points(group="pytest11", name="edgebed")
    name = "edgebed" if installed else "orchestrator.testing.pytest_plugin"
    path = write_file(tmp_path)
    (tmp_path / "test_other.py").write_text("def test_other(): assert False")
    command = ["-m", "pytest", "-p", name, "-p", "no:cacheprovider", "--edgebed-method", str(path)]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "14 passed" in done.stdout
    path.write_text(MUTANT.replace("{body}", "merged = dict(weights)"))
    done = subprocess.run([*warm.python(), *command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "after two rounds on one device the weights are those of the start" in done.stdout
