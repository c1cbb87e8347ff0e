"""Costs of a model's halves on this host: CPU seconds of a batch, measured once for each kind of work."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
import torch

from edgebed.methods.base import Batch, ServerHalf, find_half
from edgebed.methods.parts.local_training import UpperHalf
from edgebed.models.costs import size_bytes
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import Keep, kept_sizes, narrow_model
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Codec
from orchestrator.simulation.layer_costs import LayerCosts, LayerMeter
from orchestrator.simulation.timing import REPEATS, Meter, ThreadMeter, best_s
from orchestrator.training.threads import one_thread

ANCHORS = 3
"""Number of known laws that are measured again to find the current speed of the host; their median is used."""

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
    """Laws that a simulation has measured or read, by kind of work."""

    device: dict[str, BatchLaw] = {}
    server: dict[str, BatchLaw] = {}
    encode: dict[str, SizeLaw] = {}
    narrow: list[tuple[tuple[tuple[str, int], ...], float]] = []


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


def server_key(assignment: Assignment) -> str:
    return f"cut {assignment.stages}"


def codec_key(codec: Codec) -> str:
    return f"{codec.dtype}{' zstd' if codec.zstd else ''}"


def _plain_keys(laws: Mapping[str, BatchLaw]) -> list[tuple[str, int]]:
    """Objective and cut of the most expensive kinds of work that any model can repeat, at most ANCHORS."""
    found = [(law.seconds(LEAST), key.split(" · cut ")) for key, law in laws.items()]
    plain = [(seconds, parts[0], parts[1]) for seconds, parts in found if parts[0] in ("head", "output")]
    best = sorted((each for each in plain if each[2].isdigit()), reverse=True)[:ANCHORS]
    return [(objective, int(cut)) for _, objective, cut in best]


class Reference:
    """Laws by kind of work, measured at their first use or read from a file.

    Args:
        batch: real samples: x (B, C, H, W) and y (B,).
        device, server, encode: laws that are already known.
        layers: what layers cost; the seconds of a step are then the sum of those of its layers. None: it is timed.
    """

    def __init__(
        self,
        model: StagedModel,
        batch: Batch,
        *,
        device: Mapping[str, BatchLaw] | None = None,
        server: Mapping[str, BatchLaw] | None = None,
        encode: Mapping[str, SizeLaw] | None = None,
        layers: LayerCosts | None = None,
    ) -> None:
        self._model, self._batch, self.layers = model, batch, layers or {}
        self._meter: Meter = LayerMeter(layers) if layers else ThreadMeter()
        self._repeats = 1 if layers else REPEATS
        self.device_laws: dict[str, BatchLaw] = dict(device or {})
        self.server_laws: dict[str, BatchLaw] = dict(server or {})
        self.encode_laws: dict[str, SizeLaw] = dict(encode or {})
        self._narrow_s: dict[tuple[tuple[str, int], ...], float] = {}
        self._anchors = _plain_keys(self.device_laws)

    def laws(self) -> Laws:
        """The laws so far."""
        return Laws(self.device_laws, self.server_laws, self.encode_laws, list(self._narrow_s.items()))

    def learn(self, laws: Laws) -> None:
        """Take laws over: what they tell is not measured again."""
        self.device_laws |= laws.device
        self.server_laws |= laws.server
        self.encode_laws |= laws.encode
        self._narrow_s |= dict(laws.narrow)

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights and buffers of the whole model."""
        return size_bytes(self._model.state_dict())

    def device_law(self, assignment: Assignment) -> BatchLaw:
        key = work_key(assignment)
        if key not in self.device_laws:
            law, pace = self._measure_device(assignment), 1.0 if self.layers else self._pace(assignment)
            self.device_laws[key] = BatchLaw(law.fixed_s * pace, law.sample_s * pace, law.forward)
        return self.device_laws[key]

    def _pace(self, assignment: Assignment) -> float:
        """Known ÷ current seconds of laws that were read from a file: this host may be busier, or another one."""
        plain = {"train_from": 0, "keep": {}, "options": {}, "steps": 0, "uploads": ("weights",)}
        full, ratios = len(self._batch[1]), []
        for objective, stages in self._anchors:
            known = msgspec.structs.replace(assignment, objective=objective, stages=stages, **plain)
            now_s = self._measure_device(known).seconds(full)
            ratios.append(self.device_laws[work_key(known)].seconds(full) / now_s)
        return median(ratios) if ratios else 1.0

    def server_law(self, assignment: Assignment) -> BatchLaw:
        """Seconds of one step of a copy of the upper stages with an upload of one device."""
        key = server_key(assignment)
        if key not in self.server_laws:
            self.server_laws[key] = self._measure_server(assignment)
        return self.server_laws[key]

    def encode_law(self, codec: Codec) -> SizeLaw:
        """CPU seconds to encode n raw bytes of real features."""
        key = codec_key(codec)
        if key not in self.encode_laws:
            self.encode_laws[key] = self._measure_encode(codec)
        return self.encode_laws[key]

    def narrow_s(self, keep: Keep) -> float:
        """CPU seconds to cut a narrow model out of the whole one."""
        sizes = kept_sizes(keep)
        if sizes not in self._narrow_s:
            self._narrow_s[sizes] = best_s(lambda: narrow_model(self._model, keep))
        return self._narrow_s[sizes]

    def upload_bytes(self, assignment: Assignment, batches: Sequence[int]) -> list[int]:
        """Raw bytes of the features and labels of each batch."""
        sample = math.prod(self._model.feature_shape(assignment.stages)) * 4 + 8
        return [sample * count for count in batches]

    def _measure_encode(self, codec: Codec) -> SizeLaw:
        with torch.no_grad(), one_thread():
            features = self._model.lower(1).eval()(self._batch[0])
            points = []
            for rows in (max(1, len(features) // 8), len(features)):
                part = {"features": features[:rows].contiguous()}
                seconds = best_s(lambda part=part: encode_tensors(part, codec))  # type: ignore[misc]
                points.append((part["features"].numel() * 4, seconds))
        (x0, y0), (x1, y1) = points
        slope = max(0.0, (y1 - y0) / (x1 - x0)) if x1 > x0 else 0.0
        return SizeLaw(max(0.0, y0 - slope * x0), slope)

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
