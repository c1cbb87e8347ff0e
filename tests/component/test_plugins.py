"""Plug-ins in whole runs: the same accuracy from a file, a folder and a package, simulated and real; the run's copy."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import edgebed
from edgebed.errors import FleetError, PluginError
from edgebed.plugin_code import read_plugin
from edgebed.wire.messages import Presence, Shutdown
from edgebed.wire.protocol import PROTOCOL
from orchestrator.fleet.control.membership import Membership
from orchestrator.records.types import Fault, Record
from tests.strangers import accuracies, alone, forget_all, install, write_file, write_folder

__all__ = ["alone"]

MODEL = {"name": "resnet-tiny", "widths": [4, 4, 8]}
TRAINING = {"rounds": 2, "batch_size": 32, "seed": 2}


def experiment(*methods: str, **more: object) -> dict[str, object]:
    named = [{"name": name} for name in methods]
    return {"name": "e", "fleet": "dtfl-5", "model": MODEL, "methods": named, "training": TRAINING, **more}


def test_a_folder_and_an_installed_package_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "away")
    (from_folder,) = edgebed.simulate(experiment("damped"), plugins=[folder], runs=tmp_path / "runs")
    forget_all()
    monkeypatch.syspath_prepend(str(install(tmp_path)))
    (from_package,) = edgebed.simulate(experiment("damped"), runs=tmp_path / "runs")
    (fedavg,) = edgebed.simulate(experiment("fedavg"), runs=tmp_path / "runs")
    assert accuracies(from_folder) == accuracies(from_package) != accuracies(fedavg)
    copies = [read_plugin("plugins/damped", run.path) for run in (from_folder, from_package)]
    assert copies[0].sha256 == copies[1].sha256 == read_plugin(str(folder)).sha256
    assert copies[1].told.requirements == ("numpy",)
    assert not (fedavg.path / "plugins").exists()


def test_a_run_goes_on_and_is_repeated_with_its_own_copy_and_says_so(tmp_path: Path) -> None:
    path = write_file(tmp_path / "away")
    wanted = experiment("stranger", plugins=[str(path)])
    (first,) = edgebed.simulate(wanted, runs=tmp_path / "runs", overrides={"training.rounds": 1}, checkpoint_s=0.0)
    (whole,) = edgebed.simulate(wanted, runs=tmp_path / "whole")
    path.write_text("raise SystemError('the edited file is run')")
    forget_all()
    lines: list[str] = []
    (again,) = edgebed.run(resume=first, overrides={"training.rounds": 2}, on_event=lambda e: lines.append(str(e)))
    assert accuracies(again) == accuracies(whole)
    (line,) = (line for line in lines if "has changed since this run began" in line)
    assert str(path) in line
    assert str(first.path / "plugins" / path.name) in line
    forget_all()
    (repeated,) = edgebed.simulate(whole.path / "experiment.yaml", runs=tmp_path / "repeated")
    assert accuracies(repeated) == accuracies(whole)
    copy = whole.path / "plugins" / path.name
    copy.write_text(copy.read_text() + "\n")
    forget_all()
    with pytest.raises(PluginError, match="has been changed"):
        edgebed.simulate(whole.path / "experiment.yaml", runs=tmp_path / "repeated")


class Fleet:
    """A membership of two devices whose run uses one plug-in."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.sent: list[tuple[str, object]] = []

        def send(device: str, message: object) -> None:
            self.sent.append((device, message))

        self.members = Membership(["a", "b"], send, self.records.append, plugins={"damped": "1" * 64})

    def joins(self, device: str, **plugins: str) -> None:
        self.members.on_control(device, Presence(device, f"{device}-{plugins}", True, PROTOCOL, plugins=plugins))


@pytest.mark.parametrize(
    ("plugins", "what"),
    [({"damped": "2" * 64}, "has other code of the plug-in 'damped', 2222"), ({}, "lacks the plug-in 'damped'")],
)
async def test_a_device_with_other_code_is_refused_by_name_with_the_cure(plugins: dict[str, str], what: str) -> None:
    fleet = Fleet()
    fleet.joins("a", damped="1" * 64, more="3" * 64)
    fleet.joins("b", **plugins)
    assert fleet.members.present() == ["a"]
    with pytest.raises(FleetError) as error:
        await asyncio.wait_for(fleet.members.wait_joined(60), 5)
    for text in ("b " + what, "111111111111", "install the version of this run", "--allow-code"):
        assert text in str(error.value)
    (fault,) = (each for each in fleet.records if isinstance(each, Fault))
    assert fault.device == "b"
    assert what in fault.what
    (end,) = (message for _, message in fleet.sent if isinstance(message, Shutdown))
    assert what in end.why
    fleet.joins("b", damped="1" * 64)
    assert fleet.members.present() == ["a", "b"], "the cure is no cure"


def test_a_plug_in_that_needs_what_is_not_installed_is_refused_before_a_fleet_starts(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    path.write_text("import nowhere_to_be_found\n" + path.read_text())
    with pytest.raises(PluginError, match="nowhere_to_be_found"):
        edgebed.run(experiment("fedavg"), plugins=[path], runs=tmp_path / "runs")
    assert "stranger_file" not in sys.modules
    assert not (tmp_path / "runs").exists()
