"""What a run has reached, and the rules by which its learning rate falls. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from orchestrator.experiment import Training

ROUNDED_S = 1e-6  # by which a sum of rounds may miss the budget


class Progress(msgspec.Struct):
    """What a run has reached. Saved with every checkpoint; a resumed run continues from it."""

    round: int = 0  # number of the next round = rounds that have begun
    elapsed_s: float = 0.0  # of all rounds, not divided by the dilation; without evaluation, unless lanes overlap
    spent_s: float = 0.0  # elapsed_s, divided by the dilation; only of a run with a budget
    lr: float = 0.0
    best_accuracy: float = 0.0
    since_best: int = 0
    accuracy: float = 0.0
    untested: bool = False  # weights were merged since the last test
    method: dict[str, Any] = {}
    simulation: dict[str, Any] = {}  # what a simulated run needs to go on to the same bits


def plateau(progress: Progress, training: Training) -> None:
    """Lower the learning rate when accuracy has not risen for some evaluations (papers.md §1)."""
    if progress.accuracy > progress.best_accuracy:
        progress.best_accuracy, progress.since_best = progress.accuracy, 0
        return
    progress.since_best += 1
    rule = None if training.cosine else training.plateau
    if rule is not None and progress.since_best >= rule.patience:
        progress.lr, progress.since_best = progress.lr * rule.factor, 0


def cosine(round: int, training: Training) -> float:
    """The learning rate of round 0, 1, … of a cosine from `optimizer.lr` to 0 at the end (papers.md §4)."""
    return training.optimizer.lr * (1 + math.cos(math.pi * round / training.rounds)) / 2
