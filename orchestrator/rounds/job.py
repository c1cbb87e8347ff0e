"""What a driver is asked to do, and what comes of it. Pure."""

from __future__ import annotations

import math

import msgspec

from edgebed.methods.base import Contribution, Method, Outcome, Plan
from edgebed.models.staged import Weights
from orchestrator.rounds.machine import Leave


class RoundJob(msgspec.Struct, frozen=True):
    """A round to carry out."""

    number: int
    plan: Plan
    weights: Weights
    method: Method
    patience_s: float = 0.0  # a device counts as lost only after this silence at least
    quorum: int | None = None  # of this round; None: that of the settings
    ends_s: float = math.inf  # when the run's budget of seconds is spent, on the clock of `now_s`


class RoundResult(msgspec.Struct):
    """How a round ended.

    Attributes:
        contributions: of the merged devices, in the order of names.
        why: as in `machine.Finish`.
        missing: devices that did not contribute, and how each left.
    """

    contributions: list[Contribution]
    outcomes: list[Outcome]
    why: str
    round: int = 0
    missing: dict[str, Leave] = {}
