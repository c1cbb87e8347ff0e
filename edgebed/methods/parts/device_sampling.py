"""Which devices take part in a round: any at random, or equally many of every compute level (FedPMT, §V-B). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from random import Random
from typing import Literal, Protocol, TypeVar


class Present(Protocol):
    """What is read of a device (`methods.base.DeviceView`)."""

    @property
    def name(self) -> str: ...
    @property
    def cpus(self) -> float: ...


D = TypeVar("D", bound=Present)


class Sampling(Protocol):
    """A way to draw devices."""

    def __call__(self, devices: Sequence[D], share: float, seed: int, round: int) -> list[D]: ...


def draw_share(devices: Sequence[D], share: float, seed: int, round: int) -> list[D]:
    """`share` of the devices, rounded half up, at least one; the same for the same seed; in the order of names."""
    ordered = sorted(devices, key=lambda view: view.name)
    drawn = Random(f"{seed}/sample/{round}").sample(ordered, _drawn_count(len(ordered), share))
    return sorted(drawn, key=lambda view: view.name)


def draw_by_level(devices: Sequence[D], share: float, seed: int, round: int) -> list[D]:
    """As many devices as `draw_share`, equally many of each compute level: devices with equal CPUs are one level.

    Where the number does not divide, random levels get one more; where a level has too few devices, the others fill
    its places.
    """
    chance = Random(f"{seed}/sample/{round}")
    levels: dict[float, list[D]] = {}
    for view in sorted(devices, key=lambda view: view.name):
        levels.setdefault(view.cpus, []).append(view)
    queues = [chance.sample(level, len(level)) for _, level in sorted(levels.items())]
    chance.shuffle(queues)
    turns = [view for view in chain.from_iterable(zip_longest(*queues)) if view is not None]
    return sorted(turns[: _drawn_count(len(devices), share)], key=lambda view: view.name)


def _drawn_count(devices: int, share: float) -> int:
    return min(devices, max(1, int(share * devices + 0.5)))


Draw = Literal["random", "levels"]

DRAWS: dict[Draw, Sampling] = {
    "random": draw_share,
    "levels": draw_by_level,
}
"""How the devices of a round are drawn, by the name that a method's option `draw` gives."""
