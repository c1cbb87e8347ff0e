"""What bounds a round, in worlds whose costs are known: the largest bound is the one that was made scarce, and a
what-if is what happens when it is really made faster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.wire import messages
from edgebed.wire.messages import Assignment
from orchestrator.fleet.spec.profile import Limits, ProfileSpec
from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.critical.critical_path import Paths
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import timelines
from tests.component._fleet import training
from tests.component._simulated import PlainCosts, Played, play
from tests.summaries import summarised

DEVICES = {"a": 48, "b": 32, "c": 24}
LIMITS = {
    "a": Limits(cpus=0.5, uplink_bit_s=10**6, downlink_bit_s=10**6, memory_mib=256),
    "b": Limits(cpus=1.0, uplink_bit_s=2 * 10**5, downlink_bit_s=2 * 10**5, memory_mib=256),
    "c": Limits(cpus=1.0, uplink_bit_s=10**6, downlink_bit_s=10**6, memory_mib=256),
}
HOST = {"merge": 0.3, "decode_tensors": 0.03}
METHODS = [
    {"name": "fedavg"},
    {"name": "dtfl", "tier": 3},
    {"name": "dtfl", "tier": 3, "overlap": False},
    {"name": "splitfed", "cut": 2},
    {"name": "fedgkt", "cut": 2},
    {"name": "s2fl", "cuts": [2], "sliding": False, "group": 3},
]


class Costs(PlainCosts):
    """The server takes a factor of its time."""

    def __init__(self, server: float) -> None:
        self._server = server

    def server_step_s(self, assignment: Assignment, samples: int) -> float:
        return self._server * super().server_step_s(assignment, samples)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds that the orchestrator's own work takes, by the name of the function. A simulation has none of its own."""
    found: dict[str, float] = {}

    async def slow(work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        await asyncio.sleep(found.get(getattr(work, "__name__", ""), 0.0))
        return work(*args, **named)

    monkeypatch.setattr(asyncio, "to_thread", slow)
    return found


def world(folder: Path, spec: Mapping[str, Any], limits: Mapping[str, Limits], server: float) -> Played:
    profiles = {name: ProfileSpec(name, each) for name, each in limits.items()}
    folder.mkdir()
    return play(folder, DEVICES, spec, training(rounds=2), profiles=profiles, costs=Costs(server))


def faster(limits: Limits, what: str) -> Limits:
    if what == "cpu":
        return msgspec.structs.replace(limits, cpus=limits.cpus * 2)
    name = f"{what}_bit_s"
    return msgspec.structs.replace(limits, **{name: getattr(limits, name) * 2})


@pytest.mark.parametrize(("spec", "server"), [*((spec, 6.0) for spec in METHODS), (METHODS[1], 0.2), (METHODS[5], 0.2)])
def test_a_what_if_is_what_happens(spec: dict[str, Any], server: float, own: dict[str, float], tmp_path: Path) -> None:
    """Within 3 % of the rounds, for every bound of at least 5 %."""
    own |= HOST
    summary = summarise(world(tmp_path / "before", spec, LIMITS, server).records)
    whole = summary.what_if.rounds_s
    asked = [part for part in summary.bound_by.parts if part.share >= 0.05 and part.what not in ("turn", "broker")]
    assert asked
    saved = {(row.what, row.whose): row.saved_s for row in summary.what_if.savings}
    for part in asked:
        what, whose = part.what, part.whose
        limits = {name: faster(each, what) if name == whose else each for name, each in LIMITS.items()}
        own |= {name: seconds * (0.5 if what == "host" else 1.0) for name, seconds in HOST.items()}
        factor = 0.5 if what == "server" else 1.0
        after = summarise(world(tmp_path / f"{what}{whose}", spec, limits, server * factor).records)
        predicted, measured = whole - saved[what, whose], sum(row.round_s for row in after.rounds)
        assert predicted == pytest.approx(measured, rel=0.03), f"{what} {whose}"


SCARCE: dict[str, tuple[dict[str, Any], dict[str, Limits], float, dict[str, float], str]] = {
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
def test_what_is_scarce_bounds_the_round(name: str, own: dict[str, float], tmp_path: Path) -> None:
    spec, limits, server, host, what = SCARCE[name]
    own |= host or HOST
    costs = Costs(server)
    profiles = {device: ProfileSpec(device, each) for device, each in limits.items()}
    summary = summarise(play(tmp_path, DEVICES, spec, training(rounds=1), profiles=profiles, costs=costs).records)
    first = summary.bound_by.parts[0]
    assert first.what == what or (what, first.what) == ("server", "turn")
    assert first.share > 0.4
    assert sum(part.share for part in summary.bound_by.parts) == pytest.approx(1.0)


@pytest.mark.parametrize("spec", METHODS, ids=str)
def test_seconds_add_up_and_nothing_faster_changes_nothing(spec: dict[str, Any], tmp_path: Path) -> None:
    profiles = {name: ProfileSpec(name, each) for name, each in LIMITS.items()}
    options = {"profiles": profiles, "costs": Costs(6.0), "server_slots": 2}
    run = sort(play(tmp_path, DEVICES, spec, training(rounds=2), **options).records)
    paths = Paths(run)
    for timeline in timelines(run):
        path = paths.of(timeline)
        assert path is not None
        assert timeline.facts.finished is not None
        assert sum(path.bounds.values()) == timeline.facts.finished.at_ns - timeline.facts.start_ns
        assert path.graph.replayed_ns(lambda bound: 1.0) == timeline.facts.finished.at_ns
        assert Bound("unknown") not in path.bounds


# ---- time limits ----


def bounds_of(records: Sequence[t.Record]) -> list[dict[str, float]]:
    """Seconds by bound, of each round."""
    rounds = summarised(records)["round_bounds"]
    return [{part["what"]: part["seconds"] for part in each["parts"]} for each in rounds]


def said(records: Sequence[t.Record], **changes: Any) -> list[t.Record]:
    """The records with other words, or another limit, where a device was put out."""
    return [msgspec.structs.replace(r, **changes) if isinstance(r, t.DeviceOut) else r for r in records]


def cut_by_a_deadline(folder: Path) -> list[t.Record]:
    """The quorum is done in seconds, `b` would need minutes; the deadline comes after 20 s."""
    limits = LIMITS | {"b": msgspec.structs.replace(LIMITS["b"], uplink_bit_s=1_000)}
    profiles = {name: ProfileSpec(name, each) for name, each in limits.items()}
    wanted = training(rounds=2, deadline_s=20.0, quorum=2, liveness_s=1000.0)
    return play(folder, DEVICES, {"name": "fedavg"}, wanted, profiles=profiles).records


def test_a_round_that_lasted_until_its_deadline_is_bound_by_it(tmp_path: Path) -> None:
    records = cut_by_a_deadline(tmp_path)
    assert [record.why for record in records if isinstance(record, t.RoundFinished)] == ["deadline"] * 2
    assert [bounds["deadline"] for bounds in bounds_of(records)] == pytest.approx([20.0] * 2, abs=0.01)
    summary = summarised(records)
    assert summary["bound_by"]["parts"][0]["what"] == "deadline"
    assert [bounds["rule"] for bounds in summary["round_bounds"]] == ["deadline"] * 2


def test_the_deadline_is_found_however_the_sentence_is_worded(tmp_path: Path) -> None:
    records = cut_by_a_deadline(tmp_path)
    found = summarised(records)["round_bounds"]
    reworded = said(records, why="it needed more time than the round had")
    assert summarised(reworded)["round_bounds"] == found
    older = said(records, why="not done at the deadline of 20 s", limit_s=None)
    assert summarised(older)["round_bounds"] == found
    assert all("deadline" not in bounds for bounds in bounds_of(said(reworded, limit_s=None)))


CPUS = {"a": 0.002, "b": 0.02, "c": 1.0}


def test_a_second_ceiling_bounds_the_round_to_its_end(tmp_path: Path) -> None:
    """One half for all waits for the first features of `a`, which need 50 s. It is out after 30 s; those that waited
    for it have 30 s more, which is too little for `b`."""
    limits = {name: msgspec.structs.replace(LIMITS[name], cpus=cpus) for name, cpus in CPUS.items()}
    profiles = {name: ProfileSpec(name, each) for name, each in limits.items()}
    wanted = training(rounds=1, batch_size=4, round_ceiling_s=30.0, liveness_s=1000.0)
    records = play(tmp_path, DEVICES, METHODS[5], wanted, profiles=profiles).records
    out = [(r.device, r.limit_s) for r in records if isinstance(r, t.DeviceOut)]
    assert out == [("a", 30.0), ("b", pytest.approx(60.0, abs=0.01))]
    (bounds,) = bounds_of(records)
    assert bounds["deadline"] == pytest.approx(60.0, abs=0.02)


# ---- queues ----


def slow_server(folder: Path, factor: float, queued_uploads: int) -> list[t.Record]:
    """One device that its server half holds up: each step takes 0.8 s times `factor`, a batch 0.4 s."""
    folder.mkdir()
    method, costs = {"name": "dtfl", "tier": 3}, Costs(16.0 * factor)
    return play(folder, {"c": 64}, method, training(rounds=1), queued_uploads=queued_uploads, costs=costs).records


def recorded_as(records: Sequence[t.Record], queued_uploads: int) -> list[t.Record]:
    return [
        msgspec.structs.replace(r, queued_uploads=queued_uploads) if isinstance(r, t.RunStarted) else r for r in records
    ]


@pytest.mark.parametrize("queued", [1, 2, 4])
def test_the_path_follows_the_recorded_length_of_the_upload_queue(
    queued: int, own: dict[str, float], tmp_path: Path
) -> None:
    own |= HOST
    records, half = slow_server(tmp_path / "all", 1.0, queued), slow_server(tmp_path / "half", 0.5, queued)
    (bounds,) = bounds_of(records)
    assert bounds["server"] == pytest.approx(8 * 0.8)
    saved = saved_s(records, "server")
    assert sum(round_s(records)) - saved == pytest.approx(sum(round_s(half)), rel=0.1)
    other = recorded_as(records, 1 if queued == 4 else 4)
    assert saved_s(other, "server") < 0.5 * saved, "or the test above could not fail"


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_the_path_follows_the_number_of_upload_slots(
    slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device stands still most of the time, because its uplink is slow."""
    monkeypatch.setattr(messages, "SLOTS", slots)
    records, half = slow_uplink(tmp_path / "all", 20_000), slow_uplink(tmp_path / "half", 40_000)
    assert any(p.name == "blocked" for r in records if isinstance(r, t.DevicePhases) for p in r.phases)
    saved = saved_s(records, "uplink")
    assert sum(round_s(records)) - saved == pytest.approx(sum(round_s(half)), rel=0.01)
    monkeypatch.setattr(messages, "SLOTS", 1 if slots == 4 else 4)
    assert saved_s(records, "uplink") < 0.6 * saved, "or the test above could not fail"


def slow_uplink(folder: Path, bit_s: int) -> list[t.Record]:
    folder.mkdir()
    profiles = {"c": ProfileSpec("c", msgspec.structs.replace(LIMITS["c"], uplink_bit_s=bit_s))}
    method = {"name": "dtfl", "tier": 3}
    return play(folder, {"c": 64}, method, training(rounds=1), profiles=profiles, costs=Costs(0.1)).records


def round_s(records: Sequence[t.Record]) -> list[float]:
    return [r.seconds for r in records if isinstance(r, t.RoundFinished)]


def saved_s(records: Sequence[t.Record], what: str) -> float:
    savings = summarised(records)["what_if"]["savings"]
    return float(next(row["saved_s"] for row in savings if row["what"] == what))
