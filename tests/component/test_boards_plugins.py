"""Plug-ins on real boards: only one that was joined so takes code; others use what is installed on them, if it is the
same. The boards are processes of this host that have joined as any board does."""

from __future__ import annotations

import asyncio
import os
import zipfile
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("cryptography")

from edge_agent.board import plugged
from edge_agent.board.command import parser
from edge_agent.board.plugged import MOST_NAMES, put_plugins
from edgebed.errors import FleetError, PluginError
from edgebed.plugin_code import read_plugins
from orchestrator.experiment import load
from orchestrator.records.account import load_summary
from orchestrator.runs import session
from orchestrator.runs.request import Watch
from tests.component._board_runs import boards, lab, request
from tests.component._boards import Lab, standing
from tests.strangers import alone, forget_all, install, write_folder
from tests.waiting import until

__all__ = ["alone", "lab"]


def wanted(folder: Path, *names: str, plugins: list[str]) -> session.Request:
    made = request(folder, "".join(f"  - {{board: {name}}}\n" for name in names), "{name: fedavg}")
    overrides = {"plugins": plugins, "methods": [{"name": "damped"}]}
    return msgspec.structs.replace(made, experiment=load(made.path, overrides))


@pytest.mark.mosquitto
async def test_a_board_that_takes_code_trains_with_it(lab: Lab, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "away")
    async with boards(lab, b1=True):
        (run,) = await session.run_experiment(wanted(tmp_path, "b1", plugins=[str(folder)]), Watch(lab.said.append))
    assert [row.merged for row in load_summary(run).rounds] == [1, 1]
    (copy,) = read_plugins(lab.keys("b1").folder / "plugins")
    assert copy.sha256 == read_plugins(run / "plugins")[0].sha256


@pytest.mark.mosquitto
async def test_a_board_takes_no_code_by_default_and_is_refused_by_name(lab: Lab, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "away")
    async with boards(lab, b1=True, b2=False):
        with pytest.raises(FleetError, match=r"b2 lacks the plug-in 'damped'.*join --allow-code"):
            await session.run_experiment(wanted(tmp_path, "b1", "b2", plugins=[str(folder)]), Watch(lab.said.append))
    assert not list((lab.keys("b2").folder / "plugins").glob("damped*"))


@pytest.mark.mosquitto
async def test_a_board_uses_the_package_that_is_installed_on_it_where_it_is_the_same(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = str(await asyncio.to_thread(install, tmp_path))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, str(Path(__file__).parents[2])]))  # of the board's process
    async with standing(await lab.board("b1")):
        await until(lambda: len(lab.live.sessions) == 1)
        (run,) = await session.run_experiment(wanted(tmp_path, "b1", plugins=[]), Watch(lab.said.append))
        assert [row.merged for row in load_summary(run).rounds] == [1, 1]
        forget_all()
        edited = write_folder(tmp_path / "edited")
        (edited / "smoothing.txt").write_text("0.2")
        with pytest.raises(FleetError, match="b1 has other code of the plug-in 'damped'"):
            await session.run_experiment(wanted(tmp_path, "b1", plugins=[str(edited)]), Watch(lab.said.append))


def test_an_order_reads_no_package_that_offers_nothing_to_edgebed(tmp_path: Path) -> None:
    put_plugins(tmp_path / "plugins", ["msgspec", "os", "../x", "nothing"], None)
    assert not read_plugins(tmp_path / "plugins")
    assert [each.name for each in (tmp_path / "plugins").iterdir()] == ["plugins.json"]


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"no zip")
    with pytest.raises(PluginError, match="cannot be unpacked"):
        put_plugins(tmp_path / "plugins", ["damped"], tmp_path / "archive")


def archive_of(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugged, "MOST_BYTES", 1 << 20)
    with pytest.raises(PluginError, match="holds more than 2 MiB"):
        put_plugins(tmp_path / "plugins", ["a"], archive_of(tmp_path / "bomb", a="0" * (3 << 20)))
    assert not (tmp_path / "plugins").exists()


def test_nothing_of_an_earlier_fleet_stays(tmp_path: Path) -> None:
    for name in ("before", "after"):
        put_plugins(tmp_path / "plugins", [name], archive_of(tmp_path / name, **{f"{name}.py": "x = 1"}))
    assert [each.name for each in (tmp_path / "plugins").iterdir()] == ["after.py"]


def test_an_order_has_a_board_look_for_so_many_packages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(plugged, "offered", looked.append)
    put_plugins(tmp_path / "plugins", [f"p{i}" for i in range(1000)], None)
    assert len(looked) == MOST_NAMES


def test_a_board_is_joined_without_code_unless_it_is_said() -> None:
    assert not parser().parse_args(["join", "h:1", "t"]).allow_code
    assert parser().parse_args(["join", "h:1", "t", "--allow-code"]).allow_code
