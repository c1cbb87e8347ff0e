"""Concurrent rounds: each lane has rounds of its own, and all lanes merge into the same global weights.

Weights, method and progress change only under one lock, so a merge always uses the newest weights. Tests run
concurrently on a snapshot of the weights; when rounds end faster than a test, only the newest weights are tested.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from edgebed.methods.base import DeviceView
from edgebed.models.staged import Weights
from orchestrator.clock import now_ns, now_s
from orchestrator.experiment import MOST_ROUNDS
from orchestrator.rounds.event_loop import uninterrupted
from orchestrator.rounds.job import RoundResult
from orchestrator.rounds.machine import Leave
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.steps import Begun, RoundSteps
from orchestrator.rounds.void import VOID_ROUNDS, VoidByDevice, told

ABSENT_S = 1.0
"""Seconds between two checks of a lane whether one of its devices has returned."""

TESTING = "*"
"""Stands for the test in hand, where the names of lanes do."""

NOBODY_S = 120.0
"""The run ends when for so many seconds no device was present but those that are left out."""


Moment = Annotated[float, msgspec.Meta(ge=0, lt=9e9)]  # seconds of a clock; later ones have no nanoseconds in 64 bits
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_ROUNDS)]


class InHand(msgspec.Struct, frozen=True):
    """A round that has begun, and what the world was then (`World.settle`)."""

    begun: Begun
    world: dict[str, Any]


class Testing(msgspec.Struct, frozen=True):
    """A test in hand, of the weights after a round, since a time of the clock in seconds."""

    number: Number
    start_s: Moment


class LanesState(msgspec.Struct, frozen=True):
    """Concurrent rounds of a simulation after the merge of round `number`, of the lane `merged`, for one that goes on:
    rounds in hand are done again from where they began."""

    lanes: list[str]
    merged: str
    number: int
    in_hand: dict[str, InHand]
    prepared: list[tuple[Moment, Number]]  # rounds, and when, since the oldest of them began
    resting: dict[str, Moment]  # lanes without a device: when they look again
    start_ns: int
    before_s: float
    void: dict[str, int]
    left_out: dict[str, Leave | None]
    seen: list[str]
    somebody_s: float
    untested: int | None  # the round whose weights wait for a test
    testing: Testing | None
    news: bool  # a test is wanted


def lanes_state(saved: Mapping[str, Any], in_hand: Weights) -> LanesState:
    """What a checkpoint holds of concurrent rounds. `in_hand`: weights of rounds and tests in hand. Raises ValueError
    where it is none of theirs, or does not fit together."""
    state = msgspec.convert(saved, LanesState)
    wanted = {*state.in_hand, *([] if state.testing is None else [TESTING])}
    if state.merged in state.in_hand or {key.rpartition("/")[0] for key in in_hand} != wanted:
        raise ValueError("the rounds in hand are not those whose weights it holds")
    return state


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
        self._news, self._taken_up = asyncio.Event(), asyncio.Event()
        self._ended = False
        self.missing: Mapping[str, Leave] = {}
        self._void, self._seen, self._somebody_s = VoidByDevice(steps.training), set[str](), now_s()
        self._lanes: list[str] = []
        self._in_hand: dict[str, InHand] = {}
        self._resting: dict[str, float] = {}
        self._prepared: list[tuple[float, int]] = []
        self._testing: Testing | None = None
        self._began_with: dict[str, Weights] = {}  # by lane in hand; TESTING: of the test in hand

    async def run(self, lanes: list[str], state: LanesState | None = None) -> Weights:
        """Run until the last round, the last second or the target; returns the last weights. Cancelling it cancels the
        rounds of all lanes."""
        self._lanes = lanes
        # Of what is due at the same time comes first the merge that was saved, then the rounds in hand as they began,
        # then the other lanes as they ended their last rounds.
        names = dict.fromkeys([*([] if state is None else [state.merged]), *self._in_hand, *lanes])
        rounds = [asyncio.create_task(self._lane(name, state), name=f"lane {name}") for name in names]
        tests = asyncio.create_task(self._tests(), name="tests")
        again = asyncio.create_task(self._prepare_again(list(self._prepared)), name="profiles")
        try:
            await self._until_over(rounds, tests)
        finally:
            for task in (*rounds, tests, again):
                task.cancel()
            await asyncio.gather(*rounds, tests, again, return_exceptions=True)
        self._say(self._unsaid)
        await self._steps.keep(self._progress.round - 1, self._weights, self._progress, lambda: {"void": 0})
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

    async def _lane(self, name: str, state: LanesState | None) -> None:
        """One lane's rounds, one after the other."""
        if state is not None:
            await self._take_up(name, state)
        while name in self._in_hand or await self._begin(name):
            begun, weights = self._in_hand[name].begun, self._began_with[name]
            quorum = min(self._steps.training.quorum, len(begun.views))
            result = await self._steps.carry_out(begun, weights, self._ends_s, quorum)
            async with self._lock:
                await uninterrupted(self._conclude(name, begun, result))

    async def _begin(self, name: str) -> bool:
        """Begin the lane's next round as soon as one of its devices can work; False when all rounds have begun."""
        steps, progress = self._steps, self._progress
        while True:
            if name in self._resting:
                await steps.world.until(self._resting[name])
                del self._resting[name]
            async with self._lock:
                if now_s() >= self._ends_s:  # perhaps without a round that lasted until then
                    progress.elapsed_s = max(progress.elapsed_s, steps.budget_s)
                if progress.round >= steps.training.rounds or steps.spent(progress):
                    return False
                self._prepared = [*self._since_oldest(), (steps.world.now_s(), progress.round)]
                idle = [device for device in await steps.prepare(progress) if device.name not in self._busy()]
                lanes = steps.method.lanes(idle)
                able = {lane: [d for d in views if d.name not in self._void.left_out] for lane, views in lanes.items()}
                if able.get(name):
                    begun = steps.begin(name, able[name], progress)
                    self._start_ns = self._start_ns or begun.start_ns
                    devices = begun.plan.assignments
                    await steps.world.settle(devices)
                    self._in_hand[name] = InHand(begun, steps.world.state(devices))
                    self._began_with[name] = self._weights
                    return True
                self._check_somebody(lanes, bool(self._in_hand) or any(able.values()))
                self._resting[name] = now_s() + ABSENT_S

    @property
    def _ends_s(self) -> float:
        """When the budget is spent, on the clock of `now_s`."""
        return (self._start_ns or now_ns()) / 1e9 + self._steps.budget_s - self._before_s

    def _busy(self) -> set[str]:
        """Devices of rounds in hand."""
        return {device for each in self._in_hand.values() for device in each.begun.plan.assignments}

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

    async def _conclude(self, name: str, begun: Begun, result: RoundResult) -> None:
        steps, progress = self._steps, self._progress
        del self._in_hand[name], self._began_with[name]
        self._lanes = [*(lane for lane in self._lanes if lane != name), name]
        before, self._weights = self._weights, await steps.merge(begun.number, self._weights, result)
        seconds = steps.finish(begun, result)
        progress.elapsed_s = self._before_s + (begun.start_ns - self._start_ns) / 1e9 + seconds
        self._unsaid.append((msgspec.structs.replace(progress), result, seconds))
        if result.contributions and (self._weights is not before or not steps.tested(progress)):
            self._untested, progress.untested = (begun.number, self._weights), True
        self._count_void(begun, result)
        await self._keep(name, begun.number)

    async def _keep(self, name: str, number: int) -> None:
        """Save a checkpoint after a merge of this lane, and have the weights tested if it is time."""
        await self._steps.keep(number, self._weights, self._progress, lambda: self._state(name, number), self._kept)
        if self._untested is not None and self._steps.tests_after(number):
            self._news.set()

    async def _tests(self) -> None:
        """Test the newest weights, until the target is reached or the lanes have ended and all is tested."""
        if self._testing is not None:  # of a simulation that goes on
            await self._steps.world.until(self._testing.start_s)
            await self._test(self._testing.number, self._began_with[TESTING])
        while not self._ended or self._untested is not None:
            await self._news.wait()
            self._news.clear()
            if self._untested is not None:
                (number, weights), self._untested = self._untested, None
                covered, self._unsaid = self._unsaid, []
                await self._test(number, weights)
                self._say(covered)
                if self._steps.reached(self._progress):
                    return

    async def _test(self, number: int, weights: Weights) -> None:
        self._testing, self._began_with[TESTING] = Testing(number, self._steps.world.now_s()), weights
        await self._steps.test(number, weights, self._progress)
        self._testing = None
        del self._began_with[TESTING]

    def _say(self, rounds: list[tuple[Progress, RoundResult, float]]) -> None:
        """Tell of rounds that have ended, with the accuracy of the weights that were tested last: those of the last of
        these rounds."""
        for progress, result, seconds in rounds:
            self._steps.watch(msgspec.structs.replace(progress, accuracy=self._progress.accuracy), result, seconds)

    # ---- a simulation that goes on ----

    def _kept(self) -> Weights:
        """The weights of rounds and tests in hand, for the checkpoint."""
        return {
            f"{key}/{name}": value.clone()  # several may share them
            for key, weights in self._began_with.items()
            for name, value in weights.items()
        }

    def _state(self, merged: str, number: int) -> dict[str, Any]:
        state = LanesState(
            lanes=self._lanes,
            merged=merged,
            number=number,
            in_hand=self._in_hand,
            prepared=self._since_oldest(),
            resting=dict(self._resting),
            start_ns=self._start_ns,
            before_s=self._before_s,
            void=dict(self._void.counts),
            left_out=dict(self._void.left_out),
            seen=sorted(self._seen),
            somebody_s=self._somebody_s,
            untested=None if self._untested is None else self._untested[0],
            testing=self._testing,
            news=self._news.is_set(),
        )
        return {"lanes": msgspec.to_builtins(state)}

    def _since_oldest(self) -> list[tuple[float, int]]:
        """Rounds that were prepared since the oldest one in hand began, and when; several may begin at one time."""
        in_hand = ((each.world.get("now_s", 0.0), each.begun.number) for each in self._in_hand.values())
        oldest = min(in_hand, default=(math.inf, 0))
        return [each for each in self._prepared if each >= oldest]

    async def _prepare_again(self, prepared: list[tuple[float, int]]) -> None:
        """Profiles change again as they did since the oldest round in hand began."""
        for at_s, number in prepared:
            await self._steps.world.until(at_s)
            await self._steps.reprofile(number)

    async def go_on(self, saved: Mapping[str, Any], in_hand: Weights) -> Weights:
        """As `run`, from what a checkpoint holds of these rounds."""
        state = lanes_state(saved, in_hand)
        self._start_ns, self._before_s, self._somebody_s = state.start_ns, state.before_s, state.somebody_s
        self._void.counts, self._void.left_out = dict(state.void), dict(state.left_out)
        self._seen, self._resting = set(state.seen), dict(state.resting)
        self._prepared = list(state.prepared)
        self._in_hand, self._testing = dict(state.in_hand), state.testing
        for key, value in in_hand.items():
            lane, name = key.rsplit("/", 1)
            self._began_with.setdefault(lane, {})[name] = value
        if state.untested is not None:
            self._untested = state.untested, self._weights
        if state.news:
            self._news.set()
        return await self.run(state.lanes, state)

    async def _take_up(self, name: str, state: LanesState) -> None:
        """Wait until the clock is where this lane was: at the start of its round, or at the merge that was saved."""
        world = self._steps.world
        if name in self._in_hand:
            await world.reach(self._in_hand[name].world)
            await world.settle(self._in_hand[name].begun.plan.assignments)
            return
        if name != state.merged:
            await self._taken_up.wait()
            return
        async with self._lock:
            await world.reach()
            await uninterrupted(self._keep(name, state.number))
            self._taken_up.set()
            await asyncio.sleep(0)  # the others begin their next rounds before this lane does
