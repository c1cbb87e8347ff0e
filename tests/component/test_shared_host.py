"""Several fleets on one host, with real cgroups: their quotas fit together, and a fleet whose process was killed does
not count."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edge_agent.telemetry import RunDelay
from edgebed.errors import CapacityError
from edgebed.limits.cgroups import Cgroup, version_of
from orchestrator.fleet import leftovers
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.host.cpus import Standing, admit, standing
from orchestrator.fleet.host.load import HostLoad
from orchestrator.fleet.host.speed import HostSpeed, watch_speed
from orchestrator.fleet.leftovers import loop_group
from orchestrator.fleet.spec.capacity import dilation_of
from orchestrator.fleet.spec.profile import Limits
from orchestrator.records.host_records import HostRound
from orchestrator.records.timeline.disturbance import TaskWork, not_got_s
from orchestrator.records.types import Record, RoundFinished, RoundStarted
from orchestrator.runs.session import standing_fleet
from tests.component._faults import small_fleet
from tests.hangs import run

pytestmark = [pytest.mark.root, pytest.mark.mosquitto]

EDGEBED = [sys.executable, "-c", "from orchestrator.cli import main; main()"]
DEADLINE_S = 20.0


def holding() -> list[Standing]:
    """The fleets that hold CPUs of this host. One of boards holds none."""
    return [fleet for fleet in standing() if fleet.cpus]


@pytest.fixture(autouse=True)
def _alone() -> None:
    if others := holding():
        pytest.fail(f"these tests need a host without other fleets: {others}")


async def test_quotas_of_two_fleets_fit_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    cores = usable_cores()
    large = small_fleet(tmp_path / "second", cores, cores)
    lines: list[str] = []
    async with (
        standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as first,
        standing_fleet(large, backend="local", notify=lines.append) as second,
    ):
        quotas = [(await fleet.backend.held(name)).cpus or 0 for fleet in (first, second) for name in fleet.names]
        assert sum(quotas) == pytest.approx(cores - 2 * 0.5, rel=0.01)
        assert second.dilation > dilation_of(large, "auto", cores)
        assert any("other fleets on this host hold 0.8 CPUs" in line for line in lines)
        with pytest.raises(CapacityError, match=r"hold .* of this host's .* small \(local, process \d+\)"):
            admit("local", "f00000009", [large], "auto")
    assert holding() == []


async def test_an_idle_fleet_counts_until_its_process_is_killed(tmp_path: Path) -> None:
    spec = small_fleet(tmp_path, 0.3)
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}

    def edgebed(*arguments: str) -> Any:
        done = run([*EDGEBED, *arguments], env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    await asyncio.to_thread(edgebed, "fleet", "up", str(spec.path), "--backend", "local")
    listed = edgebed("fleet", "ls", "--json")
    (fleet,) = [each for each in listed["fleets"] if each["cpus"]]
    assert (fleet["name"], fleet["cpus"], listed["left"]) == ("small", 0.3, pytest.approx(listed["cores"] - 0.8))
    doctor = edgebed("doctor", "--json")
    assert doctor["facts"]["taken_cpus"] == pytest.approx(0.8)

    os.kill(fleet["pid"], signal.SIGKILL)
    wait_for(lambda: not holding())
    async with standing_fleet(spec, backend="local", dilation="off"):
        assert len(holding()) == 1


# ---- CPU not got -----------------------------------------------------------------------------------------------------

BUSY = "import sys, threading, hashlib\ndata = bytes(1 << 20)\n" + (
    "def work():\n    while True: hashlib.sha256(data).digest()\n"
    "for _ in range(int(sys.argv[1]) - 1): threading.Thread(target=work, daemon=True).start()\nwork()\n"
)
"""A program that keeps so many threads busy, without the interpreter's lock."""
WALL_S = 2.0


@contextlib.contextmanager
def device_group(priority: bool, name: str = "f00000009-0") -> Iterator[Cgroup]:
    """A cgroup like that of a device. Without the devices' priority a rival can take what its quota allows."""
    cgroup = Cgroup.named(name)
    if not priority:
        cgroup = Cgroup({c: p.parent.parent / "edgebed-test" for c, p in cgroup.paths.items()}, version_of())
    for path in set(cgroup.paths.values()):
        path.mkdir(parents=True, exist_ok=True)
    cgroup.favour()
    try:
        yield cgroup
    finally:
        cgroup.kill()
        wait_for(cgroup.remove)


@contextlib.contextmanager
def busy(threads: int, cpu: int | None = None, cgroup: Cgroup | None = None) -> Iterator[int]:
    """A process with busy threads, on one core if `cpu` is given."""
    with subprocess.Popen([sys.executable, "-c", BUSY, str(threads)]) as process:
        try:
            if cpu is not None:
                os.sched_setaffinity(process.pid, {cpu})
            for procs in cgroup.procs_files() if cgroup else ():
                Path(procs).write_text(str(process.pid))
            wait_for(lambda: len(os.listdir(f"/proc/{process.pid}/task")) >= threads)
            yield process.pid
        finally:
            process.kill()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def lost_share(cgroup: Cgroup, pid: int, cpus: float) -> float:
    """CPU that the group did not get, as a share of what its quota allowed in WALL_S seconds."""
    before, delay, begun = cgroup.read(), RunDelay(f"/proc/{pid}/task"), time.monotonic()
    wait_for(lambda: time.monotonic() - begun > WALL_S)
    after, delayed_s, wall_s = cgroup.read(), delay.seconds(), time.monotonic() - begun
    assert delayed_s is not None
    work = TaskWork(wall_s, after.cpu_s - before.cpu_s)
    return not_got_s(cpus, work, delayed_s, after.throttled_s - before.throttled_s) / (cpus * wall_s)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("threads", "rivals", "cpus", "priority", "least", "most"),
    [
        (1, 0, 0.2, True, 0.0, 0.05),
        (2, 0, 0.2, True, 0.0, 0.05),
        (1, 1, 0.8, True, 0.0, 0.05),
        (1, 1, 0.8, False, 0.05, 1.0),
    ],
    ids=["alone", "two threads", "a rival on its core", "the same without the priority"],
)
def test_cpu_not_got(threads: int, rivals: int, cpus: float, priority: bool, least: float, most: float) -> None:
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(device_group(priority))
        group.set(Limits(cpus, 0, 0, 256))
        for _ in range(rivals):
            stack.enter_context(busy(1, 0))
        pid = stack.enter_context(busy(threads, None if threads > 1 else 0, group))
        assert least <= lost_share(group, pid, cpus) <= most


# ---- the host in a round ---------------------------------------------------------------------------------------------


async def test_a_round_tells_what_the_host_did(tmp_path: Path) -> None:
    records: list[Record] = []
    name = loop_group("f00000009")
    async with watch_speed(name) as speed:
        record = HostLoad(speed, {"broker": lambda: None}).recording(records.append)
        record(RoundStarted(time.monotonic_ns(), 0, 0.0, 0.1, ()))
        with busy(1) as rival:
            await asyncio.to_thread(wait_for, lambda: cpu_s(rival) > 0.5 * WALL_S)
            used_s = cpu_s(rival)
        record(RoundFinished(time.monotonic_ns(), 0, WALL_S, (), "all done"))
        (pid,) = Cgroup.named(name).pids()
        loop_s = cpu_s(pid)
    assert not Cgroup.named(name).paths["cpu"].exists()
    host = records[-1]
    assert isinstance(host, HostRound)
    assert host.busy_s > 0.8 * used_s
    assert host.loops >= 1
    assert host.loop_ms is not None
    assert loop_s < 0.3, "the start of an interpreter, and 2 ms in every 300"
    assert set(host.load_s) == {"orchestrator", "event loop"}
    assert host.devices_s is not None


async def test_a_server_with_cpus_of_its_own_is_no_device() -> None:
    """Its cgroup stands beside those of the devices."""
    records: list[Record] = []
    with device_group(True) as devices, device_group(True, "f00000009-1") as server:
        for group in (devices, server):
            group.set(Limits(0.5, 0, 0, 256))
        with busy(1, cgroup=devices) as device, busy(1, cgroup=server) as trainer:
            record = HostLoad(HostSpeed(), {"trainer": lambda: trainer}).recording(records.append)
            before = cpu_s(device), cpu_s(trainer)
            record(RoundStarted(time.monotonic_ns(), 0, 0.0, 0.1, ()))
            await asyncio.to_thread(wait_for, lambda: min(cpu_s(device), cpu_s(trainer)) > max(before) + 0.5)
            record(RoundFinished(time.monotonic_ns(), 0, WALL_S, (), "all done"))
            used = cpu_s(device) - before[0], cpu_s(trainer) - before[1]
    host = records[-1]
    assert isinstance(host, HostRound)
    assert host.devices_s is not None
    assert host.devices_s == pytest.approx(used[0], abs=0.15)
    assert host.load_s["trainer"] == pytest.approx(used[1], abs=0.15)


def test_the_cgroup_of_a_killed_loop_is_collected() -> None:
    group = Cgroup.named("f00000009-loop-4194305")  # above the kernel's largest process id
    group.make()
    assert ("cgroup", "f00000009-loop-4194305") in {(left.kind, left.name) for left in leftovers.collect()}
    assert not group.paths["cpu"].exists()
