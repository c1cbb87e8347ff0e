"""The rounds of a run: plan, carry out, merge, evaluate, save, until the target, the last round or Ctrl-C."""

from __future__ import annotations

from collections.abc import Mapping

from edgebed.models.staged import Weights
from orchestrator.rounds.concurrent_rounds import ConcurrentRounds
from orchestrator.rounds.driver import RoundResult
from orchestrator.rounds.event_loop import uninterrupted
from orchestrator.rounds.machine import Leave
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.steps import Begun, RoundSteps
from orchestrator.rounds.void import VoidRounds, nothing_merged


class Loop(RoundSteps):
    """All rounds of a run: one after another, or concurrent (`ConcurrentRounds`) where the method has several lanes.

    `run` does all of them. Where other runs have the fleet in between: `start`, then `step` until it is `over`, `end`.

    Attributes:
        progress: what the run has reached.
        left_out: devices whose work the last round left out.
    """

    progress: Progress

    async def run(self, weights: Weights, progress: Progress) -> str:
        """Run from round `progress.round` on; returns why the run ended. Raises RunError after several void rounds, and
        where no round of the run was merged."""
        self.start(weights, progress)
        while not self.over:
            await self.step()
        return await self.end()

    def start(self, weights: Weights, progress: Progress) -> None:
        """Begin, or go on, with these weights."""
        progress.lr = progress.lr or self.training.optimizer.lr
        self._weights, self.progress, self._void = weights, progress, VoidRounds(self.training)
        self.left_out: tuple[str, ...] = ()
        self._lanes_ended = False
        self._first = progress.round
        self._missing: Mapping[str, Leave] = {}

    @property
    def over(self) -> bool:
        """Whether the run has no round left."""
        return self._lanes_ended or self.progress.round >= self.training.rounds or self.reached(self.progress)

    async def step(self) -> None:
        """The next round; all rounds where they are concurrent. Raises RunError after several void rounds."""
        ready = await self.prepare(self.progress)
        lanes = self.method.lanes(ready)
        if len(lanes) > 1:
            concurrent = ConcurrentRounds(self, self._weights, self.progress)
            self._weights, self._missing = await concurrent.run(list(lanes)), concurrent.missing
            self._lanes_ended = True
            return
        ((lane, present),) = lanes.items()
        begun = self.begin(lane, present, self.progress)
        self._weights, result = await self._round(begun, self._weights, self.progress)
        self.left_out, self._missing = tuple(sorted(result.missing)), result.missing
        self._void.count(result.why == "void", result.missing)

    async def end(self) -> str:
        """The final test, if there is one; returns why the run ended. Raises RunError where no round of the run was
        merged."""
        if self.progress.round > self._first and not self.tested(self.progress):
            raise nothing_merged(self.training, self.progress.round, self._missing)
        await self.final_test(self._weights, self.progress)
        return "target reached" if self.reached(self.progress) else "rounds done"

    async def _round(self, begun: Begun, weights: Weights, progress: Progress) -> tuple[Weights, RoundResult]:
        result = await self.carry_out(begun, weights)
        weights = await self.merge(begun.number, weights, result)
        seconds = self.finish(begun, result)
        progress.elapsed_s += seconds
        await uninterrupted(self._conclude(begun.number, weights, progress, result))
        self.watch(progress, result, seconds)
        return weights, result

    async def _conclude(self, number: int, weights: Weights, progress: Progress, result: RoundResult) -> None:
        """Test and save the result of a finished round. A resumed run continues after it."""
        if result.contributions:
            await self.test(number, weights, progress)
        await self.keep(number, weights, progress)
