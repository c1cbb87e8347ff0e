"""Which measurements of a calibration are repeated, how often, and what is kept of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.calibration import calibrate as calibration
from orchestrator.calibration.calibrate import SLOW_TRIES, TRIES, Bench
from orchestrator.calibration.verdicts import Item, estimate_s, short_plan
from orchestrator.fleet.host.cores import Disturbance, HostWatch
from orchestrator.fleet.spec.profile import Limits
from orchestrator.records.types import Calibrated

ITEM = Item("upload", True, seconds=1.2)


def row(device: str, ratio: float) -> Calibrated:
    passed = abs(ratio - 1) <= 0.05
    figures: dict[str, Any] = {"requested": 10.0, "measured": 10.0 * ratio, "unit": "Mbit/s", "error": ratio - 1}
    return Calibrated(
        0, device, "uplink", ITEM.condition, **figures, judged=True, passed=passed, cause="" if passed else "x"
    )


class Scripted(Bench):
    """A bench whose devices measure what the test says, try by try (the last goes on)."""

    def __init__(self, ratios: Mapping[str, Sequence[float]]) -> None:
        self._limits, self._ratios, self.tries = dict.fromkeys(ratios), ratios, 0  # type: ignore[assignment]

    async def _devices(self, item: Item, devices: Sequence[str]) -> list[Calibrated]:
        self.tries += 1
        return [row(d, self._ratios[d][min(self.tries, len(self._ratios[d])) - 1]) for d in devices]


class Calm(HostWatch):
    def lost(self) -> Disturbance:
        return Disturbance(1.0, 0.0, 0.0)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    waits: list[int] = []

    async def wait() -> None:
        waits.append(1)

    monkeypatch.setattr(calibration, "quiet_host", wait)
    monkeypatch.setattr(calibration, "HostWatch", Calm)
    return waits


async def test_what_holds_is_measured_once(quiet: list[int]) -> None:
    bench = Scripted({"a": [1.0], "b": [0.97]})
    assert all(row.passed for row in await bench.item(ITEM))
    assert (bench.tries, quiet) == (1, [])


async def test_what_is_slow_passes_once_the_host_is_quiet_and_every_try_is_kept(quiet: list[int]) -> None:
    rows = await (bench := Scripted({"a": [0.5, 0.8, 1.0], "b": [1.0]})).item(ITEM)
    assert (bench.tries, len(quiet)) == (3, 2)
    assert [(r.device, r.error, r.judged) for r in rows if r.device == "a"] == [
        ("a", -0.5, False), ("a", pytest.approx(-0.2), False), ("a", 0.0, True)
    ]  # fmt: skip
    assert [r.condition.partition("1.2 s")[2] for r in rows if r.device == "a"] == [", try 1", ", try 2", ""]
    assert [r.judged for r in rows if r.device == "b"] == [True]


async def test_what_stays_slow_fails(quiet: list[int]) -> None:
    rows = await (bench := Scripted({"a": [0.5]})).item(ITEM)
    assert (bench.tries, len(quiet)) == (SLOW_TRIES, SLOW_TRIES - 1)
    assert [r.passed for r in rows if r.judged] == [False]


@pytest.mark.parametrize(("beside", "tries"), [(1.0, 1), (0.5, SLOW_TRIES)])
async def test_what_is_too_fast_gets_one_more_try_and_takes_none_from_a_slow_neighbour(
    beside: float, tries: int
) -> None:
    rows = await Scripted({"a": [1.2], "b": [beside]}).item(ITEM)
    assert [r.judged for r in rows if r.device == "a"] == [False] * (TRIES - 1) + [True]
    assert [r.passed for r in rows if r.judged and r.device == "a"] == [False]
    assert len([r for r in rows if r.device == "b"]) == tries


async def test_what_was_too_fast_and_is_slow_now_is_not_called_too_fast() -> None:
    rows = await (bench := Scripted({"a": [1.2, 0.5, 1.0]})).item(ITEM)
    assert bench.tries == 3
    assert [r.passed for r in rows if r.judged] == [True]


async def test_while_the_host_is_disturbed_slow_is_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stalled(HostWatch):
        def lost(self) -> Disturbance:
            return Disturbance(1.0, 0.5, 0.0)

    monkeypatch.setattr(calibration, "HostWatch", Stalled)
    rows = await (bench := Scripted({"a": [0.5] * 7 + [1.0]})).item(ITEM)
    assert bench.tries == 8
    assert [r.passed for r in rows if r.judged] == [True]
    assert "the host paused for 0.50 s" in rows[0].cause
    monkeypatch.setattr(calibration, "DISTURBED_S", 0.0)
    rows = await (bench := Scripted({"a": [0.5]})).item(ITEM)
    assert not rows[-1].passed
    assert bench.tries == SLOW_TRIES


@pytest.mark.parametrize(("idle", "looks"), [([90.0], 1), ([10.0, 20.0, 80.0], 3), ([10.0] * 50, 5)])
async def test_a_busy_host_is_waited_for_until_it_is_quiet_or_the_limit(
    monkeypatch: pytest.MonkeyPatch, idle: list[float], looks: int
) -> None:
    monkeypatch.undo()
    now, seen = [100.0], list[float]()

    def look(interval: float) -> Any:
        now[0] += interval
        seen.append(idle[len(seen)])
        return SimpleNamespace(idle=seen[-1])

    monkeypatch.setattr(calibration.psutil, "cpu_times_percent", look)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(monotonic=lambda: now[0]))
    await calibration.quiet_host(limit_s=5.0)
    assert len(seen) == looks


async def test_a_calibration_tells_the_share_that_is_done_and_the_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def nobody(*_: object) -> AsyncIterator[dict[str, Any]]:
        yield {}

    async def no_rows(*_: object) -> list[Calibrated]:
        return []

    monkeypatch.setattr(calibration, "far_ends", nobody)
    monkeypatch.setattr(Bench, "item", no_rows)
    limits, told = {"one": Limits(0.1, 10_000_000, 10_000_000, 512)}, list[tuple[float, float]]()
    done = await calibration.calibrate(
        cast(Any, None),
        limits,
        cast(Any, None),
        short=True,
        on_row=lambda row: None,
        on_item=lambda share, left_s: told.append((share, left_s)),
    )
    total = estimate_s(short_plan(1), list(limits.values()))
    assert done.passed
    assert told[0] == (0.0, pytest.approx(total))
    assert told[-1] == (1.0, 0.0)
    assert all(left_s == pytest.approx((1 - share) * total) for share, left_s in told)
    assert [share for share, _ in told] == sorted({share for share, _ in told})
