"""Simulates the times and bytes of a larger experiment (the paper's network and data set) while a small network learns
from few samples.

Plan, halves, merge and accuracy are those of the small network. Every batch, transfer and server step takes as long as
with the larger network: the model counts the larger one's FLOPs or operations and the bytes of its weights and
features. Each sample stands for several, by the ratio of the sizes of the two data sets. Both networks must be cut
alike: they have the same number of stages, or the same number of split points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import CutCost, trained_names, trains_head
from edgebed.models.costs import size_bytes
from edgebed.models.learning import task_at
from edgebed.models.staged import MODELS, StagedModel, seeded
from edgebed.models.width import Groups, Keep, kept_size, kept_sizes, ordered_keep, slice_weights, width_groups
from edgebed.plugins import called
from edgebed.wire.messages import Assignment, Cost, Header, Reply, Task, Update, Upload
from edgebed.wire.settings import Codec, LearningTask
from orchestrator.experiment import Experiment, Simulation, Surrogate
from orchestrator.references.work_laws import WorkLaws
from orchestrator.simulation.costs import BatchCost
from orchestrator.simulation.counts import Flops, Operations
from orchestrator.simulation.link import wire_bytes
from orchestrator.simulation.paper_costs import FlopCosts, OperationCosts, PaperCosts, TimedCosts, cut_cost
from orchestrator.training.costs import noise

MEASURED_BATCH = 20
"""Largest batch with which a larger network is measured; the time of its full batch follows from the fitted law."""


class ModelPair:
    """A small network and the larger one that it stands for: maps cuts of the small one to cuts of the larger one, and
    compares their sizes. Raises UsageError: the two are not cut alike."""

    def __init__(self, small: StagedModel, large: StagedModel) -> None:
        self.small, self.large = small, large
        self._cuts = _paired(small, large)
        self._groups = width_groups(small), width_groups(large)
        self._keeps: dict[tuple[tuple[str, int], ...], Keep] = {}

    def cut(self, stages: int) -> int:
        """The larger network's number of stages for a number of the small one's."""
        try:
            return self._cuts[stages]
        except KeyError:
            raise UsageError(
                f"cut {stages} of the small network has no match in the larger one",
                hint=f"use cuts {sorted(self._cuts)}",
            ) from None

    def matches(self, stages: int) -> bool:
        """Whether `cut` knows the larger network's number of stages."""
        return stages in self._cuts

    def enlarged(self, assignment: Assignment) -> Assignment:
        """The assignment for the larger network, with the same share of its width."""
        start = assignment.train_from
        return msgspec.structs.replace(
            assignment,
            stages=self.cut(assignment.stages),
            train_from=self.cut(start) if start else 0,
            keep=dict(self._keep(assignment.keep)),
        )

    def _keep(self, keep: Keep) -> Keep:
        """The same shares of the larger network's groups: group by group if both have the same number, otherwise the
        mean share for all groups **[ours]**. The choice of channels does not change the costs."""
        sizes = kept_sizes(keep)
        if keep and sizes not in self._keeps:
            small, large = self._groups
            shares = [len(keep[name]) / group.size if name in keep else 1.0 for name, group in small.items()]
            if len(small) == len(large):
                pairs = zip(large.items(), shares, strict=True)
                self._keeps[sizes] = {name: tuple(range(kept_size(group, share))) for (name, group), share in pairs}
            else:
                self._keeps[sizes] = ordered_keep(large, mean(shares))
        return self._keeps[sizes] if keep else {}

    def weights_factor(self, assignment: Assignment, *, trained: bool) -> float:
        """Bytes of the larger network's weights ÷ the small one's, of the whole device half or of its trained part."""
        small, large = (
            self._bytes(model, groups, work, trained)
            for model, groups, work in zip(
                (self.small, self.large), self._groups, (assignment, self.enlarged(assignment)), strict=True
            )
        )
        return large / small

    def _bytes(self, model: StagedModel, groups: Groups, work: Assignment, trained: bool) -> int:
        held = model.names_below(work.stages, head=trains_head(work))
        weights = model.weights()
        chosen = {name: weights[name] for name in (trained_names(model, work) if trained else held)}
        return size_bytes(slice_weights(chosen, groups, work.keep) if work.keep else chosen)

    def features_factor(self, stages: int) -> float:
        """Elements of one sample's features in the larger network ÷ in the small one."""
        return math.prod(self.large.feature_shape(self.cut(stages))) / math.prod(self.small.feature_shape(stages))


def _paired(small: StagedModel, large: StagedModel) -> dict[int, int]:
    if len(small) == len(large):
        return {stages: stages for stages in range(len(small) + 1)}
    if small.split_points and len(small.split_points) == len(large.split_points):
        return dict(zip(small.split_points, large.split_points, strict=True)) | {len(small): len(large)}
    raise UsageError(
        f"a network of {len(small)} stages cannot stand for one of {len(large)}",
        hint="choose two with equally many stages or split points: `edgebed models`",
    )


Counted = FlopCosts | OperationCosts | TimedCosts


class SurrogateCosts(PaperCosts):
    """Costs of the larger network, by its counts or by its halves as measured on this host.

    Args:
        samples_each: number of the larger experiment's samples that one of our samples stands for.
        large_batch: batch size of the larger experiment; ours is `batch_size`.
        what: a description for people: whose times and bytes these are, and which network learns.
    """

    def __init__(
        self,
        counted: Counted,
        pair: ModelPair,
        samples_each: float,
        large_batch: int,
        batch_size: int,
        codec: Codec,
        what: str,
    ) -> None:
        self._counted, self._pair, self._each = counted, pair, samples_each
        self._large_batch, self._batch_size, self._codec = large_batch, batch_size, codec
        self.kind, self.laws = f"{counted.kind}: {what}", counted.laws
        self._factors: dict[tuple[object, ...], float] = {}

    def task_costs(self, assignment: Assignment) -> dict[str, Cost]:
        return self._counted.task_costs(self._pair.enlarged(assignment))

    def cut_costs(self, model: StagedModel) -> dict[int, CutCost]:
        """The costs of the larger network's cuts that the small one has, for a reference device of one CPU."""
        return {cut: self._cut_cost(model, cut) for cut in model.cuts_with_head if self._pair.matches(cut)}

    def _cut_cost(self, model: StagedModel, cut: int) -> CutCost:
        assignment = task_at("reference", {}, model.task, cut, "head")
        device_s = self.work(assignment, self._batch_size).total_s
        server_s = self.server_step_s(assignment, self._batch_size)
        samples = self._batch_size * self._each
        large = cut_cost(self._pair.large, self._pair.cut(cut), samples, self._codec, device_s, server_s)
        return msgspec.structs.replace(large, cut=cut)

    def work(self, assignment: Assignment, samples: int) -> BatchCost:
        cost = self._counted.work(self._pair.enlarged(assignment), self._large_batch)
        share = self._batches(samples)
        return BatchCost(cost.forward_s * share, cost.rest_s * share)

    def _batches(self, samples: int) -> float:
        """The number of the larger experiment's batches that `samples` of our samples stand for."""
        return samples * self._each / self._large_batch

    def transfer_bytes(self, assignment: Assignment, header: Header, size: int) -> int:
        """Bytes on the wire for a body of `size` bytes of ours."""
        return wire_bytes(header, round(size * self._factor(assignment, header)))

    def _factor(self, assignment: Assignment, header: Header) -> float:
        parts = assignment.stages, assignment.train_from, assignment.objective, kept_sizes(assignment.keep)
        key = (type(header), *parts)
        if key not in self._factors:
            match header:
                case Upload() | Reply():
                    self._factors[key] = self._pair.features_factor(assignment.stages) * self._each
                case Task() | Update():
                    trained = isinstance(header, Update)
                    self._factors[key] = self._pair.weights_factor(assignment, trained=trained)
                case _:
                    self._factors[key] = 1.0
        return self._factors[key]

    def server_step_s(self, assignment: Assignment, samples: int) -> float:
        large_s = self._counted.server_step_s(self._pair.enlarged(assignment), self._large_batch)
        return large_s * self._batches(samples)


def surrogate_costs(
    experiment: Experiment, wanted: Surrogate, small: StagedModel, samples: Sequence[int]
) -> SurrogateCosts:
    """The cost model for an experiment with `as_if`. `samples`: number of training samples of each device. Raises
    UsageError: the larger network cannot be built, counted, or cut like the small one."""
    plugin = MODELS.create(wanted.model, "simulation.as_if.model")
    large = seeded(lambda: plugin.build(LearningTask(tuple(wanted.input_shape), wanted.classes)), 0)
    return SurrogateCosts(
        _counted(experiment.simulation, wanted, large),
        ModelPair(small, large),
        wanted.train_samples / sum(samples),
        wanted.batch_size,
        experiment.training.batch_size,
        experiment.training.codec,
        f"times and bytes of {plugin.name} with {wanted.train_samples / len(samples):.0f} samples per "
        f"device (as_if), learning by {called(experiment.model)}",
    )


def _counted(simulation: Simulation, wanted: Surrogate, large: StagedModel) -> Counted:
    match simulation.cost:
        case "flops":
            return FlopCosts(Flops(large), simulation.device_flops, simulation.server_flops)
        case "operations":
            return OperationCosts(Operations(large), simulation.device_flops)
        case "timed" | None:
            key = msgspec.json.encode(wanted, order="sorted")
            if key not in _measured:
                _measured[key] = WorkLaws(large, noise(large, min(wanted.batch_size, MEASURED_BATCH)))
            return TimedCosts(_measured[key], simulation.server_flops / simulation.device_flops)
        case other:
            raise UsageError(f"simulation.as_if with cost {other!r}", hint="choose timed, flops or operations")


_measured: dict[bytes, WorkLaws] = {}
"""Results of measurements: measuring a large network takes a minute, so each is measured once per process."""
