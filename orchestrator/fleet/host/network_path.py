"""What this host's network path carries when many shaped links are busy at once: measured once per boot and kernel.

Every link of a fleet costs CPU time of the host for each packet, outside the quotas of the devices. So a host can hold
the rates of a few devices and not those of a hundred. The measurement takes some seconds: LINKS shaped links, all busy,
first upwards, then downwards. It is kept in a file (`cache_file`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from edgebed.limits.shell import missing_tools
from orchestrator.files.output import replace
from orchestrator.fleet.host.cores import machine_id, usable_cores
from orchestrator.fleet.network import netns
from orchestrator.fleet.network.netlink import in_netns
from orchestrator.fleet.network.subnets import LOCAL_POOL, free_subnets, host_networks
from orchestrator.fleet.spec.capacity import Carried
from orchestrator.fleet.spec.profile import FleetSpec, Limits

LINKS, RATES_BIT_S = 16, (100_000_000, 400_000_000, 1_600_000_000)
"""Links, and their rates: the next one is tried if the host carries all of the last."""
ALL = 0.9
"""Share of the links' rates that counts as all."""
USABLE = 0.6
"""Share of what was measured that a fleet may have: broker, orchestrator and devices work on the same cores. A choice,
not a measurement: with it 140 links of 10 Mbit/s, which were 38 and 67 % too slow on two cores, are dilated."""
WARM_UP_S, MEASURED_S = 0.3, 1.0
SURE_BIT_S = 200_000_000
"""A fleet whose rates add up to less is not worth a measurement: every host carries that."""

BUFFER = 1 << 18


class Measured(msgspec.Struct, frozen=True):
    """A measurement and the host that it holds for."""

    boot: str
    kernel: str
    cores: float
    carried: Carried


def cache_file() -> Path:
    """The file of the measurement: in `EDGEBED_CACHE`, else in `edgebed` of the user's cache folder."""
    named = os.environ.get("EDGEBED_CACHE")
    folder = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgebed"
    return folder / "network-path.json"


def known() -> Carried | None:
    """What an earlier measurement on this boot and kernel found; None if there is none."""
    try:
        found = msgspec.json.decode(cache_file().read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError):
        return None
    return found.carried if msgspec.structs.replace(found, carried=NOTHING) == _here() else None


def carried_for(fleets: Sequence[FleetSpec], dilation: float) -> Carried | None:
    """What the path carries, measured if it is not known, for fleets whose dilated rates come near to it. None: the
    rates are small, or this user cannot measure."""
    most = max(max(fleet.rates) for fleet in fleets)
    if most / dilation <= SURE_BIT_S:
        return None
    return known() or measure()


def measure() -> Carried | None:
    """Measure, and keep the result. None without root, `ip` and `tc`."""
    if os.geteuid() != 0 or missing_tools("ip", "tc", "nsenter"):
        return None
    with _links() as wires:
        for rate in RATES_BIT_S:
            for wire in wires:
                netns.shape(wire, Limits(1.0, rate, rate, 64))
            up, down = _one_way(wires, 0), _one_way(wires, 1)
            if min(up, down) < ALL * LINKS * rate:
                break
    carried = Carried(round(USABLE * up), round(USABLE * down))
    _keep(carried)
    return carried


def _one_way(wires: Sequence[netns.Wire], direction: int) -> float:
    """Bits per second on all wires together, over connections of their own. `direction`: 0 up, 1 down."""
    pairs = [_connection(wire) for wire in wires]
    devices, hosts = [device for device, _ in pairs], [host for _, host in pairs]
    try:
        return _busy(wires, devices, hosts, direction) if direction == 0 else _busy(wires, hosts, devices, direction)
    finally:
        for end in (*devices, *hosts):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # drop what is not sent yet
            end.close()


NOTHING = Carried(0, 0)


def _here() -> Measured:
    return Measured(machine_id(), platform.release(), usable_cores(), NOTHING)


def _keep(carried: Carried) -> None:
    path = cache_file()
    with contextlib.suppress(OSError):  # it is measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, msgspec.json.encode(msgspec.structs.replace(_here(), carried=carried)))


@contextlib.contextmanager
def _links() -> Iterator[list[netns.Wire]]:
    """Shaped links for the measurement, removed at the end."""
    subnets = free_subnets(LOCAL_POOL, 30, host_networks())
    made: list[netns.Wire] = []
    try:
        for index in range(LINKS):
            name, veth = netns.wire_names(netns.path_name(os.getpid()), index)
            wire = netns.Wire(name, veth, next(subnets))
            made.append(wire)
            netns.make(wire)
        yield made
    finally:
        for wire in made:
            netns.remove(wire.netns)


def _connection(wire: netns.Wire) -> tuple[socket.socket, socket.socket]:
    """A TCP connection from the wire's namespace to the host: the device's end and the host's end."""
    with socket.create_server((wire.host_address, 0)) as server:
        device = in_netns(wire.path, lambda: socket.create_connection(server.getsockname(), 5))
        host, _ = server.accept()
    return device, host


def _busy(
    wires: Sequence[netns.Wire],
    senders: Sequence[socket.socket],
    receivers: Sequence[socket.socket],
    direction: int,
) -> float:
    """Bits per second on all wires together while every sender sends. `direction`: 0 up, 1 down."""
    end = threading.Event()
    calls = [(sender, functools.partial(sender.send, bytes(BUFFER))) for sender in senders]
    calls += [(receiver, functools.partial(receiver.recv_into, bytearray(BUFFER))) for receiver in receivers]
    jobs = [threading.Thread(target=_repeat, args=(*call, end)) for call in calls]
    for job in jobs:
        job.start()
    try:
        time.sleep(WARM_UP_S)
        before, start = _counted(wires, direction), time.monotonic()
        time.sleep(MEASURED_S)
        return 8 * (_counted(wires, direction) - before) / (time.monotonic() - start)
    finally:
        end.set()
        for job in jobs:
            job.join()


def _counted(wires: Sequence[netns.Wire], direction: int) -> int:
    return sum(netns.counters(wire)[direction] for wire in wires)


def _repeat(end: socket.socket, call: Callable[[], int], over: threading.Event) -> None:
    """Send, or receive, until it is over."""
    end.settimeout(0.1)
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            call()
