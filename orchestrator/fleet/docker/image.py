"""The agent's container image. Its tag is the hash of its content; it is built if no image has that tag."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker.errors

from edgebed.errors import FleetError
from edgebed.plugin_code import read_plugins, sha256_of
from orchestrator.files.shared_lock import TEMPORARY, shared_lock
from orchestrator.files.shipped import shipped, sources

REPOSITORY = "edgebed-agent"
SOURCES = ("edgebed", "edge_agent")
BASE_LABEL = "edgebed.base"
"""Label of the image: the base image, by digest if the engine pulled it from a registry."""

BUILD_S = 1800.0
"""Seconds for which a build of another process is waited for."""

WITH_NEEDS = b"""ARG BASE=%b
FROM ${BASE}
ARG PIP_ARGS=""
COPY requirements.txt /app/requirements.txt
USER root
RUN python3 -m pip install --no-cache-dir $PIP_ARGS -r /app/requirements.txt
USER agent
"""
"""The agent's image with what plug-ins require."""

_DEFAULT_BASE = re.compile(rb"^ARG BASE=(\S+)$", re.MULTILINE)


def content(base: str = "") -> dict[str, bytes]:
    """Everything that the image is built from: bytes by name in the build context. The same in a source tree and in a
    wheel. `base`: the image to start from instead of the one in the Dockerfile."""
    dockerfile = (shipped("image") / "Dockerfile.agent").read_bytes()
    files = {"Dockerfile": _DEFAULT_BASE.sub(b"ARG BASE=" + base.encode(), dockerfile) if base else dockerfile}
    for name in ("agent.lock", "torch.txt"):
        files[f"requirements/{name}"] = (shipped("requirements") / name).read_bytes()
    for package in SOURCES:
        folder = sources(package)
        for path in sorted(folder.rglob("*.py")):
            files[f"{package}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files


def base_of(files: Mapping[str, bytes]) -> str:
    """The image that the Dockerfile starts from."""
    found = _DEFAULT_BASE.search(files["Dockerfile"])
    assert found is not None
    return found[1].decode()


def tag_of(files: Mapping[str, bytes]) -> str:
    """`edgebed-agent:<hash>`; the same content has the same tag on every machine."""
    return f"{REPOSITORY}:{sha256_of(files)[:16]}"


def context(files: Mapping[str, bytes]) -> bytes:
    """The build context as a tar file. The same content gives the same bytes, so the engine can reuse its layers."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def has_image(client: Any) -> bool:
    """Whether the engine has the agent's image."""
    return _has(client, tag_of(content(os.environ.get("EDGEBED_BASE_IMAGE", ""))))


def _has(client: Any, tag: str) -> bool:
    try:
        client.images.get(tag)
    except docker.errors.ImageNotFound:
        return False
    return True


def ensure_image(
    client: Any,
    notify: Callable[[str], None],
    go_on: Callable[[], None] = lambda: None,
    plugins: Path | None = None,
) -> str:
    """The tag of the agent's image; builds the image if the engine has none. The first build takes minutes. If another
    process of this host builds it, waits for that.

    Args:
        client: a docker client.
        notify: called with one line of progress at a time.
        go_on: called repeatedly during a build; it stops the build by raising.
        plugins: folder of plug-ins; what they require is installed in an image of its own, on top of the agent's.
    """
    tag = _ensured(client, content(os.environ.get("EDGEBED_BASE_IMAGE", "")), notify, go_on)
    wanted = sorted({need for code in (read_plugins(plugins) if plugins else ()) for need in code.told.requirements})
    if not wanted:
        return tag
    with_needs = {"Dockerfile": WITH_NEEDS % tag.encode(), "requirements.txt": "\n".join(wanted).encode()}
    return _ensured(client, with_needs, notify, go_on)


def _ensured(client: Any, files: Mapping[str, bytes], notify: Callable[[str], None], go_on: Callable[[], None]) -> str:
    tag = tag_of(files)
    if not _has(client, tag):
        with _sole_builder(client, tag, notify, go_on):
            if not _has(client, tag):  # nobody has built it meanwhile
                _build(client, files, tag, notify, go_on)
    return tag


@contextlib.contextmanager
def _sole_builder(client: Any, tag: str, notify: Callable[[str], None], go_on: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of this host for building an image on this engine."""
    engine = str(client.info().get("ID") or client.api.base_url)
    name = hashlib.sha256(f"{engine} {tag}".encode()).hexdigest()[:16]
    lines = iter([f"another process builds the agent's image {tag}: waiting for it"])

    def wait() -> None:
        go_on()
        for line in lines:
            notify(line)

    with shared_lock(TEMPORARY / f"edgebed-build-{name}.lock", BUILD_S, wait):
        yield


def _build(
    client: Any, files: Mapping[str, bytes], tag: str, notify: Callable[[str], None], go_on: Callable[[], None]
) -> None:
    notify(f"building the agent's image {tag} (minutes the first time)")
    base = _pinned(client, base_of(files))
    notify(f"image: base {base}")
    lines: list[str] = []
    stream = client.api.build(
        fileobj=io.BytesIO(context(files)),
        custom_context=True,
        tag=tag,
        rm=True,
        decode=True,
        buildargs={"PIP_ARGS": os.environ.get("EDGEBED_PIP_ARGS", "")},
        labels={"edgebed.image": "agent", BASE_LABEL: base},
    )
    for event in stream:
        go_on()
        line = str(event.get("stream", "")).strip()
        if line:
            lines.append(line)
        if line.startswith("Step "):
            notify(f"image: {line}")
        if "error" in event:
            raise _not_built(f"{event['error']} Last lines: {' | '.join(lines[-5:])}")


def _pinned(client: Any, base: str) -> str:
    """The base image by digest, or by its id if it is not from a registry. Pulls it if it is missing."""
    try:
        try:
            image = client.images.get(base)
        except docker.errors.ImageNotFound:
            image = client.images.pull(base)
    except docker.errors.APIError as error:
        raise _not_built(f"the base image {base} cannot be pulled: {error.explanation or error}") from None
    return str((image.attrs.get("RepoDigests") or [image.id])[0])


def _not_built(why: str) -> FleetError:
    return FleetError(
        f"the agent's image could not be built: {why}",
        hint="the build must reach an image registry and the package indexes of Debian and Python; or load an image "
        "that was built elsewhere (docker save / docker load)",
    )
