"""What a scenario makes of a device's profile, and the largest and smallest fleets that it can make. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec
from orchestrator.scenario.agenda import Condition, Scenario, planned_events
from orchestrator.scenario.spec import LimitChange

Resolve = Callable[[str], ProfileSpec]


def profile_under(condition: Condition, own: ProfileSpec, resolve: Resolve) -> ProfileSpec:
    """The profile of a device in a condition. It keeps its name where only some limits are others."""
    profile = resolve(condition.profile) if condition.profile else own
    return profile if condition.limits is None else _changed(profile, condition.limits)


def _changed(profile: ProfileSpec, change: LimitChange) -> ProfileSpec:
    limits = profile.limits
    up, down = change.uplink_mbit_s, change.downlink_mbit_s
    return msgspec.structs.replace(
        profile,
        limits=msgspec.structs.replace(
            limits,
            cpus=limits.cpus if change.cpus is None else change.cpus,
            uplink_bit_s=limits.uplink_bit_s if up is None else round(up * 1e6),
            downlink_bit_s=limits.downlink_bit_s if down is None else round(down * 1e6),
            memory_mib=limits.memory_mib if change.memory_mib is None else change.memory_mib,
            latency_ms=limits.latency_ms if change.latency_ms is None else change.latency_ms,
        ),
    )


def extremes(spec: FleetSpec, scenario: Scenario, seed: int, resolve: Resolve) -> list[FleetSpec]:
    """The fleet in which every device has the most that the scenario ever gives it, and the one with the least. One
    dilation must fit both."""
    may = {device.name: [device.profile] for device in spec.devices}
    for planned in planned_events(scenario, seed, {device.name: device.profile.name for device in spec.devices}):
        event, own = scenario.events[planned.event], may[planned.device][0]
        if isinstance(event.limits, str):
            may[planned.device].append(resolve(event.limits))
        changes = [event.limits] if isinstance(event.limits, LimitChange) else [*_rates(scenario, planned.event)]
        may[planned.device] += [_changed(own, change) for change in changes]
    return [_fleet(spec, may, max), _fleet(spec, may, min)]


def _rates(scenario: Scenario, event: int) -> Iterator[LimitChange]:
    """The highest and lowest rates of the traces of an event."""
    for trace in scenario.traces.get(event, ()):
        for key in ("uplink_mbit_s", "downlink_mbit_s"):
            values = [value for sample in trace.samples if (value := getattr(sample, key)) is not None]
            if values:
                yield from (LimitChange(**{key: bound}) for bound in (max(values), min(values)))


def _fleet(spec: FleetSpec, may: dict[str, list[ProfileSpec]], pick: Callable[[Sequence[float]], float]) -> FleetSpec:
    devices = (_device(device, [profile.limits for profile in may[device.name]], pick) for device in spec.devices)
    return msgspec.structs.replace(spec, devices=tuple(devices))


def _device(device: DeviceSpec, may: Sequence[Limits], pick: Callable[[Sequence[float]], float]) -> DeviceSpec:
    bound = msgspec.structs.replace(
        may[0],
        cpus=pick([limits.cpus for limits in may]),
        uplink_bit_s=int(pick([limits.uplink_bit_s for limits in may])),
        downlink_bit_s=int(pick([limits.downlink_bit_s for limits in may])),
    )
    return msgspec.structs.replace(device, profile=msgspec.structs.replace(device.profile, limits=bound))
