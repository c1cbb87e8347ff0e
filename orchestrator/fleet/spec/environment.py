"""The profile of every device in every round, for runs in which profiles change (papers.md §1.3). Pure.

The same seed gives the same changes. So a resumed run continues with the same profiles, and one dilation can be chosen
before the run that fits every fleet that will occur in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from orchestrator.experiment import Environment
from orchestrator.fleet.spec.capacity import Carried, dilation_of
from orchestrator.fleet.spec.condition import extremes
from orchestrator.fleet.spec.profile import FleetSpec, ProfileSpec
from orchestrator.scenario.agenda import Scenario


def candidates(
    spec: FleetSpec, environment: Environment, resolve: Callable[[str], ProfileSpec]
) -> tuple[ProfileSpec, ...]:
    """The profiles to draw from: those that the experiment names, or else the fleet's own, each once."""
    own = {device.profile.name: device.profile for device in spec.devices}
    return tuple(resolve(name) for name in environment.profiles) or tuple(own[name] for name in sorted(own))


def profiles_at(
    spec: FleetSpec, drawn_from: Sequence[ProfileSpec], environment: Environment, seed: int, round: int
) -> dict[str, ProfileSpec]:
    """Profile by device in a round, with all changes up to and including that round."""
    profiles = {device.name: device.profile for device in spec.devices}
    count = max(1, int(environment.share * len(profiles) + 0.5))
    for number in range(environment.every, round + 1, environment.every):
        rng = random.Random(f"{seed}/{number}")
        for name in sorted(rng.sample(sorted(profiles), count)):
            profiles[name] = rng.choice(drawn_from)
    return profiles


def fleets_over(
    spec: FleetSpec,
    environment: Environment | None,
    resolve: Callable[[str], ProfileSpec],
    seed: int,
    rounds: int,
    scenario: Scenario | None = None,
) -> list[FleetSpec]:
    """`spec`, and every fleet that environment and scenario will make of it."""
    fleets = [spec]
    if environment is not None:
        drawn_from = candidates(spec, environment, resolve)
        for round in range(environment.every, rounds, environment.every):
            profiles = profiles_at(spec, drawn_from, environment, seed, round)
            devices = tuple(msgspec.structs.replace(d, profile=profiles[d.name]) for d in spec.devices)
            fleets.append(msgspec.structs.replace(spec, devices=devices))
    if scenario is not None:
        fleets = [extreme for fleet in fleets for extreme in extremes(fleet, scenario, seed, resolve)]
    return fleets


def dilation_over(
    fleets: Sequence[FleetSpec], setting: str | float, cores: float, carried: Carried | None = None
) -> float:
    """One dilation that fits all the fleets, one at a time. Raises like `dilation_of`."""
    factor = max(dilation_of(fleet, setting, cores, carried) for fleet in fleets)
    for fleet in fleets:
        dilation_of(fleet, factor, cores, carried)  # raises if a quota would be smaller than the kernel accepts
    return factor
