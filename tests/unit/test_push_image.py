"""The way to an engine on another host, by a program in the place of `ssh`, and the image's name in a registry."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from types import SimpleNamespace

import pytest

from edgebed.errors import FleetError
from orchestrator.fleet.swarm import push
from orchestrator.fleet.swarm.push import engine_at, push_image, pushed

FORWARDS = """#!/bin/sh
echo "$@" > {folder}/asked
while [ "$1" != -L ]; do shift; done
ln -s "${{2#*:}}" "${{2%%:*}}"
exec sleep 600
"""
REFUSES = """#!/bin/sh
echo 'Permission denied (publickey).' >&2
exit 255
"""


class Engine(BaseHTTPRequestHandler):
    """Answers with its version, whatever it is asked."""

    def do_GET(self) -> None:
        body = b'{"ApiVersion": "1.41", "Version": "20.10"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "here"

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Path]:
    """The socket of an engine."""
    path = tmp_path / "engine.sock"
    with ThreadingUnixStreamServer(str(path), Engine) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield path
        server.shutdown()


def ssh(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in the place of `ssh`."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_an_engine_is_reached_by_ssh(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh(tmp_path, FORWARDS.format(folder=tmp_path), monkeypatch)
    with engine_at(f"ssh://pi@far:2222{engine}") as client:
        assert client.version()["Version"] == "20.10"
    asked = (tmp_path / "asked").read_text().split()
    assert asked[-6:] == ["-l", "pi", "-p", "2222", "--", "far"]


def test_what_ssh_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh(tmp_path, REFUSES, monkeypatch)
    why = r"no connection to ssh://pi@far: Permission denied \(publickey\)"
    with pytest.raises(FleetError, match=why), engine_at("ssh://pi@far"):
        pass


@pytest.mark.parametrize("address", ["ssh://", "ssh://far:port", "ssh://pi:secret@far", "unix:///nowhere/engine.sock"])
def test_an_address_that_leads_nowhere_is_named(address: str) -> None:
    with pytest.raises(FleetError, match="engine"), engine_at(address):
        pass


def test_an_image_of_a_registry_is_named_by_its_content() -> None:
    digests = [
        f"{where}/edgebed-agent@sha256:{digit * 64}" for where, digit in (("far:5000", "a"), ("near:5000/lab", "b"))
    ]
    image = SimpleNamespace(attrs={"RepoDigests": digests})
    assert pushed(image, "near:5000/lab") == digests[1]
    with pytest.raises(FleetError, match="was not pushed from here to near:5000"):
        pushed(image, "near:5000")


def test_an_engine_gets_the_image_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it has the name of a registry first: an engine that has only that name builds the image anew."""
    loaded: list[str] = []
    image = SimpleNamespace(id="sha256:1", tags=["near:5000/edgebed-agent:1", "edgebed-agent:1"])
    image.save = lambda chunk_size, named: [image.tags[0] if named is True else named]
    images = SimpleNamespace(get=lambda tag: image, list=list, load=loaded.extend)
    engine = SimpleNamespace(images=images, close=lambda: None)
    monkeypatch.setattr(push, "connect", lambda: engine)
    monkeypatch.setattr(push, "ensure_image", lambda *_: "edgebed-agent:1")
    monkeypatch.setattr("docker.DockerClient", lambda *_, **__: engine)
    assert push_image("", ["unix:///far.sock"], print) == "edgebed-agent:1"
    assert loaded == ["edgebed-agent:1"]
