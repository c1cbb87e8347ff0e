"""The tool that compares recordings sees every difference, and only the fields that it names are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edgebed.methods.base import METHODS
from tests.equality import cases
from tests.equality.comparing import compare, differences
from tests.equality.normal import LEFT_OUT, named, simulated, without
from tests.equality.recording import keep, label
from tests.equality.structure import contract_names, function_lines

TRY = yaml.safe_load((Path(__file__).parents[2] / "profiles" / "experiments" / "try.yaml").read_text("utf-8"))

OLD = Path(__file__).parents[1] / "recorded" / "v0.2"


@pytest.mark.parametrize(
    ("a", "b", "place"),
    [
        ({"x": 1.0}, {"x": 1.0000000000000002}, "x"),
        ({"x": 1}, {"x": 1.0}, "x"),
        ({"x": None}, {}, "x"),
        ({"x": [1, 2]}, {"x": [1]}, "x"),
        ({"x": [1, 2]}, {"x": [2, 1]}, "x[0]"),
        (
            {"records": [{"type": "fault", "at_ns": 1}]},
            {"records": [{"type": "fault", "at_ns": 2}]},
            "records.fault[0]",
        ),
    ],
)
def test_every_difference_is_found(a: Any, b: Any, place: str) -> None:
    assert next(found for found, _ in differences(a, b)).startswith(place)
    assert not list(differences(a, a))


def test_frames_of_a_real_run_may_name_the_transfer_before() -> None:
    def run(received: int) -> dict[str, Any]:
        return {"rounds": {"1": {"up": {"a": {"upload_received": [received]}}, "merged": [received]}}}

    assert [place for place, _ in differences(run(1000), run(1018))] == ["rounds.1.merged[0]"]
    assert len(list(differences(run(1000), run(1100)))) == 2


def test_a_run_without_its_id_and_its_moment(tmp_path: Path) -> None:
    task = {"type": "task_sent", "task": "demo-1/0/kitchen/18ea391456022bbd"}
    assert named([task], "demo-1") == [task | {"task": "RUN/0/kitchen/TASK"}]
    started = {"type": "run_started", "wall": "2026", "seed": 1}
    assert without([started], "records", LEFT_OUT) == [{"type": "run_started", "seed": 1}]


def test_a_recorded_run_equals_itself_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = OLD.glob("old-fedavg-*")
    (tmp_path / "run").mkdir()
    for file in folder.iterdir():
        (tmp_path / "run" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "run" / "trace.json").write_text("{}")
    recording = simulated(tmp_path / "run")
    keep(tmp_path / "a" / "case", {label(folder): recording})
    keep(tmp_path / "b" / "case", {label(folder): recording})
    assert compare(tmp_path / "a", tmp_path / "b") == 0
    weights = dict.fromkeys(recording["weights"], "float32 [1] 00")
    keep(tmp_path / "b" / "case", {label(folder): recording | {"weights": weights}})
    assert compare(tmp_path / "a", tmp_path / "b") == 1
    assert compare(tmp_path / "a", tmp_path / "b", ["weights."]) == 0
    assert "DIFFERS" in capsys.readouterr().out
    records = [record | {"new": 1} for record in recording["records"]]
    keep(tmp_path / "b" / "case", {label(folder): recording | {"records": records}})
    kinds = {record["type"] for record in records}
    assert compare(tmp_path / "a", tmp_path / "b", [f"records.{kind}.new" for kind in kinds]) == 0
    assert compare(tmp_path / "a", tmp_path / "b", [f"records.{kind}.old" for kind in kinds]) == 1


def test_all_methods_are_recorded_with_two_seeds() -> None:
    """All that profiles/experiments/try.yaml has: somebody may have added one."""
    seeds: dict[str, set[int]] = {each["name"]: set() for each in TRY["methods"]}
    assert set(seeds) <= set(METHODS.names())
    for case in cases.SIMULATED.values():
        for method in case["methods"]:
            seeds[method["name"]].add(case["training"]["seed"])
    assert {name for name, found in seeds.items() if len(found) < 2} == set()


def test_structure_counts_functions_and_contracts(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def f():\n    return 1\n\n\nclass C:\n    async def g(self):\n        pass\n")
    assert sorted(function_lines(tmp_path / "module.py")) == [2, 2]
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[tool.importlinter]\n[[tool.importlinter.contracts]]\nmodules = ["orchestrator", "edge_agent"]\n'
        '[[tool.importlinter.contracts]]\nlayers = ["edgebed.link | edgebed.methods", "(edgebed.wire)"]\n'
        '[[tool.importlinter.contracts]]\nlayers = ["a | b"]\ncontainers = ["edge_agent"]\n'
    )
    assert contract_names(project) == {
        "edgebed.link",
        "edgebed.methods",
        "edgebed.wire",
        "edge_agent.a",
        "edge_agent.b",
    }
