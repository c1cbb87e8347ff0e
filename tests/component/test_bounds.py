"""What bounds a round, in worlds whose costs are known: the largest bound is the one that was made scarce, and a
what-if is what happens when it is really made faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.wire.messages import Assignment
from orchestrator.fleet.spec.profile import Limits, ProfileSpec
from orchestrator.records.account import summarise
from orchestrator.records.critical.critical_path import Paths
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import timelines
from orchestrator.rounds.event_loop import OwnWork
from tests.component._fleet import training
from tests.component._simulated import PlainCosts, Played, play

DEVICES = {"a": 48, "b": 32, "c": 24}
LIMITS = {
    "a": Limits(cpus=0.5, uplink_bit_s=10**6, downlink_bit_s=10**6, memory_mib=256),
    "b": Limits(cpus=1.0, uplink_bit_s=2 * 10**5, downlink_bit_s=2 * 10**5, memory_mib=256),
    "c": Limits(cpus=1.0, uplink_bit_s=10**6, downlink_bit_s=10**6, memory_mib=256),
}
METHODS = [
    {"name": "fedavg"},
    {"name": "dtfl", "tier": 3},
    {"name": "dtfl", "tier": 3, "overlap": False},
    {"name": "splitfed", "cut": 2},
    {"name": "fedgkt", "cut": 2},
    {"name": "s2fl", "cuts": [2], "sliding": False, "group": 3},
]


class Costs(PlainCosts):
    """The server, and what the orchestrator does itself, take a factor of their time."""

    def __init__(self, server: float, host: float) -> None:
        super().__init__({"merge": 0.2 * host, "decode": 0.03 * host, "dispatch": 0.1 * host})
        self._server = server

    def server_step_s(self, assignments: Sequence[Assignment], samples: Sequence[int]) -> float:
        return self._server * super().server_step_s(assignments, samples)


def world(folder: Path, spec: Mapping[str, Any], limits: Mapping[str, Limits], server: float, host: float) -> Played:
    profiles = {name: ProfileSpec(name, each) for name, each in limits.items()}
    folder.mkdir()
    return play(folder, DEVICES, spec, training(rounds=2), profiles=profiles, costs=Costs(server, host))


def faster(limits: Limits, what: str) -> Limits:
    if what == "cpu":
        return msgspec.structs.replace(limits, cpus=limits.cpus * 2)
    name = f"{what}_bit_s"
    return msgspec.structs.replace(limits, **{name: getattr(limits, name) * 2})


@pytest.mark.parametrize(("spec", "server"), [*((spec, 6.0) for spec in METHODS), (METHODS[1], 0.2), (METHODS[5], 0.2)])
def test_a_what_if_is_what_happens(spec: dict[str, Any], server: float, tmp_path: Path) -> None:
    """Within 3 % of the rounds, for every bound of at least 5 %."""
    summary = summarise(world(tmp_path / "before", spec, LIMITS, server, 1.0).records)
    whole = summary.what_if.rounds_s
    asked = [part for part in summary.bound_by.parts if part.share >= 0.05 and part.what not in ("turn", "broker")]
    assert asked
    saved = {(row.what, row.whose): row.saved_s for row in summary.what_if.savings}
    for part in asked:
        what, whose = part.what, part.whose
        limits = {name: faster(each, what) if name == whose else each for name, each in LIMITS.items()}
        factors = (server * (0.5 if what == "server" else 1.0), 0.5 if what == "host" else 1.0)
        after = summarise(world(tmp_path / f"{what}{whose}", spec, limits, *factors).records)
        predicted, measured = whole - saved[what, whose], sum(row.round_s for row in after.rounds)
        assert predicted == pytest.approx(measured, rel=0.03), f"{what} {whose}"


SCARCE: dict[str, tuple[dict[str, Any], dict[str, Limits], float, dict[OwnWork, float], str]] = {
    "server": ({"name": "splitfed", "cut": 2}, LIMITS, 40.0, {}, "server"),
    "cpu": ({"name": "dtfl", "tier": 3}, LIMITS, 0.1, {}, "cpu"),
    "link": (
        {"name": "fedavg"},
        LIMITS | {"b": msgspec.structs.replace(LIMITS["b"], uplink_bit_s=10_000)},
        1.0,
        {},
        "uplink",
    ),
    "host": ({"name": "fedavg"}, LIMITS, 1.0, {"merge": 60.0}, "host"),
}


@pytest.mark.parametrize("name", SCARCE)
def test_what_is_scarce_bounds_the_round(name: str, tmp_path: Path) -> None:
    spec, limits, server, own, what = SCARCE[name]
    costs = Costs(server, 1.0)
    costs = costs if not own else PlainCosts(own)
    profiles = {device: ProfileSpec(device, each) for device, each in limits.items()}
    summary = summarise(play(tmp_path, DEVICES, spec, training(rounds=1), profiles=profiles, costs=costs).records)
    first = summary.bound_by.parts[0]
    assert first.what == what or (what, first.what) == ("server", "turn")
    assert first.share > 0.4
    assert sum(part.share for part in summary.bound_by.parts) == pytest.approx(1.0)


@pytest.mark.parametrize("spec", METHODS, ids=str)
def test_seconds_add_up_and_nothing_faster_changes_nothing(spec: dict[str, Any], tmp_path: Path) -> None:
    profiles = {name: ProfileSpec(name, each) for name, each in LIMITS.items()}
    options = {"profiles": profiles, "costs": Costs(6.0, 1.0), "server_slots": 2}
    run = sort(play(tmp_path, DEVICES, spec, training(rounds=2), **options).records)
    paths = Paths(run)
    for timeline in timelines(run):
        path = paths.of(timeline)
        assert path is not None
        assert timeline.facts.finished is not None
        assert sum(path.bounds.values()) == timeline.facts.finished.at_ns - timeline.facts.start_ns
        assert path.graph.replayed_ns(lambda bound: 1.0) == timeline.facts.finished.at_ns
        assert Bound("unknown") not in path.bounds
