"""The agent's image: built once, by one process of this host at a time; a build can be given up; its base."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from edgebed.errors import FleetError
from orchestrator.fleet.docker import image

PATIENCE_S = 10.0

HOLD = """
import sys
from pathlib import Path
from orchestrator.files.shared_lock import shared_lock
with shared_lock(Path(sys.argv[1]), 1.0):
    print("held", flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the locks."""
    monkeypatch.setattr(image, "TEMPORARY", tmp_path)
    return tmp_path


def engine(
    build: Callable[..., Iterator[dict[str, str]]] | None = None,
    get: Callable[[str], Any] | None = None,
    pull: Callable[[str], Any] | None = None,
    id: str = "E1",
) -> SimpleNamespace:
    return SimpleNamespace(
        images=SimpleNamespace(get=get, pull=pull), api=SimpleNamespace(build=build), info=lambda: {"ID": id}
    )


# ---- one builder at a time ----


class Engines:
    """Engines of one kind: what was built on them, by id. A build waits until `go`."""

    def __init__(self) -> None:
        self.builds: list[str] = []
        self.began, self.go = threading.Event(), threading.Event()
        self.there: set[str] = set()

    def client(self, id: str) -> SimpleNamespace:
        def get(name: str) -> SimpleNamespace:
            if name.startswith(image.REPOSITORY) and id not in self.there:
                raise docker.errors.ImageNotFound("none")
            return SimpleNamespace(id="sha256:1", attrs={})

        def build(**options: Any) -> Iterator[dict[str, str]]:
            self.builds.append(id)
            self.began.set()
            assert self.go.wait(PATIENCE_S)
            self.there.add(id)
            return iter(())

        return engine(build, get, id=id)


@contextlib.contextmanager
def building(engines: Engines, id: str) -> Iterator[None]:
    """A thread that builds; it has begun."""
    thread = threading.Thread(target=image.ensure_image, args=(engines.client(id), lambda line: None))
    thread.start()
    try:
        assert engines.began.wait(PATIENCE_S)
        yield
    finally:
        engines.go.set()
        thread.join(PATIENCE_S)


def test_the_second_waits_for_the_first_and_builds_nothing() -> None:
    engines, said = Engines(), list[str]()

    def notify(line: str) -> None:
        said.append(line)
        engines.go.set()

    with building(engines, "E1"):
        tag = image.ensure_image(engines.client("E1"), notify)
    assert said == [f"another process builds the agent's image {tag}: waiting for it"]
    assert engines.builds == ["E1"]


def test_who_waits_can_give_up() -> None:
    engines = Engines()

    def go_on() -> None:
        raise FleetError("the fleet is being closed")

    with building(engines, "E1"), pytest.raises(FleetError, match="closed"):
        image.ensure_image(engines.client("E1"), lambda line: None, go_on)
    assert engines.builds == ["E1"]


def test_another_engine_builds_at_the_same_time() -> None:
    engines, said = Engines(), list[str]()

    def notify(line: str) -> None:
        said.append(line)
        engines.go.set()

    with building(engines, "E1"):
        image.ensure_image(engines.client("E2"), notify)
    assert engines.builds == ["E1", "E2"]
    assert not any("another process" in line for line in said)


def test_the_lock_of_a_builder_that_was_killed_is_free(folder: Path) -> None:
    engines, said = Engines(), list[str]()
    engines.go.set()
    image.ensure_image(engines.client("E1"), said.append)
    engines.there.clear()
    (lock,) = folder.glob("edgebed-build-*.lock")
    dead = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert dead.stdout is not None
    assert dead.stdout.readline() == "held\n"

    def notify(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            os.kill(dead.pid, signal.SIGKILL)

    with dead:
        image.ensure_image(engines.client("E1"), notify)
    assert sum("waiting" in line for line in said) == 1
    assert engines.builds == ["E1", "E1"]


def test_a_build_is_given_up_when_the_fleet_is_closed() -> None:
    read: list[int] = []

    def stream() -> Iterator[dict[str, str]]:
        for number in range(1000):
            read.append(number)
            yield {"stream": "Collecting torch"}

    def get(name: str) -> SimpleNamespace:
        if name.startswith(image.REPOSITORY):
            raise docker.errors.ImageNotFound("none")
        return SimpleNamespace(id="sha256:1", attrs={})

    client = engine(lambda **options: stream(), get)

    def go_on() -> None:
        if len(read) == 3:
            raise FleetError("the fleet is being closed", hint="")

    with pytest.raises(FleetError, match="closed"):
        image.ensure_image(client, lambda line: None, go_on)
    assert len(read) == 3


# ---- the base image ----


def built(monkeypatch: pytest.MonkeyPatch, digests: list[str], base: str = "", here: bool = True) -> dict[str, Any]:
    """What the engine is asked to build, where it has the base image with these digests, or can pull it."""
    asked: dict[str, Any] = {}
    pulled: list[str] = []

    def get(name: str) -> SimpleNamespace:
        if name.startswith(image.REPOSITORY) or not here:
            raise docker.errors.ImageNotFound("none")
        return SimpleNamespace(id="sha256:1", attrs={"RepoDigests": digests})

    def pull(name: str) -> SimpleNamespace:
        pulled.append(name)
        return SimpleNamespace(id="sha256:1", attrs={"RepoDigests": digests})

    def build(**options: Any) -> Iterator[dict[str, str]]:
        asked.update(options)
        return iter(())

    monkeypatch.setenv("EDGEBED_BASE_IMAGE", base)
    client = engine(build, get, pull)
    assert image.ensure_image(client, lambda line: None) == asked["tag"]
    return asked | {"pulled": pulled}


def test_the_image_is_labelled_with_the_digest_of_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    assert built(monkeypatch, ["python@sha256:2"])["labels"][image.BASE_LABEL] == "python@sha256:2"
    assert built(monkeypatch, [])["labels"][image.BASE_LABEL] == "sha256:1"
    missing = built(monkeypatch, ["python@sha256:2"], here=False)
    assert missing["pulled"] == [image.base_of(image.content())] == ["python:3.11-slim-bookworm"]
    assert missing["labels"][image.BASE_LABEL] == "python@sha256:2"


def test_another_base_is_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = built(monkeypatch, []), built(monkeypatch, [], base="python@sha256:3")
    assert image.base_of(image.content("python@sha256:3")) == "python@sha256:3"
    assert ours["tag"] != other["tag"]
    assert ours["tag"] == image.tag_of(image.content())
    assert b"ARG BASE=python@sha256:3\n" in other["fileobj"].read()


def test_a_base_that_cannot_be_pulled_is_named() -> None:
    def absent(name: str) -> None:
        raise docker.errors.ImageNotFound("none")

    def refused(name: str) -> None:
        raise docker.errors.APIError("no route to the registry")

    client = engine(get=absent, pull=refused)
    with pytest.raises(FleetError, match=r"base image python:3\.11-slim-bookworm cannot be pulled: no route") as raised:
        image.ensure_image(client, lambda line: None)
    assert "docker load" in raised.value.hint
