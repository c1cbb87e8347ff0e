"""A scenario on a real fleet: every kind of event is in force when it should be, is read back, and is undone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.records.types import DeviceJoined, DeviceLeft, DeviceOut, LimitsSet, RoundFinished, ScenarioStep
from orchestrator.scenario.spec import ScenarioEvent
from tests.e2e.rig import Rig, experiment, fleet_up

pytestmark = [pytest.mark.root, pytest.mark.mosquitto]

TRACE = "time_s,uplink_mbit_s,downlink_mbit_s\n0,5,15\n0.5,10,15\n1,2.5,15\n"


def events(*listed: dict[str, Any]) -> list[ScenarioEvent]:
    return msgspec.convert(list(listed), list[ScenarioEvent])


async def step(run: Rig, device: str, kind: str, begins: bool = True) -> ScenarioStep:
    return await run.expect(ScenarioStep, lambda r: (r.device, r.kind, r.begins) == (device, kind, begins))


def errors(steps: Sequence[ScenarioStep]) -> list[str]:
    return [f"{step.kind} on {step.device}: {step.error}" for step in steps if step.error]


async def test_what_a_scenario_asks_is_in_force_and_is_undone(tmp_path: Path) -> None:
    (tmp_path / "ramp.csv").write_text(TRACE)
    (tmp_path / "experiment.yaml").write_text("")
    wanted = experiment(rounds=1000, max_batches=16)
    told = events(
        {"at_s": 0, "device": "dev-1", "limits": {"cpus": 0.2, "downlink_mbit_s": 8}, "for_s": 2},
        {"at_s": 0.5, "device": "dev-1", "compete_cpus": 0.1, "for_s": 2},
        {"at_s": 0.5, "device": "dev-2", "trace": {"file": "ramp.csv", "offset_s": 0}, "for_s": 2.8},
        {"round": 2, "after_s": 0.1, "device": "dev-3", "do": "cut", "for_s": 6},
        {"at_s": 4, "device": "dev-2", "do": "freeze", "for_s": 1},
        {"at_s": 5, "device": "dev-1", "do": "leave"},
        {"at_s": 7, "device": "dev-1", "do": "return"},
    )
    async with fleet_up(tmp_path, wanted) as fleet:
        async with fleet.run(msgspec.structs.replace(wanted, scenario=told), tmp_path) as run:
            await step(run, "dev-1", "return")
            await step(run, "dev-3", "cut", begins=False)
            back = await run.expect(DeviceJoined, lambda r: r.device == "dev-1" and r.again)
            await run.expect(RoundFinished, lambda r: r.at_ns > back.at_ns and len(r.merged) == 3)
            steps = run.of(ScenarioStep)
            assert errors(steps) == []
            assert all(step.asked_ns <= step.at_ns for step in steps)
            assert_limits(run)
            assert_trace([step for step in steps if step.kind in ("trace", "rate")])
            assert_story(run)
        controller = fleet.controller
        held = [await controller.backend.held(name) for name in controller.names]
        assert [each.uplink_bit_s for each in held] == [20_000_000] * 3, "the next run finds the fleet as it was"
        assert [each.cpus for each in held] == pytest.approx([0.3] * 3)
        assert len(controller.membership.present()) == 3


def assert_limits(run: Rig) -> None:
    set_here = [r for r in run.of(LimitsSet) if r.device == "dev-1" and r.why == "scenario"]
    assert [(r.held_cpus, r.held_downlink_bit_s, r.held_uplink_bit_s) for r in set_here[:2]] == [
        (pytest.approx(0.2), 8_000_000, 20_000_000),
        (pytest.approx(0.3), 20_000_000, 20_000_000),
    ]
    first = next(r for r in run.of(RoundFinished))
    assert set_here[0].at_ns < first.at_ns, "what happens at 0 s holds in the first round"


def assert_trace(steps: Sequence[ScenarioStep]) -> None:
    *rates, end = [step.held_uplink_bit_s for step in steps]
    assert rates == [5_000_000, 10_000_000, 2_500_000] * 2
    assert end == 20_000_000
    late_s = [(step.at_ns - step.asked_ns) / 1e9 for step in steps]
    assert max(late_s) < 0.5, late_s


def assert_story(run: Rig) -> None:
    """The cut outlasts the device's patience, the freeze does not."""
    out = [(r.device, r.how) for r in run.of(DeviceOut)]
    assert ("dev-3", "lost") in out
    assert "the scenario took it away" in [r.why for r in run.of(DeviceLeft) if r.device == "dev-1"]
    told = {(step.kind, step.begins): step.held for step in run.of(ScenarioStep)}
    assert told["cut", True] == "link down"
    assert told["cut", False] == "link up"
    assert "stopped" in told["freeze", True]
    assert "running" in told["freeze", False]
    assert told["leave", True] == "its agent has ended"
    assert told["compete", True].removeprefix("busy processes in its cgroup: ").isdecimal()
