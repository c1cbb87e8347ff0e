"""What the orchestrator orders from the trainer's process, and what that answers. Tensors go in the same parcel."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from edgebed import errors
from edgebed.errors import EdgebedError, RunError
from edgebed.methods.base import CutCost
from edgebed.methods.parts.evaluation import Score
from edgebed.pacing import LATE_S
from edgebed.wire.messages import Cost
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.records.host_records import Spent

COPY = "copy"
"""Name of a pickle (`copies.copy_of`) among the tensors of the group of the same name."""

# ---- orders ----


class KeepContext(msgspec.Struct, frozen=True, tag=True):
    """Keep a run's context. Tensors: its copy."""

    context: int


class KeepData(msgspec.Struct, frozen=True, tag=True):
    """Keep samples to test with. Tensors: `x` and `y` of the group `data`."""

    data: int


class Settle(msgspec.Struct, frozen=True, tag=True):
    """Train so many halves at once from now on. Sent before the first halves are made."""

    slots: int
    paced_cpus: float = 0.0  # of each slot: answers of halves come no earlier than it could give them; 0: at once
    period_s: float = LATE_S  # of the quota
    # CPU seconds of the reference to which the slots are held for one of this host; 0: to their own CPU time
    index: float = 0.0


class MakeHalves(msgspec.Struct, frozen=True, tag=True):
    """Make the server halves of a round in place of those before. Tensors: a copy of method and assignments, and the
    group `weights`. Answered with `Halves`. `costs`: what the pieces of each device's half cost on the reference."""

    trainer: int
    context: int
    costs: dict[str, dict[str, Cost]] = {}


class TakeStep(msgspec.Struct, frozen=True, tag=True):
    """One step of a half. Tensors: its uploads, by device. Answered with `Stepped` and the replies, by device."""

    trainer: int
    half: int


class ReadWeights(msgspec.Struct, frozen=True, tag=True):
    """Answered with the group `weights`."""

    trainer: int
    half: int


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Drop the halves of a trainer."""

    trainer: int


class Test(msgspec.Struct, frozen=True, tag=True):
    """`Method.evaluate` on one set of samples, `Method.final` on two. Tensors: a copy of the method, and the group
    `weights`. Answered with a `Score`."""

    context: int
    data: tuple[int, ...]


class ProfileCuts(msgspec.Struct, frozen=True, tag=True):
    """`profile_cuts`. Tensors: a copy of the model, and the batch (`x` and `y` of the group `data`). Answered with
    `Costs`."""

    cuts: tuple[int, ...]
    batch_size: int
    codec: Codec
    optimizer: Optimizer


Order = Settle | KeepContext | KeepData | MakeHalves | TakeStep | ReadWeights | Forget | Test | ProfileCuts


class Call(msgspec.Struct, frozen=True):
    number: int
    order: Order


# ---- answers ----


class Problem(msgspec.Struct, frozen=True):
    """An EdgebedError."""

    kind: str
    text: str
    hint: str

    @classmethod
    def of(cls, error: EdgebedError) -> Problem:
        return cls(type(error).__name__, str(error), error.hint)

    def error(self) -> EdgebedError:
        kind = getattr(errors, self.kind, RunError)
        made: EdgebedError = kind(self.text, hint=self.hint)
        return made


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process has started. `accelerator`: name of the hardware that its halves train on."""

    accelerator: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """Nothing but tensors, or nothing."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    problem: Problem


class Halves(msgspec.Struct, frozen=True, tag=True):
    devices: tuple[tuple[str, ...], ...]  # of each half


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """Start and end in monotonic nanoseconds, and the devices whose upload could not be used."""

    start_ns: int
    end_ns: int
    refused: dict[str, Problem] = {}


class Scored(msgspec.Struct, frozen=True, tag=True):
    score: Score


class Costs(msgspec.Struct, frozen=True, tag=True):
    costs: tuple[CutCost, ...]


Result = Ready | Done | Failed | Halves | Stepped | Scored | Costs
R = TypeVar("R", bound=Result)


class Answer(msgspec.Struct, frozen=True):
    """`number`: of the call; -1 when the process has started. `spent`: on the work of halves by a paced server."""

    number: int
    result: Result
    spent: Spent | None = None
