"""`edgebed-agent join` and `leave`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from edge_agent.board.client import Service
from edge_agent.board.keystore import JoinedService, Keystore
from edge_agent.sensors.source import text_of
from edgebed.errors import EdgebedError, UsageError
from edgebed.module_process import module_command
from edgebed.service_unit import ServiceUnit
from edgebed.wire.boards import Join, parse_token

UNIT = "edgebed-agent"
NEEDS = ("CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_NET_ADMIN", "MemoryMax=90%", "ReadWritePaths=-/sys/fs/cgroup")
"""To limit itself: `tc`, and the cgroup of its agent, which root may make with the first one only. The agent's own
process has no capability (edge_agent/entry.py)."""


def join(
    service: Service, token_text: str, keys: Keystore, notify: Callable[[str], None], *, allow_code: bool = False
) -> JoinedService:
    """Enrol this board. The key stays here; the secret is sent only to the service whose CA the token names. A join
    that broke off may be repeated: the same key gets its certificate again. `allow_code`: the board runs plug-ins that
    the service sends.

    Raises:
        UsageError: the token is wrong, the service refuses, or the board has joined already.
        LinkError: the service cannot be reached, is another one, or the clocks differ.
        FileError: the folder cannot be written.
    """
    if keys.joined:
        known = keys.service()
        raise UsageError(
            f"this board has joined {known.host}:{known.port} as {known.name}", hint="edgebed-agent leave, then join"
        )
    token = parse_token(token_text)
    ca = service.ca(token.fingerprint)
    enrolled = service.join(ca, Join(token.secret, keys.request(), facts()))
    joined = JoinedService(enrolled.board, enrolled.name, service.host, service.port, enrolled.mqtt_port, allow_code)
    keys.keep(joined, ca, enrolled.certificate)
    notify(f"joined {service} as {enrolled.name} (id {enrolled.board}); the key is in {keys.folder}")
    return joined


def leave(keys: Keystore, notify: Callable[[str], None]) -> None:
    """Remove the service unit and the folder, and tell the service. Raises UsageError, FileError."""
    if unit(keys.folder).remove():
        notify(f"the service unit {UNIT} is removed")
    if not keys.joined:
        keys.remove()
        raise UsageError("this board has not joined", hint="there is nothing more to undo")
    known = keys.service()
    try:
        Service(known.host, known.port).leave(keys.identity)
        notify(f"left {known.host}:{known.port}: this board's certificate is revoked")
    except EdgebedError as error:
        notify(f"the service was not told ({error}); on its host: edgebed boards revoke {known.name}")
    keys.remove()
    notify(f"{keys.folder} is removed, with the key")


def unit(folder: Path) -> ServiceUnit:
    """The systemd unit that connects this board from boot on."""
    command = Path(sys.executable).parent / "edgebed-agent"
    start = (str(command), "run") if command.exists() else tuple(module_command("edge_agent.entry", "run"))
    return ServiceUnit(UNIT, "Edgebed agent of this board", start, {"EDGEBED_BOARD": str(folder)}, folder, NEEDS)


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, with an IPv6 address in brackets. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{text!r} is no address of a service", hint="write HOST:PORT, as `edgebed boards invite` does"
        )
    return host, int(port)


def facts() -> dict[str, str]:
    """What the service shows of this board, for people."""
    return {
        "host": platform.node(),
        "machine": platform.machine(),
        "model": text_of(Path("/proc/device-tree/model")) or "",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "edgebed": version_of("edgebed"),
        "cores": str(os.cpu_count() or ""),
        "memory_mib": str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20),
    }


def version_of(package: str) -> str:
    """ "" where it is not installed as a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
