"""Scenarios: events are read or refused; scenario + seed + devices give the same timed steps every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import UsageError
from orchestrator.experiment import Experiment, from_dict
from orchestrator.fleet.spec.condition import extremes, profile_under
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec
from orchestrator.runs.feasibility import check_fleet
from orchestrator.scenario.agenda import Agenda, Condition, DueStep, Planned, Scenario, planned_events
from orchestrator.scenario.files import load_scenario
from orchestrator.scenario.spec import LimitChange, ScenarioEvent
from orchestrator.scenario.traces import Sample, trace_of

PROFILES = {"a": "slow", "b": "slow", "c": "fast", "d": "fast"}


def experiment(*events: dict[str, Any]) -> Experiment:
    return from_dict({"name": "t", "fleet": "f", "methods": [{"name": "fedavg"}], "scenario": list(events)})


def scenario(*events: dict[str, Any], traces: Any = None) -> Scenario:
    return Scenario(tuple(msgspec.convert(list(events), list[ScenarioEvent])), traces or {})


def agenda(wanted: Scenario, **more: Any) -> Agenda:
    return Agenda(wanted, planned_events(wanted, 1, PROFILES), **more)


def told(steps: list[DueStep]) -> list[tuple[float, str, str, bool]]:
    return [(step.at_s, step.device, step.kind, step.begins) for step in steps]


# ---- reading ----


@pytest.mark.parametrize(
    ("event", "message", "hint"),
    [
        ({"device": "a", "do": "cut"}, "scenario[0]: an event has one time", "give `at_s` or `round`"),
        ({"at_s": 1, "round": 1, "device": "a", "do": "cut"}, "an event has one time", ""),
        ({"at_s": 1, "after_s": 1, "device": "a", "do": "cut"}, "after_s counts from the start of a round", "`round`"),
        ({"at_s": 1, "do": "cut"}, "happens to one group of devices, this one has none", "device, profile, share"),
        ({"at_s": 1, "device": "a", "share": 1, "do": "cut"}, "this one has device and share", ""),
        ({"at_s": 1, "device": "a"}, "does one thing, this one has none", "do, limits, compete_cpus, trace"),
        ({"at_s": 1, "device": "a", "do": "return", "for_s": 1}, "`return` has no duration", "remove for_s"),
        ({"at_s": 1, "device": "a", "do": "Cut"}, "scenario[0].do is 'Cut'; it must be one of", "write cut"),
        ({"at_s": 1, "device": "a", "do": "cut", "for": 1}, "there is no key 'for' here", "for_s"),
        ({"at_s": -1, "device": "a", "do": "cut"}, "scenario[0].at_s is -1", "from 0"),
        ({"at_s": 1, "device": "a", "limits": {}}, "scenario[0].limits: limits names no limit", "cpus"),
        ({"at_s": 1, "device": "a", "limits": {"uplink_mbps": 1}}, "did you mean 'uplink_mbit_s'?", "known keys"),
        ({"at_s": 1, "device": "a", "trace": {}}, "scenario[0].trace: a trace is a CSV file or mahimahi", "`file`"),
        ({"at_s": 1, "device": "a", "trace": {"file": "a", "uplink": "b"}}, "a CSV file or mahimahi", ""),
    ],
)
def test_an_event_that_says_nothing_clear_is_refused(event: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        experiment(event)
    assert message in str(caught.value)
    assert hint in caught.value.hint


VALUES = st.none() | st.booleans() | st.integers(-2, 100) | st.floats(-1, 100) | st.sampled_from(["a", "cut", "loop"])
KEYS = st.sampled_from(ScenarioEvent.__struct_fields__)


@given(st.dictionaries(KEYS, VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=9), VALUES)))
def test_any_event_is_read_or_refused(event: dict[str, Any]) -> None:
    try:
        (read,) = experiment(event).scenario or ()
    except UsageError:
        return
    assert isinstance(read, ScenarioEvent)
    assert read.kind in ("cut", "freeze", "leave", "return", "limits", "compete", "trace")


def test_a_scenario_is_read_from_a_file_with_its_traces(tmp_path: Path) -> None:
    (tmp_path / "up.csv").write_text("time_s,uplink_mbit_s\n0,5\n1,6\n")
    (tmp_path / "lte.down").write_text("10\n1000\n")
    (tmp_path / "story.yaml").write_text(
        "events:\n"
        "  - {at_s: 2, device: a, do: cut, for_s: 3}\n"
        "  - {at_s: 0, share: 1, trace: {file: up.csv}}\n"
        "  - {at_s: 0, share: 1, trace: {downlink: lte.down}}\n"
    )
    read = load_scenario("story.yaml", tmp_path / "experiment.yaml")
    assert [event.kind for event in read.events] == ["cut", "trace", "trace"]
    assert [len(read.traces[number]) for number in (1, 2)] == [1, 1]
    assert read.events[1].trace is not None
    assert read.events[1].trace.file == str(tmp_path / "up.csv"), "a resumed run has another folder"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("events:\n  - {at_s: 1, device: a, do: cutt}\n", "story.yaml:2: events[0].do is 'cutt'"),
        ("event: []\n", "story.yaml:1: event: there is no key 'event' here; did you mean 'events'?"),
        ("events:\n  - {at_s: 0, share: 1, trace: {file: no.csv}}\n", "trace.file: there is no file 'no.csv'"),
    ],
)
def test_a_broken_scenario_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "story.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_scenario("story.yaml", tmp_path / "experiment.yaml")
    assert message in str(caught.value)


def test_a_missing_scenario_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "storm.yaml").write_text("")
    with pytest.raises(UsageError, match=r"there is no file 'stork\.yaml'; did you mean 'storm\.yaml'\?"):
        load_scenario("stork.yaml", tmp_path / "experiment.yaml")


FLEET = FleetSpec(
    "f",
    "local",
    0.5,
    tuple(DeviceSpec(name, ProfileSpec(kind, Limits(1.0, 10**7, 10**7, 512))) for name, kind in PROFILES.items()),
    Path("f.yaml"),
)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"at_s": 1, "device": "e", "do": "cut"}, "e.yaml: scenario[0].device: the fleet has no device 'e'"),
        ({"at_s": 1, "profile": "sloe", "do": "cut"}, "has the profile 'sloe'; did you mean 'slow'?"),
        ({"round": 21, "device": "a", "do": "cut"}, "scenario[0].round: round is 21; there are 20 rounds"),
        ({"at_s": 1, "device": "a", "limits": "cpu11"}, "scenario[0].limits: there is no device profile 'cpu11'"),
        ({"at_s": 1, "device": "a", "trace": {"file": "nothing.csv"}}, "there is no file 'nothing.csv'"),
    ],
)
def test_what_cannot_come_to_pass_on_a_fleet_is_refused(event: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_fleet(experiment(event), FLEET, Path("e.yaml"))
    assert message in str(caught.value)


# ---- who and when ----


def test_a_name_several_names_and_a_profile_choose_devices() -> None:
    wanted = scenario(
        {"at_s": 1, "device": "b", "do": "cut"},
        {"at_s": 2, "device": ["d", "a"], "do": "cut"},
        {"round": 3, "after_s": 0.5, "profile": "fast", "do": "cut"},
    )
    assert planned_events(wanted, 0, PROFILES) == (
        Planned("b", 0, 1),
        Planned("d", 1, 2),
        Planned("a", 1, 2),
        Planned("c", 2, 0.5, 3),
        Planned("d", 2, 0.5, 3),
    )


@given(st.integers(0, 2**32), st.floats(0.01, 1))
def test_a_share_is_drawn_from_the_seed(seed: int, share: float) -> None:
    wanted = scenario({"at_s": 1, "share": share, "do": "leave"}, {"at_s": 1, "share": share, "trace": {"file": "t"}})
    drawn = planned_events(wanted, seed, PROFILES)
    again = planned_events(wanted, seed, dict(reversed(PROFILES.items())))
    assert drawn == again, "the order of the devices says nothing"
    left = [one for one in drawn if one.event == 0]
    assert len({one.device for one in left}) == len(left) == max(1, int(share * 4 + 0.5))
    offsets = [one.offset for one in drawn if one.event == 1]
    assert all(offset is not None and 0 <= offset < 1 for offset in offsets)


def test_seeds_differ() -> None:
    wanted = scenario({"at_s": 1, "share": 0.5, "do": "leave"})
    assert len({planned_events(wanted, seed, PROFILES) for seed in range(20)}) > 1


# ---- what ----


def test_an_event_begins_and_is_undone() -> None:
    coming = agenda(scenario({"at_s": 2, "device": "a", "do": "cut", "for_s": 3}))
    assert coming.next_s == 2
    (begun,) = coming.due(2)
    assert begun.condition == Condition(link=False)
    assert coming.due(4.9) == []
    (ended,) = coming.due(6)
    assert (ended.at_s, ended.begins, ended.condition) == (5, False, Condition())
    assert coming.next_s is None


def test_overlapping_cuts_end_with_the_last_one() -> None:
    coming = agenda(
        scenario(
            {"at_s": 0, "device": "a", "do": "cut", "for_s": 5}, {"at_s": 3, "device": "a", "do": "cut", "for_s": 5}
        )
    )
    assert [(step.at_s, step.condition.link) for step in coming.due(10)] == [
        (0, False),
        (3, False),
        (5, False),
        (8, True),
    ]


def test_later_limits_win_and_earlier_ones_come_back() -> None:
    coming = agenda(
        scenario(
            {"at_s": 0, "device": "a", "limits": "fast"},
            {"at_s": 1, "device": "a", "limits": {"cpus": 0.5, "uplink_mbit_s": 2}},
            {"at_s": 2, "device": "a", "limits": {"cpus": 0.25}, "for_s": 1},
        )
    )
    assert [step.condition for step in coming.due(9)] == [
        Condition("fast"),
        Condition("fast", LimitChange(cpus=0.5, uplink_mbit_s=2)),
        Condition("fast", LimitChange(cpus=0.25, uplink_mbit_s=2)),
        Condition("fast", LimitChange(cpus=0.5, uplink_mbit_s=2)),
    ]


def test_return_ends_what_keeps_a_device_away_and_nothing_else() -> None:
    coming = agenda(
        scenario(
            {"at_s": 0, "device": "a", "limits": {"cpus": 0.5}},
            {"at_s": 0, "device": "a", "do": "cut", "for_s": 9},
            {"at_s": 1, "device": "a", "do": "freeze"},
            {"at_s": 2, "device": "a", "do": "leave"},
            {"at_s": 3, "device": "a", "compete_cpus": 0.5},
            {"at_s": 4, "device": "a", "do": "return"},
        )
    )
    steps = coming.due(20)
    gone = Condition("", LimitChange(cpus=0.5), False, False, False, 0.5)
    assert [step.condition for step in steps[-2:]] == [gone, Condition("", LimitChange(cpus=0.5), rival_cpus=0.5)]
    assert len(steps) == 6, "the end of the cut has nothing to undo"


def test_events_of_a_round_come_before_it_is_planned_or_so_long_after_its_start() -> None:
    coming = agenda(
        scenario(
            {"round": 2, "device": "a", "limits": {"cpus": 0.5}, "for_s": 10},
            {"round": 2, "after_s": 1.5, "device": "b", "do": "leave"},
        )
    )
    assert coming.before_round(1, 0.0) == []
    coming.round_began(1, 0.0)
    assert coming.next_s is None
    assert told(coming.before_round(2, 30.0)) == [(30, "a", "limits", True)]
    coming.round_began(2, 31.0)
    assert told(coming.due(100.0)) == [(32.5, "b", "leave", True), (40, "a", "limits", False)]


# ---- traces ----

RAMP = trace_of([0, 1, 2], [Sample(uplink_mbit_s=rate) for rate in (1, 2, 3)], 3)


def played(**choice: Any) -> Agenda:
    event = {"at_s": 10, "device": "a", "trace": {"file": "ramp.csv", "offset_s": 0, **choice}}
    return agenda(scenario(event, traces={0: (RAMP,)}))


def rates(steps: list[DueStep]) -> list[tuple[float, float | None]]:
    return [(step.at_s, step.condition.limits and step.condition.limits.uplink_mbit_s) for step in steps]


def test_a_trace_is_looped() -> None:
    assert rates(played().due(14)) == [(10, 1), (11, 2), (12, 3), (13, 1), (14, 2)]


def test_a_trace_that_stops_gives_the_own_limits_back() -> None:
    coming = played(at_end="stop", offset_s=1.5)
    assert rates(coming.due(100)) == [(10, 2), (10.5, 3), (11.5, None)]
    assert coming.next_s is None


def test_a_trace_of_presence_lets_the_device_leave() -> None:
    trace = trace_of([0, 1], [Sample(present=True), Sample(present=False)], 2)
    event = {"at_s": 0, "device": "a", "trace": {"file": "t", "offset_s": 0}}
    coming = agenda(scenario(event, traces={0: (trace,)}))
    assert [step.condition.present for step in coming.due(3)] == [True, False, True, False]


def test_two_directions_of_different_length_loop_on_their_own() -> None:
    down = trace_of([0, 1], [Sample(downlink_mbit_s=rate) for rate in (7, 8)], 2)
    event = {"at_s": 0, "device": "a", "trace": {"uplink": "u", "downlink": "d", "offset_s": 0}}
    coming = agenda(scenario(event, traces={0: (RAMP, down)}))
    last = {step.at_s: step.condition.limits for step in coming.due(5)}
    assert [last[at] for at in (3, 4, 5)] == [
        LimitChange(uplink_mbit_s=up, downlink_mbit_s=down) for up, down in ((1, 8), (2, 7), (3, 8))
    ]


def test_the_end_of_the_event_ends_the_trace() -> None:
    event = {"at_s": 0, "device": "a", "trace": {"file": "t", "offset_s": 0}, "for_s": 1.5}
    coming = agenda(scenario(event, traces={0: (RAMP,)}))
    assert rates(coming.due(9)) == [(0, 1), (1, 2), (1.5, None)]


# ---- a resumed run ----


def test_a_resumed_run_begins_in_the_condition_of_its_moment() -> None:
    wanted = scenario(
        {"at_s": 1, "device": "a", "do": "cut", "for_s": 2},
        {"at_s": 1, "device": "b", "limits": {"cpus": 0.5}},
        {"round": 2, "device": "c", "limits": {"cpus": 0.5}},
        {"round": 2, "device": "d", "do": "leave", "for_s": 1},
        {"at_s": 40, "device": "a", "do": "leave"},
    )
    coming = agenda(wanted, now_s=30.0, rounds=2)
    assert {step.device: step.condition.limits for step in coming.caught_up} == {
        "b": LimitChange(cpus=0.5),
        "c": LimitChange(cpus=0.5),
    }
    assert told(coming.due(50)) == [(40, "a", "leave", True)]


# ---- limits ----

OTHER = ProfileSpec("other", Limits(2.0, 5 * 10**6, 10**6, 256, 5.0))


def test_a_condition_changes_the_profile() -> None:
    own = FLEET.devices[0].profile
    assert profile_under(Condition(), own, lambda name: OTHER) == own
    assert profile_under(Condition("other"), own, lambda name: OTHER) == OTHER
    change = LimitChange(cpus=0.5, uplink_mbit_s=2.5, latency_ms=7, memory_mib=128)
    limits = Limits(0.5, 2_500_000, 10**7, 128, 7)
    assert profile_under(Condition("", change), own, lambda name: OTHER) == ProfileSpec("slow", limits)


def test_the_dilation_sees_the_largest_and_the_smallest_fleet() -> None:
    wanted = scenario(
        {"at_s": 1, "device": "a", "limits": "other"},
        {"at_s": 1, "device": "b", "limits": {"cpus": 0.1}},
        {"at_s": 1, "device": "c", "trace": {"file": "t"}},
        traces={2: (RAMP,)},
    )
    most, least = extremes(FLEET, wanted, 1, lambda name: OTHER)
    assert [device.profile.limits.cpus for device in most.devices] == [2.0, 1.0, 1.0, 1.0]
    assert [device.profile.limits.cpus for device in least.devices] == [1.0, 0.1, 1.0, 1.0]
    assert [device.profile.limits.uplink_bit_s for device in least.devices] == [5 * 10**6, 10**7, 10**6, 10**7]
