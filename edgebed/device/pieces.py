"""The pieces of a task's work: what a device does between two moments at which it looks at its clocks. Pure.

A piece has a kind and a size that is known when it ends, never before: samples of a batch, bytes of a body. Its cost is
a function of them (`Cost`). Samples are those that a half says a batch is worth, where its batches do not all cost
alike (`edgebed.methods.parts.exchange.batch_worth`). The kinds:

| kind | work | size |
|---|---|---|
| `receive` | the agent takes in a task or a reply | bytes on the wire |
| `decode` | a task's body becomes a model; `build` is its first time on a device | bytes of the body |
| `reply` | the body of a reply becomes tensors | bytes of the body |
| `forward` | a batch, from its draw until its features are ready | samples |
| `rest` | what follows the upload of a batch: head, backward, step | samples |
| `batch` | a whole batch of a half that uploads nothing with it | samples |
| `more` | a further upload with the same batch | samples |
| `finish` | from the last batch to the update | 1 |
| `encode` | the tensors of an upload become bytes | bytes before the codec |
| `update` | the trained weights become bytes | bytes |
| `send` | the agent sends an upload, and handles its acknowledgement | bytes of the body |

The first batch of a task makes the optimizer's state and finds cold caches, so its kinds begin with `first `.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from edgebed.wire.messages import Cost
from edgebed.wire.piece_times import PieceTimes

FIRST = "first "
BATCH = ("batch", "forward", "rest")
"""Kinds that make a batch: the first one alone, or the two others."""

STEP, JOINED = "step", "joined step"
"""Kinds of a server half: a step, and what each further batch adds to it where a half has several devices. Their size
is samples. The first step of a half begins with FIRST."""

BY_BYTES = ("decode", "build", "reply", "encode", "update")
KINDS = frozenset((*BATCH, *(f"{FIRST}{kind}" for kind in BATCH), *BY_BYTES, "more", "finish"))
"""Kinds that the training thread measures."""

RECORDED, BY_LAYERS, BY_INDEX = "recorded", "layers", "index"
ORIGINS = frozenset((RECORDED, BY_LAYERS, BY_INDEX))
"""Where the cost of a piece is from: a recording, the layers that the task calls, or this device's own CPU time, scaled
by the index."""

MOST_KEPT = 64
"""Pieces of one kind and size of which a task's report says each one's time."""


def seconds(cost: Cost, size: float) -> float:
    """CPU seconds of a piece: between two recorded sizes on the line through them, outside on the line through the
    nearest two, where one is at least twice the other: a line through sizes that differ little tells their noise. Else,
    and from a single size, in proportion to the nearest. Never below 0."""
    points = cost.points
    place = min(max(bisect_right([point[0] for point in points], size), 1), len(points) - 1)
    (low, least), (high, most) = points[place - 1], points[place]
    if (high < 2 * low and not low <= size <= high) or len(points) == 1:
        known, taken = points[0] if size < low else points[-1]
        return taken * size / known if known > 0 else taken
    return max(0.0, least + (most - least) * (size - low) / (high - low))


def batch_s(costs: Mapping[str, Cost], samples: int) -> float | None:
    """CPU seconds of a batch whose features go up; None where they are not known."""
    kinds = ("forward", "rest")
    return sum(seconds(costs[kind], samples) for kind in kinds) if all(kind in costs for kind in kinds) else None


SHARES = (0.0, 0.5, 0.9, 0.99, 1.0)
"""Of the pieces of one kind, those that cost at most the factors of `Cost.spread`."""


def factor_at(spread: Sequence[float], share: float) -> float:
    """The factor that this share of the pieces does not exceed: on the lines through the known ones."""
    place = min(max(bisect_right(SHARES, share), 1), len(SHARES) - 1)
    low, high = SHARES[place - 1], SHARES[place]
    return spread[place - 1] + (spread[place] - spread[place - 1]) * (share - low) / (high - low)


class Variation:
    """Draws the factors of one kind's pieces: those of `spread`, each correlated with the one before. A normal process
    of first order tells the share; the correlation of the factors is a little smaller than its own."""

    def __init__(self, cost: Cost, seed: str) -> None:
        self._cost, self._lag, self._random = cost, max(-0.99, min(0.99, cost.lag)), random.Random(seed)
        self._last = self._random.gauss(0.0, 1.0)

    def draw(self) -> float:
        share = 0.5 * (1 + math.erf(self._last / math.sqrt(2)))
        self._last = self._lag * self._last + math.sqrt(1 - self._lag**2) * self._random.gauss(0.0, 1.0)
        return factor_at(self._cost.spread, share)


class Kinds:
    """Names the pieces of a task's batches as they end."""

    def __init__(self) -> None:
        self._first, self._uploaded, self._samples = True, False, 0

    def uploading(self, drawn: Sequence[int]) -> tuple[str, int]:
        """An upload is ready. `drawn`: the samples of the batches taken since the step before."""
        if not drawn:
            return "more", self._samples
        self._uploaded, self._samples = True, drawn[-1]
        return self._named("forward"), self._samples

    def ended(self, samples: int) -> tuple[str, int]:
        """A batch of so many samples is done: the half asks for the next one."""
        kind = self._named("rest" if self._uploaded else "batch")
        self._first, self._uploaded, self._samples = False, False, samples
        return kind, samples

    def finished(self) -> tuple[str, int]:
        """The half has ended."""
        return "finish", 1

    def _named(self, kind: str) -> str:
        return f"{FIRST}{kind}" if self._first else kind


class Pieces:
    """Measures the pieces of one task, and tells what they cost on the reference.

    Args:
        cpu: CPU seconds of the thread that trains.
        costs: by kind, on the reference. Empty: the device keeps no reference's time.
        index: the reference's CPU seconds for a CPU second of this device, for kinds that are not in `costs`.
        seed: of the task, for costs that vary.
    """

    def __init__(self, cpu: Callable[[], float], costs: Mapping[str, Cost], index: float = 1.0, seed: int = 0) -> None:
        self._cpu, self._costs, self._index = cpu, costs, index
        self._varying = {kind: Variation(cost, f"{seed} {kind}") for kind, cost in costs.items() if cost.spread}
        self._since = cpu()
        self._times: dict[tuple[str, int], list[float]] = {}
        self.reference_s: dict[str, float] = {}

    def done(self, kind: str, size: int) -> float:
        """The training thread has ended a piece, which began where the one before ended. Returns its CPU seconds on the
        reference."""
        now = self._cpu()
        taken, self._since = now - self._since, now
        self._times.setdefault((kind, size), []).append(taken)
        return self.charge(kind, size, taken)

    def charge(self, kind: str, size: int, taken: float = 0.0) -> float:
        """CPU seconds of a piece on the reference. `taken`: its CPU seconds here, 0 for one that another thread
        does."""
        if not self._costs:
            return 0.0
        cost = self._costs.get(kind)
        origin, cpu_s = (BY_INDEX, taken * self._index) if cost is None else (cost.origin, seconds(cost, size))
        if kind in self._varying:
            cpu_s *= self._varying[kind].draw()
        self.reference_s[origin] = self.reference_s.get(origin, 0.0) + cpu_s
        return cpu_s

    def times(self) -> tuple[PieceTimes, ...]:
        """What was measured, by kind and size."""
        return tuple(
            PieceTimes(kind, size, len(each), sum(each), tuple(round(s * 1e6) for s in each[:MOST_KEPT]))
            for (kind, size), each in self._times.items()
        )
