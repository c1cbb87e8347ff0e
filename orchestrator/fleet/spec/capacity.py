"""Whether a host can hold a fleet, and with which dilation. Pure."""

from __future__ import annotations

import msgspec

from edgebed.errors import CapacityError, UsageError, counted
from edgebed.limits.cpu_quota import LEAST_CPUS
from orchestrator.fleet.spec.profile import FleetSpec


class Carried(msgspec.Struct, frozen=True):
    """What the host's network path carries on all links together, in bits per second up and down."""

    up_bit_s: int
    down_bit_s: int

    def __str__(self) -> str:
        return f"{self.up_bit_s / 1e6:.0f} Mbit/s up and {self.down_bit_s / 1e6:.0f} Mbit/s down"


def path_dilation(spec: FleetSpec, carried: Carried | None) -> float:
    """The smallest factor with which the rates of all links together fit the host's network path; 1 if they fit, or if
    it was not measured."""
    if carried is None:
        return 1.0
    up, down = spec.rates
    return max(1.0, up / carried.up_bit_s, down / carried.down_bit_s)


def needed_dilation(spec: FleetSpec, cores: float) -> float:
    """The smallest factor by which the quotas must be divided to fit on `cores` minus the reserve, and each device's on
    its threads; 1 if they fit, or if there are none: a fleet of boards. Raises CapacityError: the reserve leaves
    nothing."""
    if not spec.cpus:
        return max(1.0, spec.by_threads)
    room = cores - spec.reserve_cpus
    if room <= 0:
        raise CapacityError(
            f"{spec.path}: reserve_cpus {spec.reserve_cpus:g} leaves nothing of this host's {cores:g} cores",
            hint=f"set reserve_cpus below {cores:g}",
        )
    return max(1.0, spec.cpus / room, spec.by_threads)


def dilation_of(spec: FleetSpec, setting: str | float, cores: float, carried: Carried | None = None) -> float:
    """The dilation: the factor by which every quota and rate is divided, and every measured time later.

    Args:
        setting: `auto` (the smallest factor that fits), `off` (1, or an error), or a factor >= 1.
        cores: the cores that can be used (`host.usable_cores`).
        carried: what the host's network path carries; None: it was not measured.

    Raises:
        CapacityError: the fleet does not fit, or a quota would be smaller than the kernel accepts.
        UsageError: there is no such setting.
    """
    path, by_cpus = path_dilation(spec, carried), needed_dilation(spec, cores)
    needed = max(by_cpus, path)
    factor = factor_of(setting, needed)
    if setting in ("auto", "off"):
        why = _why_dilated(spec, by_cpus, path, cores, carried)
    else:
        why = f"The experiment asks for {factor:g}"
    check_boards(spec, factor, why)
    if by_cpus * (1 - 1e-9) <= factor < path * (1 - 1e-9):
        up, down = spec.rates
        raise CapacityError(
            f"the links of the fleet {spec.name} are {up / 1e6:g} Mbit/s up and {down / 1e6:g} Mbit/s down together"
            f"{f', / {factor:g}' if factor > 1 else ''}; this host's network path carries {carried}",
            hint=f"use dilation: auto (here {needed:.3g}), fewer or slower links, or a larger host",
        )
    if factor < spec.by_threads * (1 - 1e-9):
        raise CapacityError(
            f"a device of the fleet {spec.name} needs {spec.by_threads / factor:.3g} of a core for each of its threads "
            f"to do what the reference {spec.speed.reference} does in the same time",
            hint=f"use dilation: auto (here {needed:.3g}), a slower reference, a faster host, or more `threads` in its "
            "profile",
        )
    if factor < needed * (1 - 1e-9):
        raise CapacityError(
            f"the fleet {spec.name} wants {counted(spec.cpus, 'CPU')}{f' / {factor:g}' if factor > 1 else ''}, the "
            f"host has {counted(cores, 'core')} of which {spec.reserve_cpus:g} are reserved for orchestrator and "
            "broker",
            hint=f"use dilation: auto (here {needed:.3g}), fewer or smaller devices, or a larger host",
        )
    check_least(spec, factor, hint="use fewer large devices beside the smallest one, or a host with more cores")
    return factor


def check_boards(spec: FleetSpec, factor: float, why: str) -> None:
    """Raises CapacityError where a board without limits is in a fleet that would be dilated. `why`: it would be."""
    if spec.unlimited and factor > 1:
        raise CapacityError(
            f"{spec.name} has real boards without limits ({', '.join(spec.unlimited)}), so its dilation must be 1: a "
            f"board cannot be slowed down. {why}",
            hint="give the other devices fewer or smaller quotas and rates, limit the boards too (`limit: true`), or "
            "leave them away",
        )


def check_least(spec: FleetSpec, factor: float, why: str = "", *, hint: str) -> None:
    """Raises CapacityError where a quota, also that of a board that limits itself, would be smaller than the kernel
    accepts."""
    devices = [device for device in spec.devices if not device.profile.limits.unlimited]
    quotas = [(device.name, device.profile.limits.cpus) for device in devices]
    quotas += [] if spec.server_cpus is None else [("the server", spec.server_cpus)]
    name, cpus = min(quotas, key=lambda quota: quota[1], default=("", factor))
    if cpus / factor < LEAST_CPUS:
        raise CapacityError(
            f"{name} would get {cpus / factor:.4f} CPUs at D = {factor:.3g}; the smallest CPU quota that the kernel "
            f"accepts is {LEAST_CPUS:g}{why}",
            hint=hint,
        )


def _why_dilated(spec: FleetSpec, by_cpus: float, path: float, cores: float, carried: Carried | None) -> str:
    """The arithmetic, for a fleet that must not be dilated."""
    if by_cpus >= path:
        return (
            f"Its other devices want {counted(spec.cpus, 'CPU')}, and this host has {counted(cores, 'core')} of which "
            f"{spec.reserve_cpus:g} are reserved: that needs {by_cpus:.3g}"
        )
    up, down = spec.rates
    return (
        f"The links of its other devices are {up / 1e6:g} Mbit/s up and {down / 1e6:g} Mbit/s down together, and this "
        f"host's network path carries {carried}: that needs {path:.3g}"
    )


def factor_of(setting: str | float, needed: float) -> float:
    """What a setting of the dilation means where at least `needed` is. Raises UsageError: there is no such setting."""
    if setting in ("auto", "off"):
        return needed if setting == "auto" else 1.0
    try:
        factor = float(setting)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < 1e6:
        raise UsageError(f"dilation {setting!r}", hint="give auto, off, or a factor of at least 1")
    return factor
