"""What the host did in each round: CPU time of all programs, of the devices and of the run's processes, and steal; and
what the nodes of a Swarm did."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from edgebed.limits.cgroups import MOUNT, PARENT, SLICE
from orchestrator.fleet.host.cores import machine_id
from orchestrator.fleet.host.node_load import rounds_of_nodes
from orchestrator.fleet.host.speed import HostSpeed
from orchestrator.fleet.many_hosts import NodeReading
from orchestrator.records.host_records import HostRound, NodeRound
from orchestrator.records.types import Record, RoundFinished, RoundStarted

Processes = Mapping[str, Callable[[], int | None]]
"""The run's processes by name: each function gives the id, or None where the process is not on this host."""

EVENT_LOOP = "event loop"


class _Reading(msgspec.Struct, frozen=True):
    """Counters at one moment, in seconds since any start."""

    at_ns: int
    cores: int
    unused_s: float
    stolen_s: float
    devices_s: float | None
    load_s: dict[str, float]
    nodes: Sequence[NodeReading]


class HostLoad:
    """Measures rounds from their start to their end; they may overlap.

    Args:
        processes: whose load is told. The orchestrator's own is always told, and that of its event loop.
        nodes: the nodes of a Swarm, as they were heard of last.
    """

    def __init__(
        self, speed: HostSpeed, processes: Processes, nodes: Callable[[], Sequence[NodeReading]] = tuple
    ) -> None:
        self._speed, self._nodes, self._machine = speed, nodes, machine_id()
        self._processes: Processes = {"orchestrator": os.getpid, **processes}

    def recording(self, write: Callable[[Record], None]) -> Callable[[Record], None]:
        """For `Platform.recording`: `write`, and a `HostRound` after every finished round. Called in the event loop's
        thread."""
        starts: dict[int, _Reading] = {}

        def record(record: Record) -> None:
            write(record)
            match record:
                case RoundStarted(round=number):
                    starts[number] = self._read()
                case RoundFinished(round=number) if number in starts:
                    write(self._between(number, starts.pop(number), self._read()))

        return record

    def _read(self) -> _Reading:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
        times = [each for number, each in enumerate(psutil.cpu_times(percpu=True)) if number in cores]
        pids = {name: pid() for name, pid in self._processes.items()}
        load = {name: used for name, pid in pids.items() if (used := _cpu_s(pid)) is not None}
        inside_s = sum(used for name, used in load.items() if _is_below_ours(pids[name]))
        devices_s = devices_cpu_s()
        return _Reading(
            at_ns=time.monotonic_ns(),
            cores=len(cores),
            unused_s=sum(each.idle + getattr(each, "iowait", 0.0) for each in times),
            stolen_s=sum(getattr(each, "steal", 0.0) for each in times),
            devices_s=None if devices_s is None else devices_s - inside_s,
            load_s=load | {EVENT_LOOP: time.thread_time()},
            nodes=self._nodes(),
        )

    def _between(self, number: int, start: _Reading, end: _Reading) -> HostRound:
        loop_ms, loops = self._speed.between(start.at_ns, end.at_ns)
        stolen_s = max(0.0, end.stolen_s - start.stolen_s)
        not_busy_s = end.unused_s - start.unused_s + stolen_s
        load = {name: max(0.0, used - start.load_s[name]) for name, used in end.load_s.items() if name in start.load_s}
        nodes = tuple(rounds_of_nodes(start.nodes, end.nodes, self._machine))
        wall_s = (end.at_ns - start.at_ns) / 1e9
        return HostRound(
            at_ns=end.at_ns,
            start_ns=start.at_ns,
            round=number,
            cores=end.cores,
            busy_s=max(0.0, end.cores * wall_s - not_busy_s),
            stolen_s=stolen_s,
            devices_s=_with_nodes(_difference(start.devices_s, end.devices_s), nodes, wall_s),
            load_s=load,
            loop_ms=loop_ms,
            loops=loops,
            nodes=nodes,
        )


def _difference(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _with_nodes(devices_s: float | None, nodes: Sequence[NodeRound], wall_s: float) -> float | None:
    """Devices of a Swarm on this host are in cgroups of the engine, so only the most that they can use is known."""
    ours = next((node.ours_s / node.wall_s * wall_s for node in nodes if node.here), None)
    return devices_s if ours is None else (devices_s or 0.0) + ours


def _cpu_s(pid: int | None) -> float | None:
    """CPU seconds of a process since its start, all threads; None if there is none."""
    if pid is None:
        return None
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


def _is_below_ours(pid: int | None) -> bool:
    """Whether a process is in a cgroup beside those of the devices, as a server with CPUs of its own is."""
    with contextlib.suppress(OSError):
        return f"/{PARENT}/" in Path(f"/proc/{pid}/cgroup").read_text()
    return False


def devices_cpu_s(mount: Path = MOUNT) -> float | None:
    """CPU seconds of all Edgebed devices of this host, from the cgroups above them; None where there is none."""
    found = [used for name in (PARENT, SLICE) if (used := _group_cpu_s(mount, name)) is not None]
    return sum(found) if found else None


def _group_cpu_s(mount: Path, name: str) -> float | None:
    with contextlib.suppress(OSError):
        return int((mount / "cpuacct" / name / "cpuacct.usage").read_text()) / 1e9
    with contextlib.suppress(OSError):
        fields = dict(line.split() for line in (mount / name / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6
    return None
