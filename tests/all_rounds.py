"""Plays a loop of rounds from its start to its end."""

from __future__ import annotations

from edgebed.models.staged import Weights
from orchestrator.rounds.loop import Loop
from orchestrator.rounds.progress import Progress


async def run_all(loop: Loop, weights: Weights, progress: Progress) -> str:
    """Run from round `progress.round` on; returns why the run ended."""
    loop.start(weights, progress)
    while not loop.over:
        await loop.step()
    return await loop.end()
