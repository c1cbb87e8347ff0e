"""The rounds of a run: plan, carry out, merge, evaluate, save, until the target, the last round, the last second or
Ctrl-C."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from edgebed.models.staged import Weights
from orchestrator.rounds.concurrent_rounds import ConcurrentRounds, lanes_state
from orchestrator.rounds.event_loop import uninterrupted
from orchestrator.rounds.job import RoundResult
from orchestrator.rounds.machine import Leave
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.steps import Begun, RoundSteps
from orchestrator.rounds.void import VoidRounds, nothing_merged


class Loop(RoundSteps):
    """All rounds of a run: one after another, or concurrent (`ConcurrentRounds`) where the method has several lanes.

    `start`, then `step` until it is `over`, `end`; other runs may have the fleet in between.

    Attributes:
        progress: what the run has reached.
        left_out: devices whose work the last round left out.
    """

    progress: Progress

    def start(self, weights: Weights, progress: Progress, in_hand: Weights | None = None) -> None:
        """Begin, or go on, with these weights. `in_hand`: of the rounds in hand, of a simulation that goes on. Raises
        ValueError where they do not fit to its lanes."""
        progress.lr = progress.lr or self.training.optimizer.lr
        self._weights, self.progress, self._void = weights, progress, VoidRounds(self.training)
        self.left_out: tuple[str, ...] = ()
        self._lanes_ended = False
        self._first = progress.round
        self._missing: Mapping[str, Leave] = {}
        self._saved, self._in_hand = progress.simulation, in_hand or {}
        if "lanes" in self._saved:
            lanes_state(self._saved["lanes"], self._in_hand)
        self._void.in_a_row = self._saved.get("void", 0)
        if self._saved and not progress.untested and self.tested(progress):
            self._tested = weights

    @property
    def over(self) -> bool:
        """Whether the run has no round left."""
        return self._lanes_ended or (self.last(self.progress) and "lanes" not in self._saved)

    async def step(self) -> None:
        """The next round; all rounds where they are concurrent. Raises RunError after several void rounds."""
        if "lanes" in self._saved:
            await self._concurrent(lambda each: each.go_on(self._saved["lanes"], self._in_hand))
            return
        await self.go_on()
        ready = await self.prepare(self.progress)
        lanes = self.method.lanes(ready)
        if len(lanes) > 1:
            await self._concurrent(lambda each: each.run(list(lanes)))
            return
        ((lane, present),) = lanes.items()
        begun = self.begin(lane, present, self.progress)
        self._weights, result = await self._round(begun, self._weights, self.progress)
        self.left_out, self._missing = tuple(sorted(result.missing)), result.missing
        self._void.check(result.missing)

    async def _concurrent(self, run: Callable[[ConcurrentRounds], Awaitable[Weights]]) -> None:
        concurrent = ConcurrentRounds(self, self._weights, self.progress)
        self._weights, self._missing = await run(concurrent), concurrent.missing
        self._lanes_ended, self._saved = True, {}

    async def go_on(self) -> None:
        """A simulation that goes on was saved in `keep`, and does the rest of it."""
        if self._saved:
            self._saved = {}
            await self._keep(self.progress.round - 1, self._weights, self.progress)

    async def end(self) -> str:
        """The final test, if there is one; returns why the run ended. Raises RunError where no round of the run was
        merged."""
        await self.go_on()
        if self.progress.round > self._first and not self.tested(self.progress):
            raise nothing_merged(self.training, self.progress.round, self._missing)
        await self.final_test(self._weights, self.progress)
        if self.reached(self.progress):
            return "target reached"
        return "budget spent" if self.spent(self.progress) else "rounds done"

    async def _round(self, begun: Begun, weights: Weights, progress: Progress) -> tuple[Weights, RoundResult]:
        ends_s = begun.start_ns / 1e9 + self.budget_s - progress.elapsed_s
        result = await self.carry_out(begun, weights, ends_s)
        weights = await self.merge(begun.number, weights, result)
        seconds = self.finish(begun, result)
        progress.elapsed_s += seconds
        await uninterrupted(self._conclude(begun.number, weights, progress, result))
        self.watch(progress, result, seconds)
        return weights, result

    async def _conclude(self, number: int, weights: Weights, progress: Progress, result: RoundResult) -> None:
        """Test and save the result of a finished round. A resumed run continues after it."""
        progress.untested = progress.untested or bool(result.contributions)
        if progress.untested and (self.tests_after(number) or self.last(progress)):
            await self.test(number, weights, progress)
        self._void.count(result.why == "void")
        await self._keep(number, weights, progress)

    async def _keep(self, number: int, weights: Weights, progress: Progress) -> None:
        await self.keep(number, weights, progress, lambda: {"void": self._void.in_a_row})
