"""Typed YAML files of device profiles and fleets. Rates are Mbit/s in files and bit/s in code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from edgebed.errors import UsageError
from edgebed.limits.spec import LEAST_MBIT_S, MOST_LATENCY_MS, MOST_MBIT_S, LatencyMs, Mbit
from edgebed.limits.spec import Limits as Limits
from edgebed.limits.spec import only_rates as only_rates
from edgebed.pacing import HOST
from edgebed.typed import nearest, shown
from edgebed.wire.boards import Accelerator
from edgebed.wire.topics import check_name
from orchestrator.experiment import SPEED_WORDS, SpeedWord
from orchestrator.files.shipped import shipped
from orchestrator.files.yaml_file import Document, convert, load_yaml
from orchestrator.fleet.backends import BACKENDS, DEFAULT, choices
from orchestrator.fleet.spec.speed import Speed
from orchestrator.fleet.spec.swarm import SwarmFile

SHIPPED = shipped("profiles") / "devices"
SHIPPED_FLEETS = shipped("profiles") / "fleets"

MOST_DEVICES = 1000
MBIT = f"a number of megabits per second from {LEAST_MBIT_S:g} to {MOST_MBIT_S:.0f}, such as 10"

WORDS = {
    "cpus": "a number of CPUs above 0 and at most 1024, such as 0.5",
    "uplink_mbit_s": MBIT,
    "downlink_mbit_s": MBIT,
    "memory_mib": "a whole number of MiB of at least 64, such as 2048",
    "latency_ms": f"a number of milliseconds one way from 0 to {MOST_LATENCY_MS:.0f}, such as 20",
    "threads": "a whole number of threads of torch from 1 to 1024, such as 4",
    "speed": SPEED_WORDS,
    "profile": "the name of a device profile, such as cpu1, or the path of its file",
    "board": "the name of a board that has joined (edgebed boards ls)",
    "accelerator": "cpu, cuda or auto (cuda where the board's torch can use it)",
    "limit": "true or false: whether the board limits itself to its `profile`",
    "name": "a name of letters, digits, '_', '.' and '-'",
    "count": f"a whole number from 1 to {MOST_DEVICES}",
    "backend": f"{choices()} (software is local with the software throttle)",
    "node": "a node's host name, address or id (docker node ls)",
    "cores": "a number of CPUs above 0 and at most 1024, such as 3.5",
}
"""What messages about fleet and profile files say of a key's value."""

Cpus = Annotated[float, msgspec.Meta(gt=0, le=1024)]


class ProfileSpec(msgspec.Struct, frozen=True):
    """A class of devices. `source` says where its figures come from; `look_alike_of` names the board that it was fitted
    to (`edgebed boards measure`)."""

    name: str
    limits: Limits
    source: str = ""
    look_alike_of: str = ""


BOARD = ProfileSpec(
    "board", Limits(1.0, 10**8, 10**8, 1024, unlimited=True), "a real board, whose figures are not known"
)
"""Of a board without a profile, before the boards service tells its cores."""


class DeviceSpec(msgspec.Struct, frozen=True):
    """`board`: name of the real board that the device is; "": a device of this host. `accelerator`: where the board
    trains; None: it chooses."""

    name: str
    profile: ProfileSpec
    board: str = ""
    accelerator: Accelerator | None = None


class FleetSpec(msgspec.Struct, frozen=True):
    """A fleet file, resolved. `reserve_cpus` of the host stay free for the orchestrator and the broker. `server_cpus`:
    of a server with CPUs of its own, before dilation; None: it has what the host leaves, not dilated. `wanted_speed`:
    `host` or `reference NAME`, as files have it, and `spread`; `speed`: as it is kept on this host."""

    name: str
    backend: str
    reserve_cpus: float
    devices: tuple[DeviceSpec, ...]
    path: Path
    server_cpus: float | None = None
    swarm: SwarmFile | None = None
    wanted_speed: str = HOST
    spread: bool = False
    speed: Speed = Speed()

    @property
    def boards(self) -> tuple[DeviceSpec, ...]:
        """Devices that are real boards."""
        return tuple(device for device in self.devices if device.board)

    @property
    def here(self) -> tuple[DeviceSpec, ...]:
        """Devices that run on this host."""
        return tuple(device for device in self.devices if not device.board)

    @property
    def limited_boards(self) -> list[str]:
        """Names of the devices that are real boards and limit themselves."""
        return [device.name for device in self.boards if not device.profile.limits.unlimited]

    @property
    def unlimited(self) -> list[str]:
        """Names of the devices that have no limits: real boards."""
        return [device.name for device in self.devices if device.profile.limits.unlimited]

    @property
    def cpus(self) -> float:
        """CPUs of this host that all devices together need, before dilation. At the speed of the host these are their
        quotas."""
        return self.speed.demand * (sum(each.profile.limits.cpus for each in self.here) + (self.server_cpus or 0.0))

    @property
    def server_slots(self) -> int:
        """Server halves that train at once: one for each whole CPU of the server, before dilation."""
        return max(1, int(self.server_cpus or 1))

    @property
    def slot_cpus(self) -> float:
        """CPUs of each, before dilation: a thread uses no more than one."""
        return min(1.0, self.server_cpus or 1.0)

    @property
    def by_threads(self) -> float:
        """The smallest dilation at which the threads of every device that was measured can do what the reference does
        in the same time: a thread uses at most one core."""
        known = [(each.profile.limits, self.speed.needs.get(each.name)) for each in self.devices]
        return max((need.mean * own.cpus / own.threads for own, need in known if need), default=0.0)

    @property
    def one_thread(self) -> dict[str, float]:
        """CPUs by profile, of the devices on this host that have one thread at the speed of the host."""
        limits = {each.profile.name: each.profile.limits for each in self.here}
        host = self.wanted_speed == HOST
        return {name: each.cpus for name, each in limits.items() if host and each.threads == 1}

    @property
    def head_room(self) -> float:
        """Quotas of all devices ÷ what this host needs for them on average."""
        quotas = sum(self.speed.ceiling(each.name) * each.profile.limits.cpus for each in self.devices)
        return quotas / (self.speed.demand * sum(each.profile.limits.cpus for each in self.devices))

    @property
    def rates(self) -> tuple[int, int]:
        """Bits per second of all uplinks and of all downlinks on this host, before dilation."""
        limits = [device.profile.limits for device in self.here]
        return sum(each.uplink_bit_s for each in limits), sum(each.downlink_bit_s for each in limits)


class ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A profile file as it is written."""

    name: str | None = None
    source: str = ""
    look_alike_of: str = ""
    cpus: Cpus
    uplink_mbit_s: Mbit
    downlink_mbit_s: Mbit
    memory_mib: Annotated[int, msgspec.Meta(ge=64, le=4 * 2**20)]
    latency_ms: LatencyMs = 0.0
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None


class FleetEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`count` devices with one profile, as a fleet file lists them; or one real board, whose profile only says what it
    is like, unless `limit` is set: then the board limits itself to it. `accelerator`: where a board trains."""

    profile: str | None = None
    board: str | None = None
    limit: bool = False
    accelerator: Accelerator | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)] = 1
    name: str | None = None

    def __post_init__(self) -> None:
        if self.profile is None and self.board is None:
            raise ValueError("a device has a `profile`, or is a real `board`")
        if self.limit and (self.board is None or self.profile is None):
            raise ValueError(
                "`limit` needs a real `board` and a `profile`; write the profile to which it is to be held"
            )
        if self.accelerator is not None and self.board is None:
            raise ValueError("`accelerator` is for a real `board`; devices of this host train on its CPU")
        if self.board is not None and self.count > 1:
            raise ValueError("a board is one device; give each its own entry, without `count`")


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fleet file as it is written."""

    name: str
    backend: Literal[tuple(BACKENDS)] = DEFAULT  # type: ignore[valid-type]  # checkers cannot follow the registry
    reserve_cpus: Annotated[float, msgspec.Meta(ge=0, le=1024)] = 0.5
    swarm: SwarmFile | None = None
    speed: SpeedWord = HOST
    spread: bool = False
    devices: Annotated[list[FleetEntry], msgspec.Meta(min_length=1)]


def load_fleet(path: Path) -> FleetSpec:
    """Read a fleet file and the profiles that it names.

    Raises:
        UsageError: a missing file or profile, an unknown key, a wrong unit or an impossible value. The message names
            the file and line.
    """
    path = path.resolve()
    document = load_yaml(path)
    if "methods" in document and "devices" not in document:
        raise UsageError(
            f"{path} is an experiment file, not a fleet file",
            hint=f"give the file that it names: {document.get('fleet')}",
        )
    file = convert(document, FleetFile, path, WORDS)
    devices = tuple(_devices(file.devices, path, document.where))
    if len(devices) > MOST_DEVICES:
        raise UsageError(f"{path}: {len(devices)} devices", hint=f"one host can hold at most {MOST_DEVICES}")
    twice = [name for name, count in Counter(d.name for d in devices).items() if count > 1]
    if twice:
        raise UsageError(
            f"{path}: two devices are called {twice[0]!r}", hint="give the entries of `devices` other names"
        )
    shared = [name for name, count in Counter(d.board for d in devices if d.board).items() if count > 1]
    if shared:
        raise UsageError(f"{path}: two devices are the board {shared[0]!r}", hint="a board is one device")
    name = _named(file.name, "fleet", document.where("name"))
    speed = found_speed(file.speed, path)
    return FleetSpec(
        name, file.backend, file.reserve_cpus, devices, path, swarm=file.swarm, wanted_speed=speed, spread=file.spread
    )


def found_speed(word: str, near: Path) -> str:
    """A speed as a file says it, with the absolute path of a reference that is named by its file. `near`: the file that
    says it: a relative path begins in its folder."""
    kind, _, name = word.partition(" ")
    return f"{kind} {(near.parent / name.strip()).resolve()}" if name.strip().endswith(".json") else word


def fleet_path(experiment: Path, named: str) -> Path:
    """The fleet file that an experiment file names: a path relative to its folder, or else the name of a fleet that
    comes with Edgebed (`dtfl-5`). The file need not exist."""
    path, ours = experiment.parent / named, SHIPPED_FLEETS / f"{named}.yaml"
    return ours if Path(named).name == named and not is_file(path) and is_file(ours) else path


def fleet_of(experiment: Path, named: str) -> FleetSpec:
    """The fleet that an experiment file names, as `fleet_path` finds it. Raises UsageError like `load_fleet`."""
    path = fleet_path(experiment, named)
    if not is_file(path):
        there = sorted(each.stem for folder in (path.parent, SHIPPED_FLEETS) for each in folder.glob("*.yaml"))
        raise UsageError(
            f"{experiment}: fleet: there is no file {path.resolve()}{nearest(path.stem, there)}",
            hint="write the path of a fleet file, relative to the experiment file or absolute, or the name of a fleet "
            "that comes with Edgebed",
        )
    return load_fleet(path)


def is_file(path: Path) -> bool:
    """Whether there is such a file. False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _named(name: str, what: str, where: str) -> str:
    try:
        return check_name(name, what)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", hint=error.hint) from None


def _devices(entries: list[FleetEntry], path: Path, where: Callable[[str], str]) -> list[DeviceSpec]:
    seen: Counter[str] = Counter()
    devices = []
    for number, entry in enumerate(entries):
        place = where(f"devices[{number}]")
        profile = BOARD
        if entry.profile is not None:
            profile = load_profile(entry.profile, path, where(f"devices[{number}].profile"))
        if entry.board is not None:
            board = _named(entry.board, "board", place)
            profile = profile if entry.limit else unlimited(profile)
            devices.append(DeviceSpec(_named(entry.name or board, "device", place), profile, board, entry.accelerator))
            continue
        for _ in range(entry.count):
            stem = entry.name or profile.name
            seen[stem] += 1
            name = stem if entry.name and entry.count == 1 else f"{stem}-{seen[stem]}"
            devices.append(DeviceSpec(_named(name, "device", place), profile))
    return devices


def unlimited(profile: ProfileSpec) -> ProfileSpec:
    """A profile as that of a real board: it says what the board is like, and nothing holds it."""
    return msgspec.structs.replace(profile, limits=msgspec.structs.replace(profile.limits, unlimited=True))


def load_profile(name: str, near: Path, where: str = "") -> ProfileSpec:
    """Read a device profile.

    Args:
        name: the name of a profile (`cpu4`), or the path of its file relative to the folder of `near`.
        near: the file that names the profile. A name is looked up in the folder of `near`, then in `../devices`, then
            among the profiles that come with Edgebed.
        where: the place that names the profile, for messages. Default: `near`.

    Raises:
        UsageError: like `load_fleet`.
    """
    return _read_profile(_profile_path(name, near, where))


def lasting_name(name: str, folder: Path, where: str) -> str:
    """A name for a profile, found from this folder, under which fleet files of all folders find it: that of a profile
    that comes with Edgebed, else the absolute path of its file. Raises UsageError like `load_profile`."""
    path = _profile_path(name, folder / "fleet.yaml", where).absolute()
    _read_profile(path)
    return path.stem if path.parent == SHIPPED.absolute() else str(path)


def _read_profile(path: Path) -> ProfileSpec:
    document = load_yaml(path)
    return _profile(convert(document, ProfileFile, path, WORDS), document)


def _profile_path(name: str, near: Path, where: str = "") -> Path:
    """Of its file. Raises UsageError where there is none."""
    folders = (near.parent, near.parent.parent / "devices", SHIPPED)
    candidates = [near.parent / name] if name.endswith((".yaml", ".yml")) else [f / f"{name}.yaml" for f in folders]
    if found := [path for path in candidates if is_file(path)]:
        return found[0]
    known = sorted({p.stem for folder in folders for p in folder.glob("*.yaml") if _holds_profile(p)})
    said = f"looked for {candidates[0]}" if len(candidates) == 1 else f"known profiles: {', '.join(known)}"
    raise UsageError(
        f"{where or near}: there is no device profile {shown(name)}{nearest(name, known)}",
        hint=f"{said}; give a known name, or the path of a .yaml file",
    )


def _holds_profile(path: Path) -> bool:
    """Whether a file looks like a profile. The folder may hold other files too."""
    try:
        with path.open("rb") as file:
            return b"uplink_mbit_s:" in file.read(4096)
    except OSError:
        return False


def _profile(file: ProfileFile, document: Document) -> ProfileSpec:
    limits = Limits(
        cpus=file.cpus,
        uplink_bit_s=round(file.uplink_mbit_s * 1e6),
        downlink_bit_s=round(file.downlink_mbit_s * 1e6),
        memory_mib=file.memory_mib,
        latency_ms=file.latency_ms,
        named_threads=file.threads or 0,
    )
    name = _named(file.name or document.path.stem, "profile", document.where("name"))
    return ProfileSpec(name, limits, file.source, file.look_alike_of)
