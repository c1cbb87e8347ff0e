"""The agent's container image: tagged by the hash of its content, built when that tag is missing."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgebed.errors import FleetError

REPOSITORY = "edgebed-agent"
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("edgebed", "edge_agent")


def content() -> dict[str, bytes]:
    """Everything the image is built from, by name in the build context.

    Raises:
        FleetError: Edgebed was not installed from a checkout, so the Dockerfile is not here.
    """
    try:
        files = {
            "Dockerfile": (ROOT / "docker" / "Dockerfile.agent").read_bytes(),
            "constraints.txt": (ROOT / "constraints.txt").read_bytes(),
            "requirements.txt": _requirements((ROOT / "pyproject.toml").read_text("utf-8")),
        }
    except FileNotFoundError as error:
        raise FleetError(
            f"the agent's image cannot be built: {error.filename} is missing",
            hint="install Edgebed from a checkout (pip install -e .), or use --backend local",
        ) from None
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    return files


def _requirements(pyproject: str) -> bytes:
    dependencies: list[str] = tomllib.loads(pyproject)["project"]["dependencies"]
    return "\n".join(dependencies).encode() + b"\n"


def tag_of(files: Mapping[str, bytes]) -> str:
    """`edgebed-agent:<hash>`; the same content has the same tag on every machine."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return f"{REPOSITORY}:{digest.hexdigest()[:16]}"


def context(files: Mapping[str, bytes]) -> bytes:
    """The build context as a tar, the same bytes for the same content so that the engine's layer cache holds."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def ensure_image(client: Any, notify: Callable[[str], None], go_on: Callable[[], None] = lambda: None) -> str:
    """The tag of the agent's image, built now if this engine has none. Minutes the first time, for torch is large.

    Args:
        client: a docker client.
        say: takes one line of progress at a time.
        go_on: called again and again during a build; ends it by raising.
    """
    import docker.errors

    files = content()
    tag = tag_of(files)
    try:
        client.images.get(tag)
        return tag
    except docker.errors.ImageNotFound:
        notify(f"building the agent's image {tag} (minutes the first time)")
    lines: list[str] = []
    stream = client.api.build(
        fileobj=io.BytesIO(context(files)),
        custom_context=True,
        tag=tag,
        rm=True,
        decode=True,
        buildargs={"PIP_ARGS": os.environ.get("EDGEBED_PIP_ARGS", "")},
        labels={"edgebed.image": "agent"},
    )
    for event in stream:
        go_on()
        line = str(event.get("stream", "")).strip()
        if line:
            lines.append(line)
        if line.startswith("Step "):
            notify(f"image: {line}")
        if "error" in event:
            raise FleetError(
                f"the agent's image could not be built: {event['error']} Last lines: {' | '.join(lines[-5:])}",
                hint="the build needs a network that reaches Debian's and Python's package indexes, or an image "
                "built elsewhere (docker save / docker load)",
            )
    return tag
