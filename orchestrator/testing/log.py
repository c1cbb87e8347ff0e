"""What went on in a play, and updates that are altered on their way to a merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from edgebed.methods.base import Contribution, Plan
from edgebed.methods.parts.exchange import Origin
from edgebed.models.staged import Weights


@dataclass
class Log:
    """For a test to look at.

    Attributes:
        plans: of all rounds.
        halves: how many devices each server half had.
        upper: names of the weights that server halves gave to a merge.
        origins: of the device states of all contributions.
    """

    plans: list[Plan] = field(default_factory=list)
    halves: list[int] = field(default_factory=list)
    upper: set[str] = field(default_factory=set)
    origins: list[Origin] = field(default_factory=list)

    def merging(self, weights: Weights, contributions: Sequence[Contribution]) -> Sequence[Contribution]:
        """What the next merge gets in place of these."""
        return contributions

    def merged(self, weights: Weights) -> None:
        """What that merge gave."""


@dataclass
class Altered(Log):
    """Adds `by` to each parameter of one update.

    Attributes:
        parameters: their names.
        at: number of the update, from 0; -1 for none.
        with_base: add it to the weights that its device began with, too.
        seen: of each update its device, whether others were merged since it began, and the number of its merge.
        after: the global weights after each merge.
    """

    parameters: frozenset[str] = frozenset()
    at: int = -1
    with_base: bool = False
    by: float = 0.01
    seen: list[tuple[str, bool, int]] = field(default_factory=list)
    after: list[Weights] = field(default_factory=list)

    def merging(self, weights: Weights, contributions: Sequence[Contribution]) -> Sequence[Contribution]:
        return [self._taken(part, late=part.base is not weights) for part in contributions]

    def merged(self, weights: Weights) -> None:
        self.after.append(weights)

    def _taken(self, part: Contribution, *, late: bool) -> Contribution:
        altered = len(self.seen) == self.at
        self.seen.append((part.device, late, len(self.after)))
        if not altered:
            return part
        base = self._moved(part.base) if self.with_base else part.base
        return msgspec.structs.replace(part, weights=self._moved(part.weights), base=base)

    def _moved(self, weights: Weights) -> Weights:
        return {name: w + self.by if name in self.parameters else w for name, w in weights.items()}
