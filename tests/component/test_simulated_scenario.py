"""A scenario in the simulator: rates change in mid-transfer, CPUs in mid-task; devices are cut off, freeze, leave and
return."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.analysis.tables import faults_table
from orchestrator.fleet.spec.profile import Limits, ProfileSpec
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState
from orchestrator.records.run_index import sort
from orchestrator.records.shown.loglines import scenario_line
from orchestrator.records.timeline.limits_in_force import LimitsInForce
from orchestrator.records.timeline.timeline import timelines
from orchestrator.records.types import (
    DeviceJoined,
    DeviceLeft,
    DeviceOut,
    LimitsSet,
    RoundFinished,
    ScenarioStep,
    UpdateReceived,
)
from orchestrator.scenario.agenda import Scenario
from orchestrator.scenario.spec import ScenarioEvent
from orchestrator.scenario.traces import Sample, trace_of
from orchestrator.simulation.link import LinkCost, Pipe
from orchestrator.simulation.pace import Cpu
from orchestrator.simulation.virtual import START_S, VirtualLoop
from tests.component._fleet import training
from tests.component._simulated import Played, play
from tests.virtual import run_virtual

TWO = {"a": 32, "b": 32}
ONE_CPU = ProfileSpec("one", Limits(cpus=1.0, uplink_bit_s=10**7, downlink_bit_s=10**7, memory_mib=256))
DTFL = {"name": "dtfl", "tier": 2}
BATCHES = {"batch_size": 8, "epochs": 4, "liveness_s": 5.0}
"""16 batches of 0.4 CPU seconds."""


def scenario(*events: dict[str, Any], traces: Any = None) -> Scenario:
    return Scenario(tuple(msgspec.convert(list(events), list[ScenarioEvent])), traces or {})


def played(folder: Path, wanted: Scenario | None, rounds: int = 2) -> Played:
    profiles = {"a": ONE_CPU, "b": ONE_CPU}
    return play(folder, TWO, DTFL, training(rounds=rounds, **BATCHES), profiles=profiles, scenario=wanted)


def told(run: Played) -> list[tuple[str, str, bool]]:
    return [(step.device, step.kind, step.begins) for step in run.of(ScenarioStep)]


def compute_s(run: Played, device: str) -> list[float]:
    return [record.report.compute_s for record in run.of(UpdateReceived) if record.device == device]


# ---- the parts ----


def test_a_rate_that_changes_in_mid_transfer_counts_from_then_on() -> None:
    async def main(loop: VirtualLoop) -> float:
        byte_s = [1e-6]
        pipe = Pipe(lambda: LinkCost(0.0, byte_s[0]), loop.virtual_ns, lambda: None, 1000.0)
        carrying = asyncio.ensure_future(pipe.carry(500_000))
        await asyncio.sleep(0.25)
        byte_s[0] = 4e-6
        pipe.changed()
        await carrying
        return loop.time() - START_S

    assert run_virtual(main) == pytest.approx(0.25 + 1.0)


def test_nothing_moves_over_a_link_that_is_cut() -> None:
    async def main(loop: VirtualLoop) -> float:
        pipe = Pipe(lambda: LinkCost(0.0, 1e-6), loop.virtual_ns, lambda: None, 1000.0)
        carrying = asyncio.ensure_future(pipe.carry(500_000))
        for at_s, up in ((0.25, False), (10.0, True)):
            await asyncio.sleep(START_S + at_s - loop.time())
            pipe.open = up
            pipe.changed()
        await carrying
        return loop.time() - START_S

    assert run_virtual(main) == pytest.approx(10.25)


def test_cpus_that_change_in_mid_task_count_from_then_on() -> None:
    async def main(loop: VirtualLoop) -> float:
        cpus = [1.0]
        cpu = Cpu(lambda: cpus[0])
        working = asyncio.ensure_future(cpu.use(1.0))
        for at_s, now in ((0.5, 0.25), (1.5, 0.0), (5.0, 0.5)):
            await asyncio.sleep(START_S + at_s - loop.time())
            cpus[0] = now
            cpu.changed()
        await working
        return loop.time() - START_S

    assert run_virtual(main) == pytest.approx(5.0 + 0.25 / 0.5)


# ---- whole runs ----


def test_a_scenario_is_the_same_every_time(tmp_path: Path) -> None:
    wanted = scenario(
        {"at_s": 1, "share": 0.5, "limits": {"cpus": 0.5}, "for_s": 3},
        {"at_s": 2, "share": 0.5, "do": "freeze", "for_s": 1},
    )
    once, again = played(tmp_path, wanted), played(tmp_path, wanted)
    assert once.of(ScenarioStep) == again.of(ScenarioStep)
    assert once.of(RoundFinished) == again.of(RoundFinished)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_step_before_a_round_happens_once_with_concurrent_rounds(tmp_path: Path, number: int) -> None:
    """FedAT: the round after the profiling is prepared by the loop and again by the first tier."""
    events = (
        {"round": number, "share": 1, "limits": {"cpus": 0.5}},
        {"round": number, "device": "a", "do": "freeze", "for_s": 1},
    )
    profiles = {"a": ONE_CPU, "b": ONE_CPU}
    spec = {"name": "fedat", "tiers": 2}
    run = play(tmp_path, TWO, spec, training(rounds=5, **BATCHES), profiles=profiles, scenario=scenario(*events))
    assert sorted(told(run)) == [
        ("a", "freeze", False),
        ("a", "freeze", True),
        ("a", "limits", True),
        ("b", "limits", True),
    ]


def test_a_step_before_a_round_happens_once_where_a_tier_waits_for_its_device(tmp_path: Path) -> None:
    events = ({"round": 2, "device": "a", "do": "leave"}, {"at_s": 40, "device": "a", "do": "return"})
    profiles = {"a": ONE_CPU, "b": ONE_CPU}
    spec = {"name": "fedat", "tiers": 2}
    run = play(tmp_path, TWO, spec, training(rounds=8, **BATCHES), profiles=profiles, scenario=scenario(*events))
    assert told(run) == [("a", "leave", True), ("a", "return", True)]


def test_limits_last_as_long_as_the_event_says(tmp_path: Path) -> None:
    run = played(tmp_path, scenario({"at_s": 0, "device": "a", "limits": {"cpus": 0.5}, "for_s": 6}), rounds=1)
    assert told(run) == [("a", "limits", True), ("a", "limits", False)]
    assert [r.cpus for r in run.of(LimitsSet) if r.device == "a"] == [1.0, 0.5, 1.0]
    (slowed,), (plain,) = compute_s(run, "a"), compute_s(run, "b")
    assert slowed == pytest.approx(plain + 3, abs=0.1), "6 s at half the speed"


def test_a_rival_takes_what_it_wants_up_to_half(tmp_path: Path) -> None:
    ((alone,), (modest,), (greedy,)) = (
        compute_s(played(tmp_path, wanted, rounds=1), "a")
        for wanted in (
            None,
            scenario({"at_s": 0, "device": "a", "compete_cpus": 0.2}),
            scenario({"at_s": 0, "device": "a", "compete_cpus": 1.0}),
        )
    )
    assert modest == pytest.approx(alone / 0.8, rel=0.01)
    assert greedy == pytest.approx(alone / 0.5, rel=0.01)


def test_a_short_freeze_only_delays(tmp_path: Path) -> None:
    plain = played(tmp_path, None, rounds=1)
    run = played(tmp_path, scenario({"at_s": 2, "device": "a", "do": "freeze", "for_s": 3}), rounds=1)
    assert compute_s(run, "a")[0] == pytest.approx(compute_s(plain, "a")[0] + 3, abs=0.01)
    assert run.of(DeviceOut) == []


@pytest.mark.parametrize("what", ["cut", "freeze"])
def test_a_device_that_is_silent_for_long_is_lost_and_comes_back(tmp_path: Path, what: str) -> None:
    run = played(tmp_path, scenario({"at_s": 1, "device": "a", "do": what, "for_s": 9}), rounds=3)
    (out,) = run.of(DeviceOut)
    assert (out.device, out.round, out.how) == ("a", 0, "lost")
    (left,) = run.of(DeviceLeft)
    back = [record for record in run.of(DeviceJoined) if record.again]
    (begun, ended) = run.of(ScenarioStep)
    assert [record.device for record in back] == ["a"]
    assert begun.at_ns < left.at_ns < ended.at_ns <= back[0].at_ns
    assert [finished.merged for finished in run.of(RoundFinished)][0::2] == [("b",), ("a", "b")]


def test_a_device_leaves_and_returns(tmp_path: Path) -> None:
    events = ({"at_s": 1, "device": "a", "do": "leave"}, {"round": 2, "device": "a", "do": "return"})
    run = played(tmp_path, scenario(*events))
    assert [finished.merged for finished in run.of(RoundFinished)] == [("b",), ("a", "b")]
    assert [left.why for left in run.of(DeviceLeft)] == ["the scenario took it away"]


def test_if_all_leave_the_run_waits_for_one(tmp_path: Path) -> None:
    run = played(tmp_path, scenario({"at_s": 1, "share": 1, "do": "leave", "for_s": 100}))
    assert [finished.merged for finished in run.of(RoundFinished)][-1] == ("a", "b")
    joined = [record.at_ns for record in run.of(DeviceJoined) if record.again]
    assert (joined[0] - run.of(DeviceLeft)[0].at_ns) / 1e9 == pytest.approx(100)


def test_a_trace_sets_the_rate_of_every_second(tmp_path: Path) -> None:
    trace = trace_of([0, 1, 2], [Sample(uplink_mbit_s=rate) for rate in (5, 10, 20)], 3)
    event = {"at_s": 0, "device": "a", "trace": {"file": "t", "offset_s": 0}, "for_s": 4.5}
    run = played(tmp_path, scenario(event, traces={0: (trace,)}))
    rates = [step.uplink_bit_s for step in run.of(ScenarioStep)]
    assert rates == [5_000_000, 10_000_000, 20_000_000, 5_000_000, 10_000_000, 10**7]
    assert [step.kind for step in run.of(ScenarioStep)] == ["trace", *["rate"] * 4, "trace"]
    assert all(step.at_ns == step.asked_ns for step in run.of(ScenarioStep))


def test_what_reads_the_records_sees_rates_and_events(tmp_path: Path) -> None:
    trace = trace_of([0, 1, 2], [Sample(uplink_mbit_s=rate) for rate in (5, 10, 20)], 3)
    traced = {"at_s": 1, "device": "a", "trace": {"file": "t", "offset_s": 0}}
    cut = {"at_s": 2, "device": "b", "do": "cut", "for_s": 1}
    run = played(tmp_path, scenario(traced, cut, traces={0: (trace,)}))
    facts = sort(run.records)
    (session,) = facts.sessions
    begin_ns, limits = session.begin_ns, LimitsInForce(session)
    rates = [limits.at("a", begin_ns + round(at_s * 1e9)) for at_s in (0.5, 1.5, 2.5, 3.5)]
    assert [rate and rate.uplink_bit_s for rate in rates] == [10_000_000, 5_000_000, 10_000_000, 20_000_000]
    assert {rate and (rate.profile, rate.cpus) for rate in rates} == {("one", 1.0)}
    state = RunState()
    reduce(state, enumerate(run.records))
    happened = [(event.device, event.kind, event.text) for event in state.events if event.kind == "scenario"]
    assert happened == [
        ("a", "scenario", "trace: 5 Mbit/s up"),
        ("b", "scenario", "link cut, for 1 s"),
        ("b", "scenario", "link cut is over"),
    ]
    assert [event.axis_s for event in state.events][:3] == pytest.approx([1, 2, 3], abs=0.01)
    assert list(faults_table(facts)["kind"]) == ["trace", "cut", "cut over"]
    lines = [line for record in run.records if (line := scenario_line(record))]
    assert lines[0] == "scenario: a: trace: 5 Mbit/s up"
    assert len(lines) == 3


def test_the_timeline_of_a_run_with_a_scenario_adds_up(tmp_path: Path) -> None:
    run = played(tmp_path, scenario({"at_s": 1, "device": "a", "do": "cut", "for_s": 9}), rounds=3)
    for timeline in timelines(sort(run.records)):
        for account in timeline.devices.values():
            assert account.residual == pytest.approx(0, abs=0.02)
