"""Table 3 of the early-exit paper: how much the gradient of a mini-batch varies, by exit (its appendix C).

One pass over the training data trains nothing: for every mini-batch and exit e it takes the gradient of the loss at
exit e. Each coordinate has a variance over the mini-batches; the table prints its average. The paper does not say over
which weights it averages. "the weights at each exit" can be those of the exit's classifier or all that its loss
reaches, and "the mean of the means" weighs tensors, not coordinates, alike. All readings are computed **[ours]**.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from edgebed.datasets.shard import normalise
from edgebed.methods.base import METHODS, Batch
from edgebed.methods.early_exit import EarlyExit
from edgebed.methods.parts.exits import exit_cuts, exit_names
from edgebed.models.learning import loss_of
from edgebed.models.staged import MODELS, StagedModel, head_name, seeded
from edgebed.wire.order import batch_bounds, shuffled
from orchestrator.experiment import Experiment
from orchestrator.runs.data import share_out


class Variances(msgspec.Struct, frozen=True):
    """The mean variance of one exit's gradient over"""

    classifier: float  # the coordinates of the exit's classifier
    shared: float  # the coordinates of the stages that every exit's loss reaches
    reached: float  # all coordinates that the loss reaches
    tensors: float  # the tensors that the loss reaches, each with its own mean


class Moments:
    """Mean and sum of squared deviations of a tensor's coordinates over what is added (Welford)."""

    def __init__(self, like: Tensor) -> None:
        self.count = 0
        self._mean = torch.zeros_like(like, dtype=torch.float64)
        self._squares = torch.zeros_like(self._mean)

    def add(self, value: Tensor) -> None:
        self.count += 1
        off = value - self._mean
        self._mean += off / self.count
        self._squares += off * (value - self._mean)

    def variance(self) -> Tensor:
        """Of each coordinate, over all that was added."""
        return self._squares / self.count


def exit_variances(model: StagedModel, cuts: Sequence[int], batches: Iterable[Batch]) -> list[Variances]:
    """The variances of exits 1..E. The model stays as it is; batch norm uses the statistics of the mini-batch, as in
    training."""
    model = copy.deepcopy(model).train()
    known = dict(model.named_parameters())
    reached = [[name for name in exit_names(model, cut) if name in known] for cut in cuts]
    moments = [{name: Moments(known[name].detach()) for name in names} for names in reached]
    for x, y in batches:
        for found, loss in zip(moments, _losses(model, cuts, x, y), strict=True):
            gradients = torch.autograd.grad(loss, [known[name] for name in found], retain_graph=True)
            for moment, gradient in zip(found.values(), gradients, strict=True):
                moment.add(gradient)
    below = set(model.names_below(cuts[0], head=False))
    return [
        _averaged({name: each.variance() for name, each in found.items()}, f"{_classifier(model, cut)}.", below)
        for cut, found in zip(cuts, moments, strict=True)
    ]


def _losses(model: StagedModel, cuts: Sequence[int], x: Tensor, y: Tensor) -> list[Tensor]:
    losses, z = [], x
    for below, cut in pairwise((0, *cuts)):
        z = model.stages(below, cut)(z)
        losses.append(loss_of(model.head(cut)(z) if cut < len(model) else z, y))
    return losses


def _classifier(model: StagedModel, cut: int) -> str:
    """The module that turns features into logits at an exit: its head, or the last stage."""
    return head_name(cut) if cut < len(model) else model.stage_names[-1]


def _averaged(variances: dict[str, Tensor], classifier: str, below: set[str]) -> Variances:
    return Variances(
        classifier=_mean(value for name, value in variances.items() if name.startswith(classifier)),
        shared=_mean(value for name, value in variances.items() if name in below),
        reached=_mean(variances.values()),
        tensors=float(torch.stack([value.mean() for value in variances.values()]).mean()),
    )


def _mean(values: Iterable[Tensor]) -> float:
    return float(torch.cat([value.flatten() for value in values]).mean())


def variances_of(experiment: Experiment, path: Path) -> list[Variances]:
    """Of the experiment's model as its seed starts it, over its training samples in mini-batches."""
    _, split, _ = share_out(experiment, ["all"], path)
    seed = experiment.training.seed
    plugin = MODELS.create(experiment.model, f"{path}: model")
    model = seeded(lambda: plugin.build(split.task), seed)
    method = METHODS.create(experiment.methods[0])
    assert isinstance(method, EarlyExit)
    cuts = exit_cuts(model, len(method.options.layers), method.options.exits)
    order = shuffled(len(split.train_y), seed, 0)
    rows = (order[start:stop] for start, stop in batch_bounds(len(order), experiment.training.batch_size, 0))
    batches = ((normalise(split.train_x[some], split.mean, split.std), split.train_y[some]) for some in rows)
    return exit_variances(model, cuts, batches)
