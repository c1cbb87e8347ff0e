"""Tier profiling: measures before the first round what each cut of a model costs in bytes and reference seconds.

See papers.md §1.1. It times the same halves that train later.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from statistics import median

import torch

from edgebed.methods.base import Batch, CutCost
from edgebed.methods.parts.local_training import UpperHalf, head_half
from edgebed.models.learning import blank_x, task_at
from edgebed.models.staged import StagedModel
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.training.server import timed_step
from orchestrator.training.threads import one_thread


def profile_cuts(
    model: StagedModel,
    cuts: Sequence[int],
    batch_size: int,
    codec: Codec,
    optimizer: Optimizer,
    accelerator: torch.device,
    repeats: int = 5,
    *,
    batch: Batch | None = None,
    budget_s: float = 20.0,
) -> dict[int, CutCost]:
    """The cost of every cut for one standard batch: medians of `repeats` rounds over all cuts, after a warm-up.

    Device seconds are forward, head, backward and step on one CPU thread of this host (the reference device). Server
    seconds are those of a server half on the accelerator. After `budget_s` no further round starts, but each cut is
    measured at least once (then without a warm-up of full size).

    Args:
        batch: x and y to profile with, because compressed sizes depend on the data. Default: noise of the model's
            input shape.
    """
    x, y = batch if batch is not None else noise(model, batch_size)
    with one_thread():
        trials = [_Trial(model, cut, (x, y), optimizer, accelerator) for cut in cuts]
        end = time.monotonic() + budget_s
        for _ in range(repeats + 1):
            for trial in trials:
                trial.measure()
            if time.monotonic() > end:
                break
        return {trial.cut: trial.cost(codec) for trial in trials}


class _Trial:
    """Both halves of one cut, which repeat steps on the same batch."""

    def __init__(
        self, model: StagedModel, cut: int, batch: Batch, optimizer: Optimizer, accelerator: torch.device
    ) -> None:
        self.cut, self.batch, self.accelerator = cut, batch, accelerator
        self.model = copy.deepcopy(model)
        self.assignment = task_at("reference", {}, model.task, cut, "head", uploads=(), optimizer=optimizer)
        with torch.no_grad():
            self.upload = {"features": self.model.lower(cut).train()(batch[0]), "labels": batch[1]}
        self.server = UpperHalf(model, model.weights(), self.assignment, accelerator)
        self.device_s: list[float] = []
        self.server_s: list[float] = []

    def measure(self) -> None:
        """One step of each half."""
        for _ in head_half(self.model, self.assignment, self._timed_batch()):
            pass  # nothing is uploaded
        _, start_ns, end_ns = timed_step(self.server, {"reference": self.upload}, self.accelerator)
        self.server_s.append((end_ns - start_ns) / 1e9)

    def _timed_batch(self) -> Iterator[Batch]:
        """Yield four samples to set the optimizer up, then the batch. The time until the half asks for the next batch
        is one step."""
        x, y = self.batch
        yield x[:4], y[:4]
        start = time.perf_counter()
        yield x, y
        self.device_s.append(time.perf_counter() - start)

    def cost(self, codec: Codec) -> CutCost:
        weights = self.model.weights()
        half = {name: weights[name] for name in self.model.trained_below(self.cut)}
        return CutCost(
            cut=self.cut,
            model_bytes=len(encode_tensors(half, Codec())),
            feature_bytes=len(encode_tensors(self.upload, codec)),
            device_s=_settled(self.device_s),
            server_s=_settled(self.server_s),
        )


def _settled(seconds: Sequence[float]) -> float:
    """The median without the first value, which includes the warm-up of caches. A single value is returned as it is."""
    return median(seconds[1:] or seconds)


def noise(model: StagedModel, batch_size: int) -> Batch:
    """Samples and labels by chance, always the same."""
    generator = torch.Generator().manual_seed(0)
    x = blank_x(model.task, batch_size, generator)
    return x, torch.randint(model.classes, (batch_size, *model.task.answer_shape), generator=generator)
