"""`edgebed init`: what it writes is the demo, may be loaded, and nothing of anybody is overwritten."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from edgebed.errors import FileError, UsageError
from orchestrator.cli import build
from orchestrator.cli.init import write_sample
from orchestrator.experiment import load
from orchestrator.files.shipped import shipped
from orchestrator.fleet.spec.profile import fleet_of


def test_the_sample_is_the_demo(tmp_path: Path) -> None:
    path, demo = tmp_path / "new" / "experiment.yaml", shipped("profiles") / "experiments" / "demo.yaml"
    assert path in write_sample(tmp_path / "new")
    ours, theirs = load(path), load(demo)
    assert msgspec.structs.replace(ours, name=theirs.name, fleet=theirs.fleet) == theirs
    here, there = fleet_of(path, ours.fleet), fleet_of(demo, theirs.fleet)
    assert {d.name: d.profile.limits for d in here.devices} == {d.name: d.profile.limits for d in there.devices}
    assert (here.backend, here.reserve_cpus) == (there.backend, there.reserve_cpus)


def test_no_file_is_overwritten_and_none_is_written_then(tmp_path: Path) -> None:
    mine = tmp_path / "fleet.yaml"
    mine.write_text("mine")
    with pytest.raises(UsageError, match=r"fleet\.yaml exists already"):
        write_sample(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.yaml"]
    assert mine.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file"):
        write_sample(tmp_path / "file")


def test_the_command_says_what_comes_next(tmp_path: Path) -> None:
    done = CliRunner().invoke(build(), ["init", str(tmp_path / "demo")])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert str(tmp_path / "demo" / "devices" / "cpu0.1.yaml") in lines
    assert lines[-1] == f"Next: edgebed run {tmp_path / 'demo' / 'experiment.yaml'}"
