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

from collections.abc import Iterator

import msgspec

from orchestrator.records.critical.critical_path import LEAST, RoundPath
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.run_index import RoundFacts, RunFacts, Session
from orchestrator.records.timeline.limits_in_force import LimitsInForce

FASTER = 0.5
"""Factor of the time of what is faster: twice as fast."""

LINKS = ("uplink", "downlink")
ONE = ("cpu", "uplink", "downlink", "server", "host")
"""Bounds that can be made faster one by one; of a device, or of the server's side as a whole."""


GROUPS = ("all", "slowest")
"""What `Saving.whose` says of several devices."""


class Saving(msgspec.Struct, frozen=True):
    """Seconds that all rounds together would have been shorter, divided by the dilation.

    Attributes:
        what: cpu, uplink, downlink, link (both ways), server or host.
        whose: a device, "slowest", "all", or "" of server and host.
    """

    what: str
    whose: str
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


class WhatIf:
    """Adds up the savings of a run, round by round. Only what is on the critical path of a round can shorten it, so
    nothing else is walked again."""

    def __init__(self, run: RunFacts) -> None:
        self._sessions: dict[int, Session] = {id(facts): session for session, facts in run.rounds()}
        self._limits: dict[int, LimitsInForce] = {id(session): LimitsInForce(session) for session in run.sessions}
        self._saved: dict[tuple[str, str], float] = {}
        self.slowest: dict[str, int] = {}
        """In how many rounds whose link was the slowest, or one of the slowest."""
        self.total_s = 0.0

    def add(self, facts: RoundFacts, path: RoundPath | None) -> tuple[Saving, ...]:
        """A finished round; returns what its bounds would have saved. Without a path (older records) nothing is known
        of it."""
        if path is None or facts.finished is None or not facts.done:
            return ()
        self.total_s += facts.finished.seconds / facts.dilation
        slowest = self._slowest(facts)
        for device in slowest:
            self.slowest[device] = self.slowest.get(device, 0) + 1
        own = savings_of_round(path, facts.dilation)
        groups = {("cpu", "all"): Faster(("cpu",)), ("link", "all"): Faster(LINKS)}
        groups["link", "slowest"] = Faster(LINKS, frozenset(slowest))
        of_groups = [Saving(*key, saved_ns(path, faster) / 1e9 / facts.dilation) for key, faster in groups.items()]
        for saving in (*own, *of_groups):
            key = saving.what, saving.whose
            self._saved[key] = self._saved.get(key, 0.0) + saving.saved_s
        return own

    def _slowest(self, facts: RoundFacts) -> set[str]:
        limits = self._limits[id(self._sessions[id(facts)])]
        rates = {d: row.link_bit_s for d in facts.done if (row := limits.at(d, facts.start_ns)) is not None}
        least = min(rates.values(), default=0.0)
        return {device for device, rate in rates.items() if rate == least}

    def savings(self) -> list[Saving]:
        """The largest first; what was on no critical path saves nothing and is not named."""
        found = [Saving(what, whose, saved) for (what, whose), saved in self._saved.items()]
        return sorted(found, key=lambda saving: -saving.saved_s)

    def result(self) -> dict[str, object]:
        """For summary.json."""
        return {
            "rounds_s": self.total_s,
            "slowest_links": sorted(self.slowest, key=lambda device: (-self.slowest[device], device)),
            "savings": [msgspec.structs.asdict(saving) for saving in self.savings()],
        }

    def saved_s(self, what: str, whose: str) -> float:
        """0 where it was on no critical path."""
        return self._saved.get((what, whose), 0.0)
