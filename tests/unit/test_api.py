"""The Python API without a fleet: finding and comparing runs, what is refused, and what importing it costs an agent."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

import edgebed
from edgebed.errors import UsageError
from orchestrator import api
from orchestrator.cli import build
from orchestrator.experiment import from_dict, load
from orchestrator.records.account import load_summary
from tests.synthetic import Synthetic
from tests.unit._runs import keep

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "name": "x",
    "fleet": "profiles/fleets/dtfl-5.yaml",
    "methods": [{"name": "dtfl"}, {"name": "fedavg"}],
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    keep(tmp_path / "demo-dtfl-1", Synthetic(dilation=1.0).records)
    keep(tmp_path / "demo-fedavg-1", Synthetic(method="fedavg").records)
    return tmp_path


# ---- finding and comparing runs ----


def test_the_docstrings_examples(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = doctest.testmod(api)
    assert result.failed == 0
    assert result.attempted >= 5


def test_the_programs_of_the_documentation_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the one that needs a fleet, in a folder that has the profiles; one of them writes a picture there."""
    (runs / "profiles").symlink_to(ROOT / "profiles")
    monkeypatch.chdir(runs)
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for program in programs:
        if "edgebed.run(" not in program:
            exec(compile(program, "docs/python.md", "exec"), names)
    assert names["fedavg"].rounds["straggler"].tolist() == ["cpu0.1-1"] * 3
    assert names["table"]["reached"].tolist() == [1, 1]
    assert (runs / "accuracy.png").stat().st_size > 0


def test_a_run_says_what_its_folder_says(runs: Path) -> None:
    (runs / "demo-dtfl-1" / "experiment.yaml").write_text("name: demo\nfleet: /f.yaml\nmethods: [{name: dtfl}]\n")
    run = edgebed.load_run("demo-d*")
    assert (run.path, run.name, run.method, run.seed) == (runs / "demo-dtfl-1", "demo-dtfl-1", "dtfl", 7)
    assert run.summary == load_summary(run.path).as_dict()
    assert run.experiment["methods"] == [{"name": "dtfl"}]
    assert repr(run) == "Run('demo-dtfl-1')"
    assert run.curve["accuracy"].tolist() == run.summary["accuracy"]


def test_what_is_no_run_is_refused(runs: Path) -> None:
    with pytest.raises(UsageError, match="no run 'demo-x'"):
        edgebed.load_run("demo-x")
    with pytest.raises(UsageError, match="2 runs begin with"):
        edgebed.load_run("demo")
    with pytest.raises(UsageError, match="neither a method"):
        edgebed.compare("demo-*", baseline="nobody")


def test_a_comparison_by_method_by_run_and_of_loaded_runs(runs: Path) -> None:
    keep(runs / "demo-fedavg-2", Synthetic(method="fedavg", dilation=2.0).records)
    table = edgebed.compare("demo-*", baseline="dtfl").set_index("method")
    assert table.index.tolist() == ["fedavg", "dtfl"]
    assert table["runs"].tolist() == [2, 1]
    assert table.loc["fedavg", "time_to_target_s"] == pytest.approx((5.625 + 2.8125) / 2)
    assert table.loc["dtfl", ["speed_up", "best_accuracy"]].tolist() == [1.0, 0.8]
    single = edgebed.compare(edgebed.load_runs(["demo-dtfl-1", "demo-fedavg-2"]), by="run")
    assert single["speed_up"].tolist() == [0.5, 1.0]
    assert any("dilation" in note for note in single.attrs["notes"])


# ---- an experiment from a dict ----


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"training": {"rouns": 3}}, "experiment: training.rouns"),
        ({"training": {"rounds": -1}}, "experiment: training.rounds"),
        ({"training": {"optimizer": {"name": "rmsprop"}}}, "experiment: training.optimizer.name"),
        ({"training": {"optimizer": {"lr": float("nan")}}}, "experiment: training.optimizer.lr"),
        ({"methods": [{"name": "fedavg", "tiers": 3}]}, r"experiment: methods\[0\]"),
        ({"methods": [{"name": "nobody"}]}, r"experiment: methods\[0\]"),
        ({"methods": []}, "experiment: methods"),
        ({"name": "a b"}, "experiment: name"),
        ({"model": {"name": object()}}, "model.name is a object"),
        ({"partition": {3: "iid"}}, "partition: the key 3 is no text"),
    ],
)
def test_a_mistake_in_a_dict_is_named_by_its_place_as_in_a_file(wrong: dict[str, Any], place: str) -> None:
    with pytest.raises(UsageError, match=place) as caught:
        from_dict({**GOOD, **wrong})
    assert caught.value.hint


def test_a_dict_gives_what_the_same_file_gives(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text("name: x\nfleet: f.yaml\nmethods: [{name: fedavg}]\ntraining: {rounds: 7, epochs: 2}\n")
    values = {
        "name": "x",
        "fleet": Path("f.yaml"),
        "methods": ({"name": "fedavg"},),
        "training": {"rounds": np.int64(3), "epochs": 2},
    }
    assert from_dict(values, {"training.rounds": 7}) == load(path) == load(path, {"training.rounds": np.int64(7)})
    assert values["training"] == {"rounds": 3, "epochs": 2}  # what the caller gave is not changed


def test_a_wrong_override_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"experiment, overrides\['training\.rounds'\]: training\.rounds is 'many'"):
        edgebed.simulate(GOOD, overrides={"training.rounds": "many"})
    with pytest.raises(UsageError, match=r"overrides\['name\.x'\]: name is not a mapping of keys"):
        edgebed.simulate(GOOD, overrides={"name.x": 1})
    with pytest.raises(UsageError, match="has no method nobody"):
        edgebed.simulate(GOOD, methods="nobody")


def test_a_resumed_run_takes_its_experiment_from_its_folder(runs: Path) -> None:
    with pytest.raises(UsageError, match="from the run's folder"):
        edgebed.run(GOOD, resume="demo-dtfl-1")
    with pytest.raises(UsageError, match="no experiment"):
        edgebed.run()
    text = "name: demo\nfleet: /f.yaml\nmethods: [{name: dtfl}]\n"
    (runs / "demo-dtfl-1" / "experiment.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"training\.epochs"):
        edgebed.run(resume=edgebed.load_run("demo-dtfl-1"), overrides={"training.epochs": 2})


# ---- what is loaded when ----


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_api_is_loaded_when_it_is_used_and_never_by_an_agent() -> None:
    loaded = "print([m for m in ('pandas', 'orchestrator') if m in sys.modules])"
    agent = f"import sys, edgebed, edge_agent.__main__; {loaded}"
    commands = f"import orchestrator.cli; orchestrator.cli.build(); {loaded}; edgebed.load_run; {loaded}"
    expected = ["[]", "['orchestrator']", "['pandas', 'orchestrator']"]
    assert in_a_new_process(f"{agent}; {commands}").splitlines() == expected


def test_a_command_is_built_alone_and_loads_what_it_needs() -> None:
    commands = typer.main.get_command(build()).commands
    assert {"run", "runs", "fleet"} <= set(commands)
    for name in commands:
        assert list(typer.main.get_command(build(name)).commands) == [name]
    assert list(typer.main.get_command(build("rum")).commands) == list(commands)
    loaded = "print([m for m in ('torch', 'scipy') if m in sys.modules])"
    program = f"import sys; from orchestrator.cli import build; build('runs'); {loaded}; build(); {loaded}"
    assert in_a_new_process(program).splitlines() == ["[]", "['torch']"]


def test_the_names_that_are_handed_on_are_those_of_the_api_and_no_others() -> None:
    assert {"run", "simulate", "load_run", "load_runs", "compare"} <= set(dir(edgebed))
    assert edgebed.compare is api.compare
    assert not hasattr(edgebed, "nothing")


def test_without_the_extra_the_package_that_is_missing_is_named() -> None:
    code = """
import sys
sys.modules["pandas"] = None
import edgebed
try:
    edgebed.run
except ImportError as error:
    print(error)
"""
    said = in_a_new_process(code)
    assert "edgebed.run needs the package 'pandas'" in said
    assert "pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]'" in said
