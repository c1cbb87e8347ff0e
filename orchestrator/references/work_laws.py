"""Costs of a model's halves on this host: CPU seconds of a batch, measured once for each kind of work."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import msgspec
import torch

from edgebed.methods.base import Batch, ServerHalf, find_half
from edgebed.methods.parts.local_training import UpperHalf
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import narrow_model
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Codec
from orchestrator.references.layer_costs import LayerCosts, LayerMeter
from orchestrator.references.timing import REPEATS, ThreadMeter
from orchestrator.training.threads import one_thread

LEAST = 4
"""Samples in the smaller one of the two batches that a law is fitted to."""


class BatchLaw(msgspec.Struct, frozen=True):
    """CPU seconds of a batch of n samples: `fixed_s` + n × `sample_s`. `forward` is the share of them until the
    features are ready."""

    fixed_s: float
    sample_s: float
    forward: float

    def seconds(self, samples: int) -> float:
        return self.fixed_s + samples * self.sample_s


class SizeLaw(msgspec.Struct, frozen=True):
    """Seconds for n bytes: `fixed_s` + n × `byte_s`."""

    fixed_s: float
    byte_s: float

    def seconds(self, size: int) -> float:
        return self.fixed_s + size * self.byte_s


class Laws(msgspec.Struct, frozen=True):
    """Laws that a simulation has measured, by kind of work."""

    device: dict[str, BatchLaw] = {}
    server: dict[str, BatchLaw] = {}


def work_key(assignment: Assignment) -> str:
    """The kind of work. Assignments with the same key have the same cost per batch on the same device."""
    parts = [assignment.objective, f"cut {assignment.stages}"]
    if assignment.train_from:
        parts.append(f"from {assignment.train_from}")
    if assignment.keep:
        parts.append("keep " + " ".join(f"{group}={len(kept)}" for group, kept in sorted(assignment.keep.items())))
    if assignment.options:
        parts.append(msgspec.json.encode(assignment.options, order="sorted").decode()[:80])
    if assignment.privacy.dcor_alpha or assignment.privacy.patch_shuffle:
        parts.append(f"alpha {assignment.privacy.dcor_alpha:g} patches {assignment.privacy.patch_shuffle}")
    return " · ".join(parts)


def codec_key(codec: Codec) -> str:
    return f"{codec.dtype}{' zstd' if codec.zstd else ''}"


class WorkLaws:
    """Laws by kind of work, measured at their first use.

    Args:
        batch: real samples: x (B, C, H, W) and y (B,).
        layers: what layers cost; the seconds of a step are then the sum of those of its layers. None: it is timed.
    """

    def __init__(self, model: StagedModel, batch: Batch, *, layers: LayerCosts | None = None) -> None:
        self._model, self._batch = model, batch
        self._meter = LayerMeter(layers) if layers else ThreadMeter()
        self._repeats = 1 if layers else REPEATS
        self._device: dict[str, BatchLaw] = {}
        self._server: dict[str, BatchLaw] = {}

    def laws(self) -> Laws:
        """The laws so far."""
        return Laws(self._device, self._server)

    def learn(self, laws: Laws) -> None:
        """Take laws over: what they tell is not measured again."""
        self._device |= laws.device
        self._server |= laws.server

    def device_law(self, assignment: Assignment) -> BatchLaw:
        key = work_key(assignment)
        if key not in self._device:
            self._device[key] = self._measure_device(assignment)
        return self._device[key]

    def server_law(self, assignment: Assignment) -> BatchLaw:
        """Seconds of one step of a copy of the upper stages with an upload of one device."""
        key = f"cut {assignment.stages}"
        if key not in self._server:
            self._server[key] = self._measure_server(assignment)
        return self._server[key]

    def _rows(self, count: int) -> Batch:
        x, y = self._batch
        return x[:count], y[:count]

    def _measure_device(self, assignment: Assignment) -> BatchLaw:
        full = len(self._batch[1])
        with one_thread(), self._meter:
            small = [self._device_step(assignment, min(LEAST, full)) for _ in range(self._repeats)]
            large = [self._device_step(assignment, full) for _ in range(self._repeats)]
        return _law(small, large, min(LEAST, full), full)

    def _device_step(self, assignment: Assignment, samples: int) -> tuple[float, float]:
        """CPU seconds until the features are ready, and of the whole step, measured after a first step as warm-up."""
        model = narrow_model(self._model, assignment.keep) if assignment.keep else copy.deepcopy(self._model)
        marks: list[float] = []

        def batches() -> object:
            for _ in range(2):
                marks.append(self._meter.seconds())
                yield self._rows(samples)
            marks.append(self._meter.seconds())

        half = find_half(assignment.objective)(model, assignment, batches())  # type: ignore[arg-type]
        reply: Weights | None = None
        features = 0.0
        while True:
            try:
                out = half.send(reply)
            except StopIteration:
                break
            if len(marks) == 2 and not features:
                features = self._meter.seconds()
            reply = _answer(out.tensors) if out.wait else None
        return (features - marks[1] if features else 0.0), marks[2] - marks[1]

    def _measure_server(self, assignment: Assignment) -> BatchLaw:
        full = len(self._batch[1])
        with one_thread(), self._meter:
            half = UpperHalf(self._model, self._model.weights(), assignment, torch.device("cpu"))
            small = [self._server_step(half, assignment, min(LEAST, full)) for _ in range(self._repeats)]
            large = [self._server_step(half, assignment, full) for _ in range(self._repeats)]
        return _law(small, large, min(LEAST, full), full)

    def _server_step(self, half: ServerHalf, assignment: Assignment, samples: int) -> tuple[float, float]:
        x, y = self._rows(samples)
        with torch.no_grad():
            features = self._model.lower(assignment.stages)(x)
        start = self._meter.seconds()
        half.step({assignment.device: {"features": features, "labels": y}})
        return 0.0, self._meter.seconds() - start


def _answer(tensors: Weights) -> Weights:
    """A reply of the right shape for a half that waits. Its values do not matter."""
    features = next(iter(tensors.values()))
    return {"gradient": torch.zeros_like(features)}


def _law(small: Sequence[tuple[float, float]], large: Sequence[tuple[float, float]], few: int, many: int) -> BatchLaw:
    """A law through the fastest measurement of each size: disturbances only ever add time."""
    least, most = min(total for _, total in small), min(total for _, total in large)
    forward = min(first for first, _ in large)
    slope = max(0.0, (most - least) / (many - few)) if many > few else most / many
    return BatchLaw(max(0.0, most - slope * many), slope, min(1.0, forward / most) if most else 0.0)
