"""Concurrent rounds: each lane has rounds of its own, and all lanes merge into the same global weights.

Weights, method and progress change only under one lock, so a merge always uses the newest weights. Tests run
concurrently on a snapshot of the weights; when rounds end faster than a test, only the newest weights are tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from edgebed.methods.base import DeviceView
from edgebed.models.staged import Weights
from orchestrator.clock import now_s
from orchestrator.rounds.driver import RoundResult
from orchestrator.rounds.event_loop import uninterrupted
from orchestrator.rounds.machine import Leave
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.steps import Begun, RoundSteps
from orchestrator.rounds.void import VOID_ROUNDS, VoidByDevice, told

ABSENT_S = 1.0
"""Seconds between two checks of a lane whether one of its devices has returned."""

NOBODY_S = 120.0
"""The run ends when for so many seconds no device was present but those that are left out."""


class ConcurrentRounds:
    """The rounds of a run whose method has several lanes.

    Attributes:
        missing: devices that did not contribute to the round that ended last, and how each left.
    """

    def __init__(self, steps: RoundSteps, weights: Weights, progress: Progress) -> None:
        self._steps, self._weights, self._progress = steps, weights, progress
        self._lock = asyncio.Lock()
        self._start_ns, self._before_s = 0, progress.elapsed_s  # when the first round began
        self._untested: tuple[int, Weights] | None = None
        self._unsaid: list[tuple[Progress, RoundResult, float]] = []  # rounds whose weights are not tested yet
        self._news = asyncio.Event()
        self._ended = False
        self.missing: Mapping[str, Leave] = {}
        self._void, self._seen, self._somebody_s = VoidByDevice(steps.training), set[str](), now_s()

    async def run(self, lanes: list[str]) -> Weights:
        """Run until the last round or the target; returns the last weights. Cancelling it cancels the rounds of all
        lanes."""
        rounds = [asyncio.create_task(self._lane(name), name=f"lane {name}") for name in lanes]
        tests = asyncio.create_task(self._tests(), name="tests")
        try:
            await self._until_over(rounds, tests)
        finally:
            for task in (*rounds, tests):
                task.cancel()
            await asyncio.gather(*rounds, tests, return_exceptions=True)
        self._say(self._unsaid)
        await self._steps.keep(self._progress.round - 1, self._weights, self._progress)
        return self._weights

    async def _until_over(self, rounds: list[asyncio.Task[None]], tests: asyncio.Task[None]) -> None:
        """Wait for all lanes, or for the target. Raises the first error of any of them."""
        waiting = {*rounds, tests}
        while not tests.done() and not all(task.done() for task in rounds):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        self._ended = True
        self._news.set()
        await tests

    async def _lane(self, name: str) -> None:
        """One lane's rounds, one after the other."""
        while (begun := await self._begin(name)) is not None:
            result = await self._steps.carry_out(
                begun, self._weights, min(self._steps.training.quorum, len(begun.views))
            )
            async with self._lock:
                await uninterrupted(self._conclude(begun, result))
            self._count_void(begun, result)

    async def _begin(self, name: str) -> Begun | None:
        """Begin the lane's next round as soon as one of its devices can work; None when all rounds have begun."""
        steps, progress = self._steps, self._progress
        while True:
            async with self._lock:
                if progress.round >= steps.training.rounds:
                    return None
                lanes = steps.method.lanes(await steps.prepare(progress))
                able = {lane: self._able(devices) for lane, devices in lanes.items()}
                if able.get(name):
                    begun = steps.begin(name, able[name], progress)
                    self._start_ns = self._start_ns or begun.start_ns
                    return begun
                self._check_somebody(lanes, any(able.values()))
            await asyncio.sleep(ABSENT_S)

    def _able(self, devices: Sequence[DeviceView]) -> list[DeviceView]:
        return [device for device in devices if device.name not in self._void.left_out]

    def _check_somebody(self, lanes: Mapping[str, Sequence[DeviceView]], somebody: bool) -> None:
        """Raises RunError when all devices are left out, or no other has been present for NOBODY_S."""
        self._seen |= {device.name for devices in lanes.values() for device in devices}
        if somebody:
            self._somebody_s = now_s()
        elif self._seen <= set(self._void.left_out) or now_s() - self._somebody_s > NOBODY_S:
            raise self._void.nobody()

    def _count_void(self, begun: Begun, result: RoundResult) -> None:
        """Leave out devices that had too many void rounds in a row."""
        self.missing = result.missing
        merged = [part.device for part in result.contributions]
        for device in self._void.count(begun.plan.assignments, result.why == "void", merged, result.missing):
            why = told(self._void.left_out[device])
            self._steps.fault(device, f"left out from now on: its last {VOID_ROUNDS} rounds were void ({why})")

    async def _conclude(self, begun: Begun, result: RoundResult) -> None:
        steps, progress = self._steps, self._progress
        self._weights = await steps.merge(begun.number, self._weights, result)
        seconds = steps.finish(begun, result)
        progress.elapsed_s = self._before_s + (begun.start_ns - self._start_ns) / 1e9 + seconds
        await steps.keep(begun.number, self._weights, progress)
        self._unsaid.append((msgspec.structs.replace(progress), result, seconds))
        if result.contributions:
            self._untested = begun.number, self._weights
            self._news.set()

    async def _tests(self) -> None:
        """Test the newest weights, until the target is reached or the lanes have ended and all is tested."""
        while not self._ended or self._untested is not None:
            await self._news.wait()
            self._news.clear()
            if self._untested is not None:
                (number, weights), self._untested = self._untested, None
                covered, self._unsaid = self._unsaid, []
                await self._steps.test(number, weights, self._progress)
                self._say(covered)
                if self._steps.reached(self._progress):
                    return

    def _say(self, rounds: list[tuple[Progress, RoundResult, float]]) -> None:
        """Tell of rounds that have ended, with the accuracy of the weights that were tested last: those of the last of
        these rounds."""
        for progress, result, seconds in rounds:
            self._steps.watch(msgspec.structs.replace(progress, accuracy=self._progress.accuracy), result, seconds)
