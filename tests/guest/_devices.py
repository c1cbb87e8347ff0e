"""Fleets on a machine with systemd and cgroups of version 2, and what the kernel says of their devices."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgebed.datasets.shard import write_idle_shard
from edgebed.limits.cgroups import MOUNT, PARENT
from edgebed.limits.throttle import mismatches
from edgebed.link.connection import Address
from orchestrator.fleet.base import Held
from orchestrator.fleet.docker.backend import DockerBackend
from orchestrator.fleet.engine import DEVICE, FLEET, connect
from orchestrator.fleet.network import netns
from orchestrator.fleet.spec.profile import FleetSpec, Limits, load_fleet

PROFILE = "cpus: {cpus}\nuplink_mbit_s: 20\ndownlink_mbit_s: 10\nmemory_mib: 1024\nlatency_ms: {latency_ms}\n"


def fleet_file(folder: Path, **devices: tuple[float, float]) -> FleetSpec:
    """Devices by name with their CPUs and latency in milliseconds; 20 Mbit/s up and 10 down."""
    lines = ["name: guest", "devices:"]
    for name, (cpus, latency_ms) in devices.items():
        (folder / f"{name}.yaml").write_text(PROFILE.format(cpus=cpus, latency_ms=latency_ms))
        lines.append(f"  - {{profile: {name}.yaml, name: {name}}}")
    path = folder / "fleet.yaml"
    path.write_text("\n".join(lines))
    return load_fleet(path)


async def start_docker(backend: DockerBackend, folder: Path, *names: str) -> None:
    """Start the containers of a fleet on a broker that is not there."""
    await backend.prepare()
    shard = folder / "idle.safetensors"
    write_idle_shard(shard)
    await backend.start(
        {name: Address(backend.host_of(name), 1, "u", "p") for name in names}, dict.fromkeys(names, shard)
    )


@contextlib.contextmanager
def asleep_in(fleet_id: str) -> Iterator[int]:
    """A process that sleeps in the network and cgroup of a local fleet's one device until it is killed there; its
    id."""
    (namespace,) = [name for name in netns.existing() if fleet_id in name]
    with subprocess.Popen(["ip", "netns", "exec", namespace, "sleep", "100000"]) as sleeper:
        (MOUNT / PARENT / f"{fleet_id}-0" / "cgroup.procs").write_text(str(sleeper.pid))
        yield sleeper.pid


def pid_of(backend: str, fleet_id: str, device: str, index: int) -> int:
    """The process of a device's agent, as the host counts."""
    if backend == "local":
        return int((MOUNT / PARENT / f"{fleet_id}-{index}" / "cgroup.procs").read_text().split()[0])
    chosen = {"label": [f"{FLEET}={fleet_id}", f"{DEVICE}={device}"]}
    (container,) = connect().containers.list(filters=chosen)
    return int(container.attrs["State"]["Pid"])


def cgroup_of(pid: int) -> Path:
    """The folder of the cgroup that holds a process."""
    (line,) = [row for row in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if row.startswith("0::")]
    return MOUNT / line[4:]


def quota_in_force(pid: int) -> float:
    """CPUs: the least quota of the process's cgroup and of all above it."""
    least, folder = float("inf"), cgroup_of(pid)
    while folder != MOUNT:
        quota, period = (folder / "cpu.max").read_text().split()
        least = least if quota == "max" else min(least, int(quota) / int(period))
        folder = folder.parent
    return least


def assert_holds(limits: Limits, held: Held, pid: int) -> None:
    """As read back, and as the kernel's files say of a process of the device."""
    assert mismatches(limits, held) == []
    assert held.read_back
    assert quota_in_force(pid) == pytest.approx(limits.cpus, rel=0.01)


def cpu_share(pid: int, seconds: float) -> float:
    """CPU seconds per second that a busy loop gets which stands in the cgroup of `pid`."""
    folder = cgroup_of(pid)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinner:
        try:
            (folder / "cgroup.procs").write_text(str(spinner.pid))
            until(lambda: _throttled(folder) > 0, 60)
            before, began = _used_s(folder), time.monotonic()
            until(lambda: time.monotonic() > began + seconds, 2 * seconds)
            return (_used_s(folder) - before) / (time.monotonic() - began)
        finally:
            spinner.kill()


def _stat(folder: Path, name: str) -> int:
    rows = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    return int(rows[name])


def _used_s(folder: Path) -> float:
    return _stat(folder, "usage_usec") / 1e6


def _throttled(folder: Path) -> int:
    return _stat(folder, "nr_throttled")


CONNECT = """
import socket, sys, time
host, port = sys.argv[1], int(sys.argv[2])
trips = []
for _ in range(5):
    began = time.monotonic()
    socket.create_connection((host, port), timeout=30).close()
    trips.append(time.monotonic() - began)
print(min(trips))
"""


def connect_s(pid: int, host: str, port: int) -> float:
    """The quickest of five TCP connections from a device's network to the host, in seconds: one trip there and back."""
    command = ["nsenter", "--target", str(pid), "--net", sys.executable, "-c", CONNECT, host, str(port)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def in_network(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", "--target", str(pid), "--net", *command], check=True)


def reload_systemd() -> None:
    """Have systemd read its units again, and write what it believes of every cgroup before it starts another unit."""
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemd-run", "--quiet", "--wait", "true"], check=True)


def traces(fleet_id: str) -> list[str]:
    """What of a fleet is still on this host: namespaces, cgroups, folders, containers, networks."""
    found = [name for name in netns.existing() if fleet_id in name]
    found += [str(path) for path in MOUNT.glob(f"**/{fleet_id}*")]
    found += [str(path) for path in Path("/run/edgebed").glob(fleet_id)]
    client, chosen = connect(), {"label": f"{FLEET}={fleet_id}"}
    things = client.containers.list(all=True, filters=chosen) + client.networks.list(filters=chosen)
    return found + [thing.name for thing in things]


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s:.0f} s"
        time.sleep(0.05)
