"""One network namespace per device. A veth pair to the host is the device's only connection."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from edgebed.errors import LimitError
from edgebed.limits.shell import run, which
from edgebed.limits.throttle import Shaped, parse_qdisc, shape_commands, show_command, unshape_command
from orchestrator.fleet.network import netlink
from orchestrator.fleet.network.netlink import DEVICE_END
from orchestrator.fleet.spec.profile import Limits

NETNS = Path("/run/netns")
HOST_END = re.compile(r"eb[0-9a-f]{8}\.\d+$")
"""The name of the host's interface of a device's link."""


class Wire(msgspec.Struct, frozen=True):
    """A device's namespace and link. The host's end limits the downlink, the device's end limits the uplink."""

    netns: str
    veth: str
    subnet: IPv4Network

    @property
    def host_address(self) -> str:
        return str(self.subnet[1])

    @property
    def device_address(self) -> str:
        return str(self.subnet[2])

    @property
    def path(self) -> Path:
        return NETNS / self.netns


def path_name(pid: int | str) -> str:
    """What stands for a fleet's id in the names of the links with which a process measures the network path."""
    return f"path{pid}"


def wire_names(fleet_id: str, index: int) -> tuple[str, str]:
    """Names of the namespace and of the host's interface. The kernel allows 15 characters for an interface."""
    return f"edgebed-{fleet_id}-{index}", f"eb{hashlib.sha256(fleet_id.encode()).hexdigest()[:8]}.{index}"


def make(wire: Wire) -> None:
    """Create the namespace and the link. There is no default route and no IPv6, so only the host's end is reachable."""
    link = f"link add {wire.veth} type veth peer name {DEVICE_END} netns {wire.netns}"
    address = f"addr add {wire.host_address}/{wire.subnet.prefixlen} dev {wire.veth}"
    run(["ip", "-batch", "-"], [f"netns add {wire.netns}", link, address])
    with contextlib.suppress(OSError):  # no such file in a kernel without IPv6
        Path(f"/proc/sys/net/ipv6/conf/{wire.veth}/disable_ipv6").write_text("1")
    address = f"addr add {wire.device_address}/{wire.subnet.prefixlen} dev {DEVICE_END}"
    up = [f"link set {interface} up" for interface in (DEVICE_END, "lo")]
    _inside(wire, ["sh", "-c", f"{NO_IPV6}; exec {which('ip')} -batch -"], [address, *up])
    run(["ip", "link", "set", wire.veth, "up"])


NO_IPV6 = "f=/proc/sys/net/ipv6/conf/all/disable_ipv6; [ ! -e $f ] || echo 1 > $f"


def shape(wire: Wire, limits: Limits) -> None:
    """Limit both directions."""
    run(*_batch(shape_commands(wire.veth, limits.downlink_bit_s, limits.latency_ms)))
    _inside(wire, *_batch(shape_commands(DEVICE_END, limits.uplink_bit_s, limits.latency_ms)))


def _batch(commands: list[list[str]]) -> tuple[list[str], list[str]]:
    """Commands of tc as one program and its standard input: each process takes milliseconds, and fleets are large."""
    return ["tc", "-batch", "-"], [" ".join(command[1:]) for command in commands]


def set_rates(wire: Wire, limits: Limits) -> tuple[int, int]:
    """Change the rates of both directions. Returns uplink and downlink as read back."""
    return netlink.set_rates(wire.path, DEVICE_END, wire.veth, limits)


def set_link(wire: Wire, up: bool) -> str:
    """Bring the device's end of its link up, or take it down. Returns what it then is, in words."""
    return netlink.set_link(wire.path, DEVICE_END, up)


def lift(wire: Wire) -> None:
    """Remove the limits, if there are any."""
    if parse_qdisc(run(show_command(wire.veth))).rate_bit_s is not None:
        run(unshape_command(wire.veth))
    if parse_qdisc(_inside(wire, show_command(DEVICE_END))).rate_bit_s is not None:
        _inside(wire, unshape_command(DEVICE_END))


def read(wire: Wire) -> tuple[Shaped, Shaped]:
    """Uplink and downlink as the kernel reports them."""
    up = parse_qdisc(_inside(wire, show_command(DEVICE_END)))
    return up, parse_qdisc(run(show_command(wire.veth)))


def counters(wire: Wire) -> tuple[int, int]:
    """Bytes up and down since the namespace was made."""
    folder = Path("/sys/class/net") / wire.veth / "statistics"
    return int((folder / "rx_bytes").read_text()), int((folder / "tx_bytes").read_text())


def remove(netns: str) -> None:
    """Delete a namespace and, with it, its link. Does nothing if it is already gone."""
    with contextlib.suppress(LimitError):
        run(["ip", "netns", "del", netns])


def existing() -> list[str]:
    """Names of Edgebed's namespaces on this host, of all fleets."""
    names = [entry["name"] for entry in json.loads(run(["ip", "-j", "netns", "list"]) or "[]")]
    return [name for name in names if name.startswith("edgebed-")]


def _inside(wire: Wire, command: Sequence[str], lines: Sequence[str] = ()) -> str:
    program = which(command[0]) or command[0]
    return run(["nsenter", f"--net={wire.path}", program, *command[1:]], lines)
