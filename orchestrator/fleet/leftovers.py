"""Removes what a local fleet made on this host: at its end, or at the next start where its owner was killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from orchestrator.fleet import netns, owner
from orchestrator.fleet.cgroups import MOUNT, PARENT, Cgroup

STATE = Path("/run/edgebed")
"""One folder per standing local fleet, with its owner's name and its agents' logs."""

DEADLINE_S = 5.0


def remove_dead() -> list[str]:
    """Remove the fleets whose owners are certainly dead; returns their ids."""
    dead = [folder.name for folder in STATE.iterdir() if folder.is_dir() and owner.is_dead(_owner_of(folder))]
    for fleet_id in dead:
        remove(fleet_id)
    return dead


def _owner_of(folder: Path) -> owner.Owner | None:
    try:
        return owner.parse((folder / "owner").read_text())
    except OSError:
        return None


def remove(fleet_id: str) -> None:
    """Kill the processes of a fleet and remove its namespaces, links, cgroups and files. Nothing is raised for what
    is gone already."""
    cgroups = [Cgroup.named(name) for name in _cgroup_names(fleet_id)]
    deadline = time.monotonic() + DEADLINE_S
    while cgroups and time.monotonic() < deadline:
        for cgroup in cgroups:
            cgroup.kill()
        cgroups = [cgroup for cgroup in cgroups if not cgroup.remove()]
        time.sleep(0.01 if cgroups else 0)
    for name in netns.existing():
        if name.startswith(f"edgebed-{fleet_id}-"):
            netns.remove(name)
    if not cgroups:  # else the folder stays, so that the next start finds the rest
        shutil.rmtree(STATE / fleet_id, ignore_errors=True)


def _cgroup_names(fleet_id: str) -> list[str]:
    parents = (MOUNT / PARENT, MOUNT / "cpu" / PARENT, MOUNT / "cpuacct" / PARENT, MOUNT / "memory" / PARENT)
    found = {path.name for parent in parents if parent.is_dir() for path in parent.glob(f"{fleet_id}-*")}
    return sorted(found)
