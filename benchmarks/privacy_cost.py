"""What hiding costs a device: CPU seconds of a step with distance correlation or patch shuffling ÷ without, one thread.

DTFL's halves of ResNet-56 at a shallow, a middle and a deep cut, batches of CIFAR-10's shape. Encoding and sending are
not in it: shuffled features are as large as before. CPU seconds, for a quota counts those, and other
work on the host disturbs them least.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import torch

from benchmarks._figures import figure
from edgebed.methods.base import Batch
from edgebed.methods.parts.local_training import head_half
from edgebed.models.staged import MODELS, StagedModel, seeded
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import LearningTask, Privacy

SHAPE, CLASSES, BATCH, REPEATS = (3, 32, 32), 10, 50, 5
CUTS = (1, 4, 7)
NOTHING = Privacy()
CHOICES = {"distance correlation": Privacy(dcor_alpha=0.5), "patch shuffling": Privacy(patch_shuffle=4, secret=1)}


def step_s(model: StagedModel, cut: int, privacy: Privacy) -> float:
    """CPU seconds from when the half gets a batch until it asks for the next."""
    assignment = Assignment("a", {}, CLASSES, SHAPE, cut, "head", uploads=("features",), privacy=privacy)
    x, y = torch.randn(BATCH, *SHAPE), torch.arange(BATCH) % CLASSES
    seconds = 0.0

    def batches() -> Iterator[Batch]:
        nonlocal seconds
        yield x[:4], y[:4]  # sets the optimizer up
        start = time.process_time()
        yield x, y
        seconds = time.process_time() - start

    for _ in head_half(model, assignment, batches()):
        pass
    return seconds


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = seeded(lambda: MODELS.create({"name": "resnet56"}).build(LearningTask(SHAPE, CLASSES)), 0)
    for cut in CUTS:
        taken: dict[str, list[float]] = {name: [] for name in ("nothing", *CHOICES)}
        for _ in range(REPEATS):  # in turn, so that a drift of the host is in all of them
            for name, privacy in {"nothing": NOTHING, **CHOICES}.items():
                taken[name].append(step_s(model, cut, privacy))
        plain = median(taken["nothing"])
        figure(f"cut {cut}: step of {BATCH} without, CPU seconds", plain)
        for name in CHOICES:
            ratio = median(taken[name]) / plain
            figure(f"cut {cut}: with {name}, ÷ without", ratio, note=f"{median(taken[name]) - plain:+.3f} s per batch")
