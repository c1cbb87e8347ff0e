"""How long rounds would have taken if what bounded them were faster: their graphs, walked again. Pure.

The jobs of a round (`round_graph`) keep their order and what each waits for; the time of one bound takes `FASTER` times
as long, and every wait follows. Server steps take the trainer's slots in the order in which they are ready. So the path
moves to whatever is next: twice the CPU saves only what the link or the server leaves. With nothing faster the recorded
end comes out.

What it cannot know, so that the figures are estimates:
    - the plan stays: a method that adapts (tiers, offloading) would have assigned other work;
    - of a transfer only what its bytes need at the link's rate becomes shorter with a faster link, and only what the
      quota held up with a faster CPU;
    - a server step takes as long beside others as it took;
    - devices that were left out leave when they left, and a deadline stays;
    - in a run with lanes, seconds are added up over all lanes, which run at the same time: the sum is more than the
      wall clock would lose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from orchestrator.records.critical.critical_path import LEAST, RoundPath
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.run_index import RoundFacts
from orchestrator.records.timeline.limits_in_force import LimitsInForce

FASTER = 0.5
"""Factor of the time of what is faster: twice as fast."""

LINKS = ("uplink", "downlink")
ONE = ("cpu", "uplink", "downlink", "server", "host")
"""Bounds that can be made faster one by one; of a device, or of the server's side as a whole."""


GROUPS = ("all", "slowest")
"""What `Saving.whose` says of several devices."""


class Saving(msgspec.Struct, frozen=True):
    """Seconds that all rounds together would have been shorter, divided by the dilation."""

    what: str  # cpu, uplink, downlink, link (both ways), server or host
    whose: str  # a device, "slowest", "all", or "" of server and host
    saved_s: float


class Faster(msgspec.Struct, frozen=True):
    """Which bounds are faster: those of these kinds, and of these devices (None: of all and of nobody's)."""

    what: tuple[str, ...]
    whose: frozenset[str] | None = None

    def factor(self, bound: Bound) -> float:
        fits = bound.what in self.what and (self.whose is None or bound.whose in self.whose)
        return FASTER if fits else 1.0


def saved_ns(path: RoundPath, faster: Faster) -> int:
    """Nanoseconds by which a round would have been shorter."""
    if not any(faster.factor(bound) < 1 for bound in path.bounds):
        return 0
    return max(0, path.graph.unchanged_ns - path.graph.replayed_ns(faster.factor))


def savings_of_round(path: RoundPath, dilation: float) -> tuple[Saving, ...]:
    """What each bound of a round would have saved if it alone were twice as fast, the largest first."""
    found = [
        Saving(bound.what, bound.whose, saved_ns(path, Faster((bound.what,), whose)) / 1e9 / dilation)
        for bound, whose in _bounds(path)
    ]
    return tuple(sorted(found, key=lambda saving: -saving.saved_s))


def _bounds(path: RoundPath) -> Iterator[tuple[Bound, frozenset[str] | None]]:
    for bound in path.bounds:
        if bound.what in ONE and path.share(bound) >= LEAST:
            yield bound, frozenset((bound.whose,))
    if path.share(Bound("server")) < LEAST <= path.share(Bound("turn")):
        yield Bound("server"), None


def savings_of_groups(path: RoundPath, dilation: float, slowest: Iterable[str]) -> tuple[Saving, ...]:
    """What groups of devices would have saved together if they were twice as fast. `slowest`: the devices with the
    slowest link."""
    groups = {("cpu", "all"): Faster(("cpu",)), ("link", "all"): Faster(LINKS)}
    groups["link", "slowest"] = Faster(LINKS, frozenset(slowest))
    return tuple(Saving(*key, saved_ns(path, faster) / 1e9 / dilation) for key, faster in groups.items())


def slowest_links(facts: RoundFacts, limits: LimitsInForce) -> tuple[str, ...]:
    """The devices that got done on the slowest link, or one of the slowest; a link is as fast as its slower
    direction."""
    rates = {device: row.link_bit_s for device in facts.done if (row := limits.at(device, facts.start_ns)) is not None}
    least = min(rates.values(), default=0.0)
    return tuple(device for device, rate in rates.items() if rate == least)
