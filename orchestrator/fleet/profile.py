"""Profiles of device classes and fleets: the YAML files, typed, and whether a host can hold them. Rates are Mbit/s in
files, bit/s in code."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from edgebed.errors import CapacityError, UsageError
from edgebed.wire.topics import check_name
from orchestrator.experiment import load_yaml, refuse_not_finite

SHIPPED = Path(__file__).resolve().parents[2] / "profiles" / "devices"
MOST_DEVICES = 1000

LEAST_CPUS = 0.01
"""The kernel refuses a CFS quota below 1 ms of every 100 ms."""

Cpus = Annotated[float, msgspec.Meta(gt=0, le=1024)]
Mbit = Annotated[float, msgspec.Meta(ge=0.01, le=100_000)]
T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True):
    """What is enforced on one device. Bit/s are on the wire (Ethernet frames), CPUs are seconds of CPU per second."""

    cpus: float
    uplink_bit_s: int
    downlink_bit_s: int
    memory_mib: int
    latency_ms: float = 0.0

    def dilated(self, dilation: float) -> Limits:
        """The same device with every quota and rate divided by `dilation`; memory and latency stay."""
        return msgspec.structs.replace(
            self,
            cpus=self.cpus / dilation,
            uplink_bit_s=round(self.uplink_bit_s / dilation),
            downlink_bit_s=round(self.downlink_bit_s / dilation),
        )

    @property
    def threads(self) -> int:
        """Threads for torch: more than the quota's whole CPUs only spin (transport.md)."""
        return max(1, int(self.cpus))


class ProfileSpec(msgspec.Struct, frozen=True):
    """A class of device. `source` says where its figures come from."""

    name: str
    limits: Limits
    source: str = ""


class DeviceSpec(msgspec.Struct, frozen=True):
    name: str
    profile: ProfileSpec


class FleetSpec(msgspec.Struct, frozen=True):
    """A fleet file, resolved. `reserve_cpus` of the host stay free for orchestrator and broker."""

    name: str
    backend: str
    reserve_cpus: float
    devices: tuple[DeviceSpec, ...]
    path: Path


class _ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str | None = None
    source: str = ""
    cpus: Cpus
    uplink_mbit_s: Mbit
    downlink_mbit_s: Mbit
    memory_mib: Annotated[int, msgspec.Meta(ge=64, le=4 * 2**20)]
    latency_ms: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    profile: str
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)] = 1
    name: str | None = None


class _FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    backend: Literal["docker", "local", "software"] = "local"
    reserve_cpus: Annotated[float, msgspec.Meta(ge=0, le=1024)] = 0.5
    devices: Annotated[list[_Entry], msgspec.Meta(min_length=1)]


def load_fleet(path: Path) -> FleetSpec:
    """Read a fleet file and the profiles that it names.

    Raises:
        UsageError: no such file or profile, an unknown key, a wrong unit, an impossible value; with file, place, cure.
    """
    path = path.resolve()
    file = _convert(load_yaml(path), _FleetFile, path)
    devices = tuple(_devices(file.devices, path))
    if len(devices) > MOST_DEVICES:
        raise UsageError(f"{path}: {len(devices)} devices", cure=f"at most {MOST_DEVICES} stand on one host")
    twice = [name for name, count in Counter(d.name for d in devices).items() if count > 1]
    if twice:
        raise UsageError(
            f"{path}: two devices are called {twice[0]!r}", cure="give the entries of `devices` other names"
        )
    return FleetSpec(check_name(file.name, "fleet"), file.backend, file.reserve_cpus, devices, path)


def _devices(entries: list[_Entry], path: Path) -> list[DeviceSpec]:
    seen: Counter[str] = Counter()
    devices = []
    for entry in entries:
        profile = load_profile(entry.profile, path)
        for _ in range(entry.count):
            stem = entry.name or profile.name
            seen[stem] += 1
            name = stem if entry.name and entry.count == 1 else f"{stem}-{seen[stem]}"
            devices.append(DeviceSpec(check_name(name), profile))
    return devices


def load_profile(name: str, near: Path) -> ProfileSpec:
    """Read a device profile.

    Args:
        name: of a profile (`cpu4`), or the path of its file relative to the folder of `near`.
        near: the file that names the profile. Names are looked up beside it, in `../devices`, then among those
            that come with Edgebed.

    Raises:
        UsageError: as `load_fleet`.
    """
    folders = (near.parent, near.parent.parent / "devices", SHIPPED)
    candidates = [near.parent / name] if name.endswith((".yaml", ".yml")) else [f / f"{name}.yaml" for f in folders]
    for path in candidates:
        if path.is_file():
            return _profile(_convert(load_yaml(path), _ProfileFile, path), path)
    known = sorted({p.stem for folder in folders[1:] for p in folder.glob("*.yaml")})
    raise UsageError(
        f"{near}: there is no device profile {name!r}{_nearest(name, known)}",
        cure=f"known profiles: {', '.join(known)}; or give the path of a .yaml file",
    )


def _profile(file: _ProfileFile, path: Path) -> ProfileSpec:
    limits = Limits(
        cpus=file.cpus,
        uplink_bit_s=round(file.uplink_mbit_s * 1e6),
        downlink_bit_s=round(file.downlink_mbit_s * 1e6),
        memory_mib=file.memory_mib,
        latency_ms=file.latency_ms,
    )
    return ProfileSpec(check_name(file.name or path.stem, "profile"), limits, file.source)


# ---- capacity --------------------------------------------------------------------------------------------------------


def needed_dilation(spec: FleetSpec, cores: float) -> float:
    """The least factor by which quotas must be divided to fit on `cores` minus the reserve; 1 where they fit.

    Raises:
        CapacityError: the reserve leaves nothing.
    """
    room = cores - spec.reserve_cpus
    if room <= 0:
        raise CapacityError(
            f"{spec.path}: reserve_cpus {spec.reserve_cpus:g} leaves nothing of this host's {cores:g} cores",
            cure=f"set reserve_cpus below {cores:g}",
        )
    return max(1.0, sum(d.profile.limits.cpus for d in spec.devices) / room)


def dilation_of(spec: FleetSpec, setting: str | float, cores: float) -> float:
    """The factor D by which every quota and rate is divided and reported times are to be divided.

    Args:
        setting: `auto` (the least that fits), `off` (1, or refuse), or a factor >= 1.
        cores: that can be used (`host.usable_cores`).

    Raises:
        CapacityError: the fleet does not fit, or a quota would fall below what the kernel can hold.
        UsageError: no such setting.
    """
    needed = needed_dilation(spec, cores)
    factor = needed if setting == "auto" else 1.0 if setting == "off" else _number(setting)
    total = sum(d.profile.limits.cpus for d in spec.devices)
    if factor < needed * (1 - 1e-9):
        raise CapacityError(
            f"the fleet {spec.name} wants {total:g} CPUs{f' / {factor:g}' if factor > 1 else ''}, the host has "
            f"{cores:g} cores of which {spec.reserve_cpus:g} are reserved for orchestrator and broker",
            cure=f"take dilation: auto (here {needed:.3g}), fewer or smaller devices, or a larger host",
        )
    least = min(spec.devices, key=lambda d: d.profile.limits.cpus)
    if least.profile.limits.cpus / factor < LEAST_CPUS:
        raise CapacityError(
            f"{least.name} would get {least.profile.limits.cpus / factor:.4f} CPUs at dilation {factor:.3g}; "
            f"the kernel holds no quota below {LEAST_CPUS:g}",
            cure="take fewer large devices beside the smallest, or a host with more cores",
        )
    return factor


def _number(setting: str | float) -> float:
    try:
        factor = float(setting)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < 1e6:
        raise UsageError(f"dilation {setting!r}", cure="give auto, off, or a factor of at least 1")
    return factor


# ---- messages --------------------------------------------------------------------------------------------------------

HINTS = {
    "cpus": "CPUs are a number, such as 0.5",
    "uplink_mbit_s": "rates are a number of megabits per second, such as 10",
    "downlink_mbit_s": "rates are a number of megabits per second, such as 10",
    "memory_mib": "memory is a whole number of MiB, such as 2048",
    "latency_ms": "latency is a number of milliseconds one way, such as 20",
    "count": f"count is a whole number from 1 to {MOST_DEVICES}",
    "backend": "the backend is docker, local, or software (local with the software throttle)",
}


def _convert(data: Any, kind: type[T], path: Path) -> T:
    """`data` as `kind`. Errors name the file, the place, what was expected, and the key that was probably meant."""
    refuse_not_finite(data, path)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        place = place.strip("`").lstrip(".")
        unknown = re.search(r"unknown field `(.+)`", text)
        keys = [*_ProfileFile.__struct_fields__] if kind is _ProfileFile else _fleet_keys(place)
        if unknown:
            text = f"unknown key {unknown[1]!r}{_nearest(unknown[1], keys)}"
            cure = f"known keys here: {', '.join(keys)}; units stand in the key, values are plain numbers"
        else:
            cure = HINTS.get(place.rpartition(".")[2], f"known keys here: {', '.join(keys)}")
        raise UsageError(f"{path}{f' at {place}' if place else ''}: {text}", cure=cure) from None


def _fleet_keys(place: str) -> list[str]:
    return list((_Entry if place.startswith("devices[") else _FleetFile).__struct_fields__)


def _nearest(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    stems = {k.split("_")[0]: k for k in known}
    close = difflib.get_close_matches(word, known, 1, 0.6)
    meant = close[0] if close else stems.get(word.split("_")[0].lower(), "")
    return f"; did you mean {meant!r}?" if meant else ""
