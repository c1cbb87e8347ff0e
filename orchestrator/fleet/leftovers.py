"""Finds and removes what killed runs of any backend left on this host. Every fleet does this when it starts.

Removes only what certainly has no living owner: a folder whose lock is free, or a container or network whose owner is
dead according to `ownership.is_dead`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from edgebed.errors import FleetError
from edgebed.limits.cgroups import MOUNT, PARENT, Cgroup
from edgebed.limits.shell import missing_tools
from orchestrator.fleet import ownership
from orchestrator.fleet.network import netns

T = TypeVar("T")

STATE = Path("/run/edgebed")
"""Holds one folder per running local fleet, with its owner's lock and its agents' logs."""

DEADLINE_S = 5.0
ENGINE_S = 5
"""Seconds to wait for an answer of the engine before skipping it."""


class Leftover(msgspec.Struct, frozen=True):
    """One thing that a killed run left. `kind`: local fleet, namespace, cgroup, folder, process, container or
    network."""

    kind: str
    name: str
    why: str


def find_leftovers() -> list[Leftover]:
    """Everything that `remove` may remove now, also from the Docker engine if there is one. Removes nothing."""
    return [*_local_fleets(), *_measured_paths(), *_loop_groups(), *_folders(), *_of_engine()]


def remove(leftover: Leftover) -> None:
    """Remove one thing. Does not raise if it is already gone."""
    match leftover.kind:
        case "local fleet":
            remove_fleet(leftover.name)
        case "namespace":
            netns.remove(leftover.name)
        case "cgroup":
            Cgroup.named(leftover.name).remove()
        case "folder":
            shutil.rmtree(leftover.name, ignore_errors=True)
        case "process":
            with contextlib.suppress(psutil.Error):
                psutil.Process(int(leftover.name)).kill()
        case _:
            ask_engine(lambda engine, client: engine.remove_named(client, leftover.kind, leftover.name))


def collect() -> list[Leftover]:
    """Remove what killed runs left, and return the list. Every fleet calls this when it starts."""
    found = find_leftovers()
    for leftover in found:
        remove(leftover)
    return found


# ---- the local backend -----------------------------------------------------------------------------------------------


def _local_fleets() -> Iterator[Leftover]:
    if not STATE.is_dir():
        return
    for folder in sorted(STATE.iterdir()):
        if folder.is_dir() and ownership.is_abandoned(folder):
            names = [*_namespaces(folder.name), *_cgroups(f"{folder.name}-*")]
            why = f"its orchestrator has ended; namespaces and cgroups: {', '.join(names) or 'none'}"
            yield Leftover("local fleet", folder.name, why)


def remove_fleet(fleet_id: str) -> None:
    """Kill the processes of a local fleet and remove its namespaces, links, cgroups and files. Does not raise for
    things that are already gone."""
    cgroups = [Cgroup.named(name) for name in _cgroups(f"{fleet_id}-*")]
    deadline = time.monotonic() + DEADLINE_S
    while cgroups and time.monotonic() < deadline:
        for cgroup in cgroups:
            cgroup.kill()
        cgroups = [cgroup for cgroup in cgroups if not cgroup.remove()]
        time.sleep(0.01 if cgroups else 0)
    for name in _namespaces(fleet_id):
        netns.remove(name)
    if not cgroups:  # otherwise keep the folder, so that the next start finds the rest
        shutil.rmtree(STATE / fleet_id, ignore_errors=True)


def _namespaces(fleet_id: str) -> list[str]:
    return [] if missing_tools("ip") else [n for n in netns.existing() if n.startswith(f"edgebed-{fleet_id}-")]


def _cgroups(pattern: str) -> list[str]:
    """Names of cgroups of ours, from every hierarchy."""
    parents = (MOUNT / PARENT, MOUNT / "cpu" / PARENT, MOUNT / "cpuacct" / PARENT, MOUNT / "memory" / PARENT)
    return sorted({path.name for parent in parents if parent.is_dir() for path in parent.glob(pattern)})


def loop_group(fleet_id: str) -> str:
    """The name of the cgroup of this process's reference loop."""
    return f"{fleet_id}-loop-{os.getpid()}"


def _measured_paths() -> Iterator[Leftover]:
    """Namespaces of a measurement of the network path that was killed."""
    for name in [] if missing_tools("ip") else netns.existing():
        match = re.fullmatch(rf"edgebed-{netns.path_name('([0-9]+)')}-[0-9]+", name)
        if match and not psutil.pid_exists(int(match[1])):
            yield Leftover("namespace", name, "the process that measured the network path has ended")


def _loop_groups() -> Iterator[Leftover]:
    """Cgroups of reference loops. The loop ends with its orchestrator, but nobody removes its cgroup."""
    for name in _cgroups("*-loop-*"):
        pid = name.rpartition("-")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            yield Leftover("cgroup", name, "its orchestrator has ended")


# ---- folders and processes -------------------------------------------------------------------------------------------


def _folders() -> Iterator[Leftover]:
    for folder in ownership.abandoned():
        for process in _processes_of(folder):
            yield Leftover("process", str(process.pid), f"a broker of a run that has ended ({folder})")
        yield Leftover("folder", str(folder), "the process that made it has ended")


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Brokers that were started with a file in the folder. Usually the kernel ends them together with their
    orchestrator."""
    if not folder.name.startswith("edgebed-broker-"):
        return []
    start = f"{folder}/"
    processes = psutil.process_iter(["cmdline"])
    return [process for process in processes if any(arg.startswith(start) for arg in process.info["cmdline"] or ())]


# ---- the engine ------------------------------------------------------------------------------------------------------


def ask_engine(question: Callable[[Any, Any], T]) -> T | None:
    """What `question(engine, client)` returns, for the module `fleet.engine` and a client of this host's engine; None
    if the SDK is not installed, or no engine answers."""
    try:
        import docker.errors

        from orchestrator.fleet import engine

        with contextlib.closing(engine.connect(ENGINE_S)) as client:
            return question(engine, client)
    except (ImportError, FleetError, OSError):
        return None
    except docker.errors.DockerException:
        return None


def _of_engine() -> list[Leftover]:
    """Leftovers in an engine that does not answer now are found at the next start with an engine."""
    dead = ask_engine(lambda engine, client: engine.dead_things(client)) or ()
    return [Leftover(kind, str(thing.name), "its orchestrator has ended") for kind, thing in dead]
