"""The device half that serves at an exit: it answers what it is sure of and forwards the features of the rest. Pure.

papers.md §4. One half for every node. A leaf takes requests as they arrive and looks at one at a time. A node above
takes features from its children: each of its uploads is answered with the next features to look at, as soon as there
are some; a reply without features ends its task.

An upload is one of two things, both with `request` (k,) int64 and `times` (k, 3) int64, nanoseconds on the node's
clock when the request arrived (a leaf's), when the node began with it, and when it had decided:

    features (1, ...), cut (1,)    one request goes on to the parent
    prediction (k,)                requests that were answered here

Answers go up so that they can be judged. A leaf has its answers where they are needed, so it sends them up in batches.
Answers are not sent back down **[ours]**: the paper does not describe that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from edgebed.errors import UsageError
from edgebed.methods.base import Batch, Outgoing, Trained, device_half
from edgebed.methods.parts.exits import confidence
from edgebed.methods.parts.local_training import Half
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Arrivals

OBJECTIVE = "serve"

LOT = 16
"""Answers that a leaf sends up at once."""


@runtime_checkable
class Incoming(Protocol):
    """The batches of a device that serves: one request each, given out when it has arrived; and the device's clock,
    which a half may not read by itself. `answered_ns` returns when the answer may be seen by others."""

    arrived_ns: int

    def now_ns(self) -> int: ...
    def answered_ns(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


def arrival_times_ns(arrivals: Arrivals, seed: int) -> list[int]:
    """When each request comes, nanoseconds after the first could have: a Poisson process, the same on every machine
    but for the last bits of a logarithm."""
    if not arrivals.count:
        return []
    raw = np.random.Philox(key=[seed % 2**64, 1 << 63]).random_raw(arrivals.count)
    uniform = (np.asarray(raw, dtype=np.float64) + 1) / 2.0**64
    gaps = -np.log(uniform) / arrivals.rate
    return [int(at * 1e9) for at in np.cumsum(gaps)]


@device_half(OBJECTIVE, head=True)
def serve_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """Options: `threshold`, the least confidence with which this node answers; `first`, the number of its first own
    request."""
    if assignment.arrivals is None or not isinstance(batches, Incoming):
        raise UsageError("objective 'serve' without arrivals", hint="assign `arrivals`, with a count of 0 above leaves")
    node = _Node(model, assignment, batches)
    yield from (node.leaf() if assignment.arrivals.count else node.above())
    return Trained({}, 0.0, node.seen)


class _Node:
    def __init__(self, model: StagedModel, assignment: Assignment, incoming: Incoming) -> None:
        self._model, self._cut, self._incoming = model.eval(), assignment.stages, incoming
        self._threshold = _number(assignment.options, "threshold")
        self._first = int(_number(assignment.options, "first", 0.0))
        self._stages: dict[int, nn.Module] = {}
        self._place = next(model.parameters()).device
        self.seen = 0

    def leaf(self) -> Iterator[Outgoing]:
        answered: list[Weights] = []
        for x, _ in self._incoming:
            out = self._look(x, 0, self._first + self.seen, self._incoming.arrived_ns)
            if "features" in out:
                yield Outgoing(out, samples=1)
                continue
            answered.append(out)
            if len(answered) == LOT:
                yield Outgoing(_together(answered), samples=0)
                answered = []
        if answered:
            yield Outgoing(_together(answered), samples=0)

    def above(self) -> Half:
        reply = yield Outgoing({}, samples=0, wait=True)  # ready
        while reply is not None and "features" in reply:
            arrived = self._incoming.now_ns()
            out = self._look(reply["features"].to(self._place), int(reply["cut"]), int(reply["request"]), arrived)
            reply = yield Outgoing(out, samples=int("features" in out), wait=True)
        return Trained({}, 0.0, self.seen)

    def _look(self, z: Tensor, cut: int, request: int, arrived_ns: int) -> Weights:
        """What one request comes to: an answer, or features for the parent."""
        began = self._incoming.now_ns()
        with torch.inference_mode():
            z = self._from(cut)(z)
            logits = z if self._cut == len(self._model) else self._model.head(self._cut)(z)
            sure = float(confidence(logits))
        self.seen += 1
        if sure >= self._threshold:
            out = {"prediction": logits.argmax(1)}
        else:
            out = {"features": z, "cut": torch.tensor([self._cut])}
        times = [[arrived_ns, began, self._incoming.answered_ns()]]
        return {**out, "request": torch.tensor([request]), "times": torch.tensor(times)}

    def _from(self, cut: int) -> nn.Module:
        if cut not in self._stages:
            self._stages[cut] = self._model.stages(cut, self._cut)
        return self._stages[cut]


def _together(answers: list[Weights]) -> Weights:
    return {name: torch.cat([each[name] for each in answers]) for name in answers[0]}


def _number(options: dict[str, Any], name: str, default: float = math.nan) -> float:
    value = options.get(name, default)
    if not isinstance(value, int | float) or math.isnan(value):
        raise UsageError(f"objective 'serve' with {name} {value!r}", hint=f"give a number as options.{name}")
    return float(value)
