"""Which CPUs of this host the fleets hold that stand on it, and the claim of a fleet that starts.

A fleet claims its CPUs before it makes anything, in a file that it keeps locked; the kernel releases the lock when the
process ends, however it ends. Fleets without such a file (another version, another container) are found by the quotas
of their cgroups. Whoever claims holds one lock while it looks and decides, so two fleets that start together see each
other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from edgebed.errors import CapacityError, FleetError
from edgebed.limits.cgroups import CHILD, MOUNT, PARENT, SLICE
from orchestrator.files.plain import read_plain
from orchestrator.files.shared_lock import TEMPORARY, shared_lock
from orchestrator.fleet import leftovers, ownership
from orchestrator.fleet.host.cores import quota_cpus, quota_files, usable_cores
from orchestrator.fleet.host.network_path import carried_for
from orchestrator.fleet.spec.capacity import Carried, path_dilation
from orchestrator.fleet.spec.environment import dilation_over
from orchestrator.fleet.spec.profile import FleetSpec

LOCK_S = 20.0
MOST_CLAIM = 64 << 10
"""Bytes that are read of a claim, which any user may have written."""

LOCAL = re.compile(r"(f[0-9a-f]{8})-\d+$")
"""The name of a local device's cgroup: the id of its fleet and a number."""
CONTAINER = re.compile(r"(?:docker-)?([0-9a-f]{64})(?:\.scope)?$")
"""The name of a container's cgroup: its id, as the engine or systemd writes it."""


class Standing(msgspec.Struct, frozen=True):
    """A fleet that stands on this host."""

    fleet_id: str  # or what is known of it, where its cgroups do not say
    name: str
    backend: str
    cpus: float  # the sum of its quotas (after dilation); the largest, if its devices change profiles
    reserve_cpus: float  # kept for its orchestrator and broker
    pid: int = 0  # of its orchestrator; 0: not known
    boards: tuple[str, ...] = ()  # its devices that are real boards, which use nothing of this host

    def __str__(self) -> str:
        who = f"{self.name or self.fleet_id} ({self.backend}{f', process {self.pid}' if self.pid else ''})"
        return f"{who}: {self.cpus:.3g} in quotas, {self.reserve_cpus:g} reserved"


def taken_cpus(fleets: Sequence[Standing]) -> float:
    """CPUs that the fleets hold, reserves included."""
    return sum(fleet.cpus + fleet.reserve_cpus for fleet in fleets)


class Claim:
    """The CPUs of a fleet, as a locked file. `close` gives them back."""

    def __init__(self, fleet: Standing) -> None:
        folder = _own_folder()
        self._path = folder / f"{fleet.fleet_id}.json"
        part = folder / f"{fleet.fleet_id}.part"
        self._file: int | None = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        os.fchmod(self._file, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._file, msgspec.json.encode(fleet))
        part.rename(self._path)  # locked before it has its name: nobody takes it for the claim of a dead process

    def close(self, *, renewed: bool = False) -> None:
        """A second call does nothing. `renewed`: the fleet has another claim in its place."""
        if self._file is not None:
            if not renewed:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


class Admitted(msgspec.Struct, frozen=True):
    """A fleet may start."""

    dilation: float  # its factor
    alone: float  # the factor that it would have without the other fleets
    others: list[Standing]  # fleets that stand beside it
    claim: Claim
    set_by: str = ""  # what made the dilation as large as it is: `CPUs`, `network`, or `the experiment`; "" if it is 1
    carried: Carried | None = None  # by the host's network path; None: not measured, since the fleet's rates are small

    def __str__(self) -> str:
        more = f"; D is {self.dilation:.3g} instead of {self.alone:.3g}" if self.dilation > self.alone else ""
        return f"other fleets on this host hold {taken_cpus(self.others):.3g} CPUs: {_list(self.others)}{more}"


def admit(
    backend: str, fleet_id: str, fleets: Sequence[FleetSpec], setting: str | float, *, over_links: bool = True
) -> Admitted:
    """Choose the dilation of a fleet beside those that stand, and claim its CPUs. A fleet that stands may ask again:
    its new claim takes the place of the one before.

    Args:
        fleets: what the fleet will be in the course of the run.
        setting: as in `dilation_of`.
        over_links: its traffic goes through links on this host; else the network path does not matter.

    Raises:
        CapacityError: the fleet does not fit, alone or beside the others.
        FleetError: another process holds the lock for too long.
    """
    cores = usable_cores()
    by_cpus = dilation_over(fleets, setting, cores)
    carried = carried_for(fleets, by_cpus) if over_links else None
    alone = dilation_over(fleets, setting, cores, carried)
    with lock():
        others = [each for each in standing() if each.fleet_id != fleet_id]
        factor = _dilation_beside(others, fleets, setting, cores, carried)
        cpus, spec = max(fleet.cpus for fleet in fleets) / factor, fleets[0]
        if spec.speed.unsure:
            by_index = cpus * spec.speed.unsure / spec.speed.demand
            cpus = max(cpus, min(by_index, cores - taken_cpus(others) - spec.reserve_cpus))
        boards = tuple(device.name for device in spec.boards)
        held = Claim(Standing(fleet_id, spec.name, backend, cpus, spec.reserve_cpus, os.getpid(), boards))
    by_path = max(path_dilation(fleet, carried) for fleet in fleets)
    return Admitted(factor, alone, others, held, _set_by(setting, factor, by_path), carried)


def _set_by(setting: str | float, factor: float, by_path: float) -> str:
    if factor <= 1:
        return ""
    if setting != "auto":
        return "the experiment"
    return "network" if by_path >= factor * (1 - 1e-9) else "CPUs"


def _dilation_beside(
    others: list[Standing], fleets: Sequence[FleetSpec], setting: str | float, cores: float, carried: Carried | None
) -> float:
    try:
        return dilation_over(fleets, setting, cores - taken_cpus(others), carried)
    except CapacityError as error:
        if not others:
            raise
        raise CapacityError(
            f"other fleets hold {taken_cpus(others):.3g} of this host's {cores:g} cores, and {fleets[0].name} does not "
            f"fit beside them: {error}. They are {_list(others)}",
            hint="wait until they end, or end them (`edgebed fleet down` for one without a run). dilation: auto takes "
            "what is left; if nothing is left, start the first fleet again with a larger dilation",
        ) from None


def _list(fleets: Sequence[Standing]) -> str:
    return "; ".join(map(str, fleets))


def standing() -> list[Standing]:
    """Every fleet that holds CPUs of this host now, without those whose orchestrator has certainly ended."""
    claimed = {fleet.fleet_id: fleet for fleet in _claims()}
    found = {fleet.fleet_id: fleet for fleet in _in_cgroups()}
    return list((found | claimed).values())


# ---- claims ----------------------------------------------------------------------------------------------------------


def _own_path() -> Path:
    return leftovers.STATE / "cpus" if os.geteuid() == 0 else TEMPORARY / f"edgebed-cpus-{os.geteuid()}"


def _own_folder() -> Path:
    """Where this user writes claims: readable by everybody, writable by nobody else."""
    folder = _own_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_uid != os.geteuid():
                raise PermissionError(0, "it is another user's")
            os.fchmod(file, 0o755)
        finally:
            os.close(file)
    except OSError as error:
        raise FleetError(
            f"the CPUs of this fleet cannot be claimed: {folder}: {error.strerror}", hint=f"remove {folder}"
        ) from None
    return folder


def _folders() -> Iterator[Path]:
    yield leftovers.STATE / "cpus"
    for folder in sorted(TEMPORARY.glob("edgebed-cpus-[0-9]*")):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if folder.is_dir() and not folder.is_symlink() and folder.name == f"edgebed-cpus-{status.st_uid}":
                yield folder


def _claims() -> Iterator[Standing]:
    """Claims of living processes. Those of dead ones are removed, but in our own folder only: somebody else may put a
    link to another folder in the place of his at any time."""
    for path in (path for folder in _folders() for path in sorted(folder.glob("*.json"))):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if ownership.is_held(path):
                yield msgspec.json.decode(read_plain(path, MOST_CLAIM), type=Standing)
            elif path.parent == _own_path():
                path.unlink()


def lock() -> AbstractContextManager[None]:
    """One process of this host at a time, of any user."""
    return shared_lock(TEMPORARY / "edgebed-cpus.lock", LOCK_S)


# ---- cgroups ---------------------------------------------------------------------------------------------------------


def _in_cgroups() -> Iterator[Standing]:
    """Fleets by the quotas of the cgroups in which their devices run."""
    root = MOUNT if (MOUNT / "cgroup.controllers").is_file() else MOUNT / "cpu"
    quotas = {path.name: quota for parent in (PARENT, SLICE) for path, quota in _quotas(root / parent)}
    containers = {found[1]: quota for name, quota in quotas.items() if (found := CONTAINER.match(name))}
    by_fleet: dict[tuple[str, str], float] = {}
    for name, quota in quotas.items():
        if (local := LOCAL.match(name)) and not ownership.is_abandoned(leftovers.STATE / local[1]):
            by_fleet[local[1], "local"] = by_fleet.get((local[1], "local"), 0.0) + quota
    owners = (leftovers.ask_engine(lambda engine, client: engine.owners(client)) or {}) if containers else {}
    for id_, quota in containers.items():
        fleet_id, dead = owners.get(id_, (f"container {id_[:12]}", False))
        if not dead:
            by_fleet[fleet_id, "docker"] = by_fleet.get((fleet_id, "docker"), 0.0) + quota
    for (fleet_id, backend), cpus in by_fleet.items():
        yield Standing(fleet_id, "", backend, cpus, 0.0)


def _quotas(parent: Path) -> Iterator[tuple[Path, float]]:
    """Cgroups below `parent` that have a quota and processes."""
    for path in sorted(parent.iterdir()) if parent.is_dir() else ():
        for each in (path, path / CHILD):
            quota = quota_cpus(quota_files(each))
            if quota is not None and _has_processes(each):
                yield path, quota
                break


def _has_processes(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return bool((folder / "cgroup.procs").read_text())
    return False
