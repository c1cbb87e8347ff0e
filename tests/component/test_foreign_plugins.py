"""Attacks by code of plug-ins and by those who write beside it: another user of the host, the author of a plug-in, and
the author of a run's folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgebed.errors import PluginError
from edgebed.plugin_code import MANIFEST, read_plugin, read_plugins, use, write_plugins
from orchestrator.fleet import leftovers
from orchestrator.fleet.docker import backend as docker_backend
from orchestrator.fleet.making import Making
from orchestrator.fleet.swarm import backend as swarm_backend
from tests.strangers import alone, write_file, write_folder

__all__ = ["alone"]

NOBODY = 65534


@pytest.mark.root
def test_another_user_s_manifest_beside_a_plug_in_says_nothing(tmp_path: Path) -> None:
    """In a folder such as /tmp, which anybody may write to: it had any module imported, and any package installed."""
    path = write_file(tmp_path)
    said = {
        "sha256": read_plugin(str(path)).sha256,
        "source": "x",
        "modules": ["antigravity"],
        "requirements": ["evil"],
    }
    planted = tmp_path / MANIFEST
    planted.write_text(json.dumps({path.name: {"sha256": read_plugin(str(path)).sha256, **said}}))
    os.chown(planted, NOBODY, NOBODY)
    code = read_plugin(str(path))
    assert code.told.modules == ("stranger_file",)
    assert code.told.requirements == ()
    assert code.told.source == str(path)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["pipe", "link", "another's plug-in"])
def test_another_user_s_manifest_does_not_stop_a_plug_in(kind: str, tmp_path: Path) -> None:
    path, planted = write_file(tmp_path), tmp_path / MANIFEST
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "link":
        planted.symlink_to("/dev/zero")
    else:
        planted.write_text(json.dumps({path.name: {"sha256": "0" * 64, "source": "x", "modules": []}}))
    os.chown(planted, NOBODY, NOBODY, follow_symlinks=False)
    assert read_plugin(str(path)).told.modules == ("stranger_file",)


def test_a_manifest_of_one_s_own_still_finds_changes(tmp_path: Path) -> None:
    write_plugins([read_plugin(str(write_file(tmp_path)))], tmp_path / "copies")
    (tmp_path / "copies" / "stranger_file.py").write_text("changed = True")
    with pytest.raises(PluginError, match="has been changed"):
        read_plugins(tmp_path / "copies")


def test_what_is_put_beside_a_plug_in_after_it_was_read_takes_no_part(tmp_path: Path) -> None:
    """A folder of the same name came before the file."""
    code = read_plugin(str(write_file(tmp_path)))
    (tmp_path / "stranger_file").mkdir()
    (tmp_path / "stranger_file" / "__init__.py").write_text("raise SystemError('planted')")
    use([code])
    assert sys.modules["stranger_file"].__file__ == str(tmp_path / "stranger_file.py")


def test_a_plug_in_is_whole_after_its_files_are_gone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "inner").mkdir()
    (folder / "inner" / "more.py").write_text("MORE = 7")
    method = folder / "method.py"
    method.write_text(f"{method.read_text()}\nfrom damped.inner.more import MORE\n")
    code = read_plugin(str(folder))
    (folder / "inner" / "more.py").unlink()
    (folder / "shares.py").unlink()
    use([code])
    assert sys.modules["damped.method"].MORE == 7


@pytest.mark.parametrize("name", ["edgebed", "Edgebed", "EDGEBED[orchestrator]", "edgebed ==9"])
def test_nothing_named_like_edgebed_is_taken_from_an_index(name: str, tmp_path: Path) -> None:
    """The name may be somebody else's there; its package would be installed over ours in the devices' image."""
    folder = write_folder(tmp_path)
    (folder / "requirements.txt").write_text(f"{name}\nedgebed-more\neinops\n")
    assert read_plugin(str(folder)).told.requirements == ("edgebed-more", "einops")


# ---- the images of those who may do more than a device ----


def _image(client: object, notify: object, go_on: object, plugins: Path | None = None) -> str:
    return "with packages" if plugins else "plain"


async def test_a_helper_that_shapes_links_has_no_packages_of_plug_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has NET_ADMIN, as root."""
    asked: list[str] = []
    monkeypatch.setattr(docker_backend, "ensure_image", _image)
    monkeypatch.setattr(docker_backend, "used_subnets", lambda client: [])
    monkeypatch.setattr(leftovers, "collect", list)
    monkeypatch.setattr(docker_backend.links, "choose", lambda client, image, labels: asked.append(image))
    engine = SimpleNamespace(info=dict)
    monkeypatch.setattr(docker_backend, "connect", lambda: engine)
    backend = docker_backend.DockerBackend(cast(Any, SimpleNamespace(devices=[])), "f", plugins=tmp_path)
    await backend.prepare()
    assert asked == ["plain"]
    assert vars(backend)["_image"] == "with packages"


async def test_a_node_s_helper_has_no_packages_of_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the engine's socket: root of its node."""
    asked: list[str] = []

    class Stop(Exception):
        pass

    async def start_helpers(manager: object, nodes: object, image: str, *rest: object) -> None:
        asked.append(image)
        raise Stop

    monkeypatch.setattr(swarm_backend, "ensure_image", _image)
    monkeypatch.setattr(swarm_backend, "start_helpers", start_helpers)
    monkeypatch.setattr(swarm_backend, "write_credentials", lambda *options: None)
    images = SimpleNamespace(get=lambda tag: SimpleNamespace(id=tag))
    backend = swarm_backend.SwarmBackend.__new__(swarm_backend.SwarmBackend)
    own: dict[str, Any] = {
        "_plugins": tmp_path, "_making": Making(), "_client": SimpleNamespace(images=images), "_fleet_id": "f",
        "_manager": SimpleNamespace(remove_dead=lambda: None), "_file": SimpleNamespace(helper_port=1, registry=""),
        "_folder": tmp_path, "_ca": None, "_placement": SimpleNamespace(nodes=[]), "_notify": print,
    }  # fmt: skip
    vars(backend).update(own)
    with pytest.raises(Stop):
        await backend.prepare()
    assert asked == ["plain"]
    assert vars(backend)["_image"] == "with packages"
