"""The boards of a fleet: who they are by the registry, and that no two fleets have the same one at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from edgebed.errors import CapacityError, FileError, FleetError, UsageError
from orchestrator.boards.registry import Board, Registry, Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.files.shared_lock import lock_in_time
from orchestrator.fleet.ownership import is_held
from orchestrator.fleet.spec.profile import BOARD, DeviceSpec, FleetSpec, load_profile, unlimited


def with_facts(spec: FleetSpec) -> FleetSpec:
    """The fleet, its boards with their cores and memory, as they told when they joined, and the profile with which they
    were invited where the fleet file names none. Raises FleetError: a board has not joined, or is revoked."""
    if not spec.boards:
        return spec
    registry = Store(ServiceFolder.of_user()).read()
    members = board_ids(spec, registry)
    found = {board.id: board for board in registry.active()}
    devices = [_with_facts(each, found[members[each.name]], spec) if each.board else each for each in spec.devices]
    return msgspec.structs.replace(spec, devices=tuple(devices))


def board_ids(spec: FleetSpec, registry: Registry) -> dict[str, str]:
    """The boards' ids, by device. Raises FleetError with all that cannot take part."""
    found = {device.name: registry.named(device.board) for device in spec.boards}
    lacking = [_why_not(device.board, registry) for device in spec.boards if found[device.name] is None]
    if lacking:
        raise FleetError(
            f"{spec.path}: {'; '.join(lacking)}",
            hint="edgebed boards ls shows the boards; `edgebed boards invite NAME` prints the command for a new one",
        )
    return {name: board.id for name, board in found.items() if board is not None}


def _why_not(name: str, registry: Registry) -> str:
    if any(each.name == name and not each.used_by and not each.withdrawn for each in registry.invitations):
        return f"the board {name} was invited and has not joined"
    revoked = [board for board in registry.boards if board.name == name]
    return f"the board {name} is revoked ({revoked[-1].revoked_why})" if revoked else f"there is no board {name}"


def _with_facts(device: DeviceSpec, board: Board, spec: FleetSpec) -> DeviceSpec:
    profile, limits = device.profile, device.profile.limits
    if not limits.unlimited:
        return _that_fits(device, board)
    if profile.name == BOARD.name and board.profile:
        try:
            profile = unlimited(load_profile(board.profile, spec.path))
        except UsageError as error:
            raise UsageError(
                f"the board {board.name} was invited with --profile {board.profile}: {error}",
                hint=f"{error.hint}; or name another `profile` beside the `board` in {spec.path}",
            ) from None
        limits = profile.limits
    cores, memory = _number(board, "cores") or limits.cpus, _number(board, "memory_mib") or limits.memory_mib
    limits = msgspec.structs.replace(limits, cpus=float(cores), memory_mib=int(memory))
    return msgspec.structs.replace(device, profile=msgspec.structs.replace(profile, limits=limits))


def _that_fits(device: DeviceSpec, board: Board) -> DeviceSpec:
    """A board that limits itself. Raises CapacityError where it has less than its limits."""
    limits = device.profile.limits
    for what, wanted, there in (
        ("cores", limits.cpus, _number(board, "cores")),
        ("MiB of memory", limits.memory_mib, _number(board, "memory_mib")),
    ):
        if there and wanted > there:
            raise CapacityError(
                f"{device.name}: its profile {device.profile.name} has {wanted:g} {what}, the board {board.name} "
                f"{there}",
                hint="a limit cannot make a board larger: take a smaller profile, or leave `limit: true` away",
            )
    return device


def _number(board: Board, fact: str) -> int:
    text = board.facts.get(fact, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


# ---- one fleet at a time ---------------------------------------------------------------------------------------------


LOCK_S = 0.5


class Taken(msgspec.Struct, frozen=True):
    """The fleet that has a board."""

    fleet: str
    fleet_id: str
    pid: int

    def __str__(self) -> str:
        return f"the fleet {self.fleet} ({self.fleet_id}, process {self.pid})"


@contextlib.contextmanager
def claimed(place: ServiceFolder, ids: Mapping[str, str], taken: Taken) -> Iterator[None]:
    """Have these boards (ids by name). The kernel gives them back when this process ends, however it ends.

    Raises:
        FleetError: another fleet has some of them.
        FileError: the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        others = []
        for name, board in ids.items():
            path = _claim_path(place, board)
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, file)
                lock_in_time(file, path, LOCK_S)  # `taken_boards` has it for a moment
                os.ftruncate(file, 0)
                os.pwrite(file, msgspec.json.encode(taken), 0)
            except FleetError:
                others.append(f"{name} works for {_holder(path) or 'another fleet'}")
            except OSError as error:
                raise FileError.of(error, path) from None
        if others:
            raise FleetError(
                f"boards are taken: {'; '.join(others)}",
                hint="wait until that fleet ends, or end it (`edgebed fleet down` for one without a run)",
            )
        yield


def taken_boards(place: ServiceFolder) -> dict[str, Taken]:
    """The fleets that have boards now, by the boards' ids. A living process holds each."""
    found = {}
    for path in (place.folder / "claims").glob("*.json"):
        with contextlib.suppress(OSError):
            if is_held(path) and (taken := _holder(path)) is not None:
                found[path.stem] = taken
    return found


def _claim_path(place: ServiceFolder, board: str) -> Path:
    folder = place.folder / "claims"
    folder.mkdir(exist_ok=True)
    return folder / f"{board}.json"


def _holder(path: Path) -> Taken | None:
    """None while it is being written."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=Taken)
    return None
