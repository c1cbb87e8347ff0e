"""The rounds of a run: plan, carry out, merge, evaluate, save, until the target, the last round or Ctrl-C."""

from __future__ import annotations

from edgebed.models.staged import Weights
from orchestrator.rounds.concurrent_rounds import ConcurrentRounds
from orchestrator.rounds.driver import RoundResult
from orchestrator.rounds.event_loop import uninterrupted
from orchestrator.rounds.progress import Progress
from orchestrator.rounds.steps import Begun, RoundSteps
from orchestrator.rounds.void import VoidRounds


class Loop(RoundSteps):
    """All rounds of a run: one after another, or concurrent (`ConcurrentRounds`) where the method has several lanes."""

    async def run(self, weights: Weights, progress: Progress) -> str:
        """Run from round `progress.round` on; returns why the run ended. Raises RunError after several void rounds."""
        progress.lr = progress.lr or self.training.optimizer.lr
        void = VoidRounds(self.training)
        while progress.round < self.training.rounds and not self.reached(progress):
            ready = await self.prepare(progress)
            lanes = self.method.lanes(ready)
            if len(lanes) > 1:
                weights = await ConcurrentRounds(self, weights, progress).run(list(lanes))
                break
            ((lane, present),) = lanes.items()
            weights, result = await self._round(self.begin(lane, present, progress), weights, progress)
            void.count(result.why == "void", result.missing)
        await self.final_test(weights, progress)
        return "target reached" if self.reached(progress) else "rounds done"

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
