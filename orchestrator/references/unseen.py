"""The cost of work that a reference has not recorded, from the layers that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

import torch

from edgebed.device.pieces import BATCH, BY_BYTES
from edgebed.methods.base import Batch
from edgebed.models.costs import size_bytes
from edgebed.models.learning import blank_x, blank_y
from edgebed.models.staged import MODELS, StagedModel
from edgebed.wire.messages import Assignment
from orchestrator.references.layer_costs import LayerCosts
from orchestrator.references.lines import line_through, relative_parts
from orchestrator.references.reference import PieceStats, Unseen
from orchestrator.references.work_laws import BatchLaw, SizeLaw, WorkLaws, codec_key

Kinds = Mapping[str, Sequence[PieceStats]]
"""The recorded pieces of one task, by kind."""


class Row:
    """One kind of task: what its layers add up to for a batch, and what a batch took."""

    def __init__(self, assignment: Assignment, kinds: Kinds, law: BatchLaw) -> None:
        size = max(each.size for kind in BATCH for each in kinds.get(kind, ()))
        self.layers_s = law.seconds(round(size))
        self.features = 1.0 if "features" in assignment.uploads else 0.0
        self.taken_s = sum(each.mean_s for kind in BATCH for each in kinds.get(kind, ()) if each.size == size)

    @property
    def counts(self) -> tuple[float, float, float]:
        return 1.0, self.features, self.layers_s


def unseen(
    tasks: Mapping[str, Assignment],
    work: Mapping[str, Kinds],
    layers: LayerCosts,
    transfers: Mapping[str, SizeLaw],
) -> Unseen:
    """How the recorded tasks' costs follow from their layers and bytes.

    Args:
        tasks: by their keys; `work`: their recorded pieces.
        layers: empty where they are not known.
        transfers: laws of what the agent does beside the training thread.
    """
    sizes = {**_by_bytes(tasks, work), **transfers}
    known = [key for key in tasks if any(kind in work[key] for kind in BATCH)]
    if not layers or not known:
        return Unseen(sizes=sizes)
    rows = [Row(tasks[key], work[key], layer_law(tasks[key], layers)) for key in known]
    batch_s, features_s, factor = fitted(rows)
    return Unseen(batch_s, features_s, factor, _first(work), left_out_error(rows), sizes)


def layer_law(assignment: Assignment, layers: LayerCosts) -> BatchLaw:
    """The layers' CPU seconds of a batch of a task. Builds its model."""
    return _laws(assignment, layers).device_law(assignment)


def half_law(assignment: Assignment, layers: LayerCosts) -> BatchLaw:
    """The same of a step of the device's half on the server."""
    return _laws(assignment, layers).server_law(assignment)


def _laws(assignment: Assignment, layers: LayerCosts) -> WorkLaws:
    model = model_of(assignment)
    return WorkLaws(model, blank_batch(model, assignment), layers=layers)


def model_of(assignment: Assignment) -> StagedModel:
    """The whole model of a task."""
    return MODELS.create(assignment.model, "assignment").build(assignment.learns)


def upper_bytes(assignment: Assignment) -> int:
    """Bytes of the weights and buffers above the cut."""
    return size_bytes(model_of(assignment).upper(assignment.stages).state_dict())


def blank_batch(model: StagedModel, assignment: Assignment) -> Batch:
    """A batch of a task's size; what is in it does not change what its layers cost."""
    generator = torch.Generator().manual_seed(0)
    return blank_x(model.task, assignment.batch_size, generator), blank_y(model.task, assignment.batch_size)


def fitted(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Seconds per batch, per batch whose features go up, and per second of its layers, with the least relative
    errors."""
    batch_s, features_s, factor = relative_parts([row.counts for row in rows], [row.taken_s for row in rows])
    return batch_s, features_s, factor


def left_out_error(rows: Sequence[Row]) -> float:
    """Root mean square of the relative error with which the other tasks tell the cost of each; 0 with one task."""
    errors = []
    for place, row in enumerate(rows):
        others = [*rows[:place], *rows[place + 1 :]]
        if others:
            told = sum(part * count for part, count in zip(fitted(others), row.counts, strict=True))
            errors.append(told / row.taken_s - 1)
    return fmean(error**2 for error in errors) ** 0.5 if errors else 0.0


def _first(work: Mapping[str, Kinds]) -> float:
    """How many times as long the first batch of a task takes as a later one, median."""
    ratios = [
        first.mean_s / later.mean_s
        for kinds in work.values()
        for kind in BATCH
        for first in kinds.get(f"first {kind}", ())
        for later in kinds.get(kind, ())
        if first.size == later.size
    ]
    return median(ratios) if ratios else 1.0


def _by_bytes(tasks: Mapping[str, Assignment], work: Mapping[str, Kinds]) -> dict[str, SizeLaw]:
    """Laws of the kinds whose size is bytes; those of uploads by codec. `finish` has no size."""
    points: dict[str, list[tuple[float, float]]] = {}
    for key, kinds in work.items():
        for kind in (*BY_BYTES, "finish"):
            name = size_kind(kind, tasks[key])
            points.setdefault(name, []).extend((each.size, each.mean_s) for each in kinds.get(kind, ()))
    return {name: line_through(each) for name, each in points.items() if each}


def size_kind(kind: str, assignment: Assignment) -> str:
    """The name of a kind's law among `Unseen.sizes`."""
    return f"{kind} {codec_key(assignment.codec)}" if kind == "encode" else kind
