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
    """Adds `change` to update number `at` (from 0); `with_base`, to the weights that its device began with, too.

    Attributes:
        seen: of each update its device, whether others were merged since it began, and the number of its merge.
        after: the global weights at the start, and after each merge.
    """

    at: int = -1
    with_base: bool = False
    change: Weights = field(default_factory=dict)
    seen: list[tuple[str, bool, int]] = field(default_factory=list)
    after: list[Weights] = field(default_factory=list)

    def merging(self, weights: Weights, contributions: Sequence[Contribution]) -> Sequence[Contribution]:
        given, self.after = [], self.after or [weights]
        for part in contributions:
            if len(self.seen) == self.at:
                base = self._changed(part.base) if self.with_base else part.base
                part = msgspec.structs.replace(part, weights=self._changed(part.weights), base=base)
            given.append(part)
            self.seen.append((part.device, part.base is not weights, len(self.after)))
        return given

    def merged(self, weights: Weights) -> None:
        self.after.append(weights)

    def _changed(self, weights: Weights) -> Weights:
        return {name: w + self.change.get(name, 0) for name, w in weights.items()}
