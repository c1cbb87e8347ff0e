"""The exits of a staged model: where they stand, what they answer, and which exit serves which sample. Pure.

Exit e of E is the head at its cut; the last exit is the end of the model. papers.md §4: each exit serves its most
confident share; a sample's confidence is the largest softmax of the exit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from edgebed.errors import UsageError
from edgebed.methods.parts.evaluation import Score
from edgebed.methods.parts.inference_tree import Tree, normalised
from edgebed.models.learning import blank_x, loss_of
from edgebed.models.staged import StagedModel, Weights

NEVER = 2.0
"""A threshold that no confidence reaches."""


class Deployment(msgspec.Struct, frozen=True):
    """What a method that trains exits says of how they are to serve."""

    tree: Tree
    cuts: tuple[int, ...]  # of exits 1..E; the last is the whole model
    shares: tuple[float, ...]  # Λ_1..Λ_E, of all requests
    arrivals: dict[str, float]  # λ^a by leaf, requests per second


@runtime_checkable
class Deployable(Protocol):
    """A method whose trained exits can serve."""

    def deployment(self) -> Deployment: ...


def exit_cuts(model: StagedModel, exits: int, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """Cuts of exits 1..`exits`, the last being the end of the model.

    Args:
        wanted: of all exits but the last; empty: evenly among the cuts with a head **[ours]**.

    Raises:
        UsageError: the model has too few heads, or none at a cut that is wanted.
    """
    heads, needed = model.cuts_with_head, exits - 1
    if len(heads) < needed:
        raise UsageError(
            f"{exits} exits need {needed} heads, the model has {len(heads)}",
            hint="choose a tree with fewer layers, or a model with more exits",
        )
    if wanted and (len(wanted) != needed or not set(wanted) <= set(heads) or list(wanted) != sorted(set(wanted))):
        raise UsageError(
            f"exits {list(wanted)}",
            hint=f"give {needed} increasing cuts of {heads}; the last exit is the end of the model",
        )
    chosen = tuple(wanted) or tuple(heads[-(-(k * (len(heads) + 1)) // exits) - 1] for k in range(1, exits))
    return (*chosen, len(model))


def exit_names(model: StagedModel, cut: int, start: int = 0) -> list[str]:
    """Names of the weights between the cuts `start` and `cut`, with the head of `cut` where that is not the end."""
    below = set(model.names_below(start, head=False))
    return [name for name in model.names_below(cut, head=cut < len(model)) if name not in below]


def exit_flops(model: StagedModel, cuts: Sequence[int]) -> list[int]:
    """Operations of one sample from the input to the answer of each exit."""
    from torch.utils.flop_counter import FlopCounterMode  # loads half of torch's compiler; devices never need it

    copied = copy.deepcopy(model).cpu().eval()
    found = []
    with torch.no_grad():
        for cut in cuts:
            with FlopCounterMode(display=False) as counter:
                z = copied.lower(cut)(blank_x(model.task, 1))
                if cut < len(model):
                    copied.head(cut)(z)
            found.append(int(counter.get_total_flops()))
    return found


def exit_logits(
    model: StagedModel, weights: Mapping[str, Tensor], cuts: Sequence[int], x: Tensor, accelerator: torch.device
) -> Tensor:
    """Logits (E, N, classes) of every exit for x (N, C, H, W), in eval mode, on the CPU. The model stays as it is."""
    copied = copy.deepcopy(model)
    copied.load(weights)
    copied.to(accelerator).eval()
    rows = []
    with torch.inference_mode():
        for start in range(0, len(x), 500):
            z, logits = x[start : start + 500].to(accelerator), []
            for below, cut in pairwise((0, *cuts)):
                z = copied.stages(below, cut)(z)
                logits.append(copied.head(cut)(z) if cut < len(copied) else z)
            rows.append(torch.stack(logits).cpu())
    return torch.cat(rows, 1)


def confidence(logits: Tensor) -> Tensor:
    """Largest softmax. (..., classes) -> (...)."""
    return functional.softmax(logits, -1).amax(-1)


def serve_most_confident(sure: Tensor, shares: Sequence[float]) -> Tensor:
    """Which exit (0..E-1) serves each sample: exit e the most confident of those that the exits before it passed on,
    as many as its share of all; the last the rest.

    Args:
        sure: (E, N), the confidence of every exit in every sample.
        shares: Λ_1..Λ_E; only their ratios count.
    """
    exits, samples = sure.shape
    served = torch.full((samples,), exits - 1, dtype=torch.int64)
    rest, done = torch.arange(samples), 0.0
    for exit, share in enumerate(normalised(shares)[:-1]):
        done += share
        count = round(done * samples) - (samples - len(rest))
        order = torch.argsort(sure[exit][rest], descending=True, stable=True)
        served[rest[order[:count]]] = exit
        rest = rest[order[count:]].sort().values
    return served


def thresholds(sure: Tensor, shares: Sequence[float]) -> list[float]:
    """The least confidence with which each exit serves, so that on these samples (E, N) it serves its share; `NEVER`
    where that is none, 0 for the last exit."""
    served = serve_most_confident(sure, shares)
    found = []
    for exit in range(len(sure) - 1):
        own = sure[exit][served == exit]
        found.append(float(own.min()) if len(own) else NEVER)
    return [*found, 0.0]


def serve_above(sure: Tensor, least: Sequence[float]) -> Tensor:
    """Which exit (0..E-1) serves each sample: the first whose confidence reaches its threshold.

    Args:
        sure: (E, N), the confidence of every exit in every sample.
        least: thresholds of exits 1..E; that of the last is 0, so that it serves the rest.
    """
    return (sure >= torch.tensor(least).unsqueeze(1)).to(torch.int64).argmax(0)


def served_score(logits: Tensor, y: Tensor, shares: Sequence[float]) -> Score:
    """Accuracy and loss over served requests, each exit serving its most confident share (papers.md §4, "Result").

    Args:
        logits: (E, N, classes) of every exit; y: (N,).

    Returns:
        `extra`: `exit1`, …: accuracy of each exit alone, on all samples.
    """
    return _score(serve_most_confident(confidence(logits), shares), logits, y)


def served_by(least: Sequence[float], logits: Tensor, y: Tensor) -> Score:
    """As `served_score`, each request served by the first exit that is sure enough.

    Args:
        least: thresholds of exits 1..E.

    Returns:
        `extra`: besides, `served1`, …: the share of requests that each exit served.
    """
    served = serve_above(confidence(logits), least)
    score = _score(served, logits, y)
    shares = torch.bincount(served, minlength=len(least)).double() / len(y)
    return msgspec.structs.replace(
        score, extra=score.extra | {f"served{exit}": float(share) for exit, share in enumerate(shares, 1)}
    )


def _score(served: Tensor, logits: Tensor, y: Tensor) -> Score:
    if not len(y):
        raise UsageError("there are no test samples to evaluate on", hint="choose a data set with a test part")
    answers = logits[served, torch.arange(len(y))]
    alone = (logits.argmax(-1) == y).double().mean(1)
    extra = {f"exit{exit}": float(accuracy) for exit, accuracy in enumerate(alone, 1)}
    right = float((answers.argmax(1) == y).double().mean())
    return Score(right, float(loss_of(answers, y)), extra)


def serving_weights(model: StagedModel, weights: Weights, start: int, cut: int) -> Weights:
    """What a node needs that takes features of cut `start` (0: samples) and answers at `cut`."""
    return {name: weights[name] for name in exit_names(model, cut, start)}
