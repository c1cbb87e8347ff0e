"""The wheel, in a virtual environment of its own and far from the source tree: its files, `edgebed init`, a run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from orchestrator.files.shipped import FOLDERS
from orchestrator.fleet.docker.image import content, tag_of
from orchestrator.records.reader import read
from orchestrator.records.types import RoundFinished
from tests.e2e.cli import MAIN, NO_CALIBRATION
from tests.e2e.wheel import ROOT, Installed, build_wheel

OURS = {"edgebed", "orchestrator", "edge_agent"}

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    return Installed(folder, build_wheel(folder))


def test_the_wheel_holds_what_the_tree_ships_in_folders_of_its_own(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    stem = "-".join(installed.wheel.name.split("-")[:2])
    assert installed.wheel.name == f"{stem}-py3-none-any.whl"  # one wheel for amd64 and arm64
    assert {name.partition("/")[0] for name in names} == OURS | {f"{stem}.dist-info"}
    assert f"{stem}.dist-info/licenses/LICENSE" in names
    modules = {path.relative_to(ROOT).as_posix() for package in OURS for path in (ROOT / package).rglob("*.py")}
    assert modules <= names
    assert {f"{package}/py.typed" for package in OURS} <= names
    for package, pattern in {
        "orchestrator/dashboard/static": "*",
        "orchestrator/report": "*.j2",
        "edgebed": "*.pyi",
    }.items():
        assert {path.relative_to(ROOT).as_posix() for path in (ROOT / package).glob(pattern)} <= names
    for name, folder in FOLDERS.items():
        files = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {f"edgebed/_data/{name}/{file.as_posix()}" for file in files} <= names
        assert len(files) > 1 or name == "image"


def test_everything_is_found_without_the_tree(installed: Installed) -> None:
    files = installed("python", "-c", f"import {', '.join(OURS)}; print({', '.join(f'{n}.__file__' for n in OURS)})")
    assert all(Path(file).is_relative_to(installed.packages) for file in files.split())
    assert installed("edgebed", "--version").startswith("edgebed ")
    assert "dtfl-table3" in installed("edgebed", "reproduce")
    assert "--broker" in installed("edgebed-agent", "device", "--help")
    image = "from orchestrator.fleet.docker.image import content, tag_of; print(tag_of(content()))"
    assert installed("python", "-c", image).strip() == tag_of(content())


@pytest.mark.root
@pytest.mark.mosquitto
def test_the_sample_runs_from_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    said = installed("edgebed", "init", "demo", cwd=tmp_path)
    assert said.splitlines()[-1] == "Next: edgebed run demo/experiment.yaml"
    run = ("-c", NO_CALIBRATION + MAIN, "run", "demo/experiment.yaml", "--set", "training.rounds=1")
    run = (*run, "--allow-uncalibrated")
    assert "kernel" in installed("python", *run, cwd=tmp_path)
    assert "software" in installed("python", *run, "--method", "fedavg", "--backend", "software", cwd=tmp_path)
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 3
    for folder in runs:
        assert (folder / "report.html").is_file()
        rounds = [record for record in read(folder / "records.jsonl") if isinstance(record, RoundFinished)]
        assert [len(record.merged) for record in rounds] == [5]
