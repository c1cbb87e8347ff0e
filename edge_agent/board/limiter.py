"""Limits on a board by choice, held by its own kernel: CPU and memory of the agent by a cgroup, rates and latency by tc
on the interface to the service. It needs root.

What is set is noted in a file first, so that it is undone after a crash or a loss of power too.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import platform
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgebed.errors import LimitError
from edgebed.limits.cgroups import Cgroup, join
from edgebed.limits.shell import missing_tools, run
from edgebed.limits.spec import Held, Limits
from edgebed.limits.throttle import (
    Shaped,
    held_by_kernel,
    ifb_commands,
    parse_qdisc,
    shape_commands,
    show_command,
    unshape_command,
)

IFB, CGROUP = "edgebed0", "board"
"""The interface through which packets that arrive are led, and the agent's cgroup below `edgebed`."""

MODULES = {
    "ifb": "ifb",
    "ingress": "sch_ingress",
    "mirred": "cls_u32 and act_mirred",
    "netem": "sch_netem",
    "tbf": "sch_tbf",
}
"""The module of the kernel that a command needs, by a word of the command."""


class Note(msgspec.Struct):
    """What is to be undone."""

    interface: str


class Limiter:
    """Puts limits on the board's agent, and takes them off.

    Args:
        folder: the board's, for the note.
        host: name or address of the service, to find the interface by.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._file, self._host = folder / "limits.json", host
        self._lock = threading.Lock()  # one call at a time, each from a thread of its own

    def hold(self, limits: Limits, pid: int) -> Held:
        """Put limits on a process, and on the interface; what the kernel then holds. Raises LimitError: this board
        cannot; nothing stays limited then."""
        with self._lock:
            return self._hold(limits, pid)

    def _hold(self, limits: Limits, pid: int) -> Held:
        self._check()
        interface = self._noted() or _interface_to(self._host)
        _refuse_foreign(interface, self._noted())
        try:
            self._file.write_bytes(msgspec.json.encode(Note(interface)))
            self._shape(interface, limits)
            cgroup = Cgroup.named(CGROUP)
            cgroup.make()
            cgroup.set(limits)
            join(cgroup, pid)
            return _held(limits, interface, cgroup)
        except (LimitError, OSError):
            self._undo()
            raise

    def undo(self) -> None:
        """Remove every limit, also those of an agent that was killed. Does nothing where nothing was noted."""
        with self._lock:
            self._undo()

    def _undo(self) -> None:
        interface = self._noted()
        if not interface:
            return
        for command in (unshape_command(interface), ["tc", "qdisc", "del", "dev", interface, "ingress"],
                        ["ip", "link", "del", IFB]):  # fmt: skip
            with contextlib.suppress(LimitError):  # it was not set, or the interface is gone
                run(command)
        with contextlib.suppress(LimitError):  # there is none
            cgroup = Cgroup.named(CGROUP)
            cgroup.lift()
            cgroup.remove()  # it stays, without limits, while an agent that ends is in it
        self._file.unlink(missing_ok=True)

    def _check(self) -> None:
        if os.geteuid() != 0:
            raise LimitError(
                "only root can limit a board", hint="run `edgebed-agent` as root: `join … --service` as root does so"
            )
        if missing := missing_tools("ip", "tc"):
            raise LimitError(f"this board has no {', '.join(missing)}", hint="apt install iproute2")

    def _shape(self, interface: str, limits: Limits) -> None:
        for command in shape_commands(interface, limits.uplink_bit_s, limits.latency_ms):
            _run(command)
        if not _there(IFB):
            for command in ifb_commands(interface, IFB):
                _run(command)
        for command in shape_commands(IFB, limits.downlink_bit_s, limits.latency_ms):
            _run(command)

    def _noted(self) -> str:
        """The interface that is limited; "" where none is."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Note).interface
        except (OSError, msgspec.DecodeError):
            return ""


def _interface_to(host: str) -> str:
    """The interface of the route to a host. Raises LimitError for the loopback, and where there is no route."""
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
        routes = json.loads(run(["ip", "-j", "route", "get", str(ipaddress.ip_address(str(address).split("%")[0]))]))
        interface = str(routes[0]["dev"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise LimitError(f"no route to {host}: {error}", hint="see `ip route`") from None
    if interface == "lo":
        raise LimitError(
            f"{host} is this machine itself: its loopback is not limited",
            hint="a board that is this host is a device without `board` in the fleet file",
        )
    return interface


def _there(interface: str) -> bool:
    return any(link.get("ifname") == interface for link in json.loads(run(["ip", "-j", "link", "show"])))


def _refuse_foreign(interface: str, noted: str) -> None:
    """Raises LimitError where somebody else has set a queueing discipline: it would be lost. Those that the kernel sets
    have the handle 0."""
    qdiscs = json.loads(run(["tc", "-j", "qdisc", "show", "dev", interface]) or "[]")
    own = [qdisc for qdisc in qdiscs if qdisc.get("handle") not in ("0:", None)]
    if own and not noted:
        raise LimitError(
            f"{interface} has a queueing discipline already: {own[0].get('kind')}",
            hint=f"tc qdisc del dev {interface} root; or leave `limit: true` away",
        )


def _run(command: Sequence[str]) -> None:
    """Raises LimitError, which names the kernel's module that may be missing."""
    try:
        run(command)
    except LimitError as error:
        module = next((module for word, module in MODULES.items() if word in command), "")
        if not module:
            raise
        raise LimitError(
            f"the kernel of this board, {platform.release()}, lacks {module}: {error}",
            hint=f"modprobe {module.split()[0]}; stock Tegra kernels have no such module: then the board cannot be "
            "limited, leave `limit: true` away",
        ) from None


def _held(limits: Limits, interface: str, cgroup: Cgroup) -> Held:
    up, down = _read(interface), _read(IFB)
    (link,) = json.loads(run(["ip", "-j", "-s", "link", "show", "dev", interface]))
    counted = int(link["stats64"]["tx"]["bytes"]), int(link["stats64"]["rx"]["bytes"])
    group = cgroup.read()
    details = {"interface": interface, "cgroup": f"v{cgroup.version}; {group.dump}"}
    held = held_by_kernel("", limits, group, (up, down), counted, alive=True, details=details)
    return msgspec.structs.replace(held, cores=os.cpu_count())


def _read(interface: str) -> Shaped:
    return parse_qdisc(run(show_command(interface)))
