"""Costs of a batch in counted operations: FLOPs of any model (S²FL), or the operations of FedPMT's table II."""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from edgebed.errors import UsageError
from edgebed.methods.base import trains_head
from edgebed.models.costs import ModelCosts, built_costs
from edgebed.models.learning import blank_x
from edgebed.models.operations import Convolution, cnn_operations, fcnn_operations
from edgebed.models.staged import StagedModel
from edgebed.models.width import Keep, kept_sizes, narrow_model
from edgebed.wire.messages import Assignment

COUNTED = 2
"""Number of samples in the batch that is counted. Batch norm needs more than one."""


class Flops:
    """FLOPs per sample; a multiply-add counts as two (`edgebed.models.costs`). A narrow model is counted itself, once
    for each set of widths."""

    def __init__(self, model: StagedModel) -> None:
        self._model = model
        self._counted: dict[tuple[tuple[str, int], ...], ModelCosts] = {}

    def device(self, assignment: Assignment) -> tuple[float, float]:
        """FLOPs per sample of the forward pass up to the features, and of the rest."""
        costs, stages = self._of(assignment.keep), assignment.stages
        total = costs.training_flops(stages, assignment.train_from, head=trains_head(assignment))
        forward = sum(stage.forward_flops for stage in costs.stages[:stages])
        return forward / COUNTED, (total - forward) / COUNTED

    def server(self, assignment: Assignment) -> float:
        """FLOPs per sample, forward and backward, of the stages above the cut; 0 if there are none."""
        upper = self._of({}).stages[assignment.stages :]
        return sum(stage.forward_flops + stage.backward_flops for stage in upper) / COUNTED

    def _of(self, keep: Keep) -> ModelCosts:
        sizes = kept_sizes(keep)
        if sizes not in self._counted:
            model = narrow_model(self._model, keep) if keep else self._model
            self._counted[sizes] = built_costs(model, "", "", COUNTED)
        return self._counted[sizes]


class Operations:
    """FedPMT's count for a network of convolutions and fully connected layers, one layer per stage. Raises UsageError:
    the model has another structure."""

    def __init__(self, model: StagedModel) -> None:
        self._model = model
        self._narrow: dict[tuple[tuple[str, int], ...], Operations] = {}
        self._convolutions: list[Convolution] = []
        self._widths: list[int] = []
        x = blank_x(model.task, 2)
        for name in model.stage_names:
            stage = model.get_submodule(name)
            self._add(name, stage, x)
            with torch.no_grad():
                x = stage.eval()(x)
        if not self._widths:
            raise UsageError("FedPMT's operations count needs fully connected layers", hint=_HINT)

    def check(self, assignment: Assignment) -> None:
        """Raises UsageError for a model that is cut: the paper counts whole models without heads only."""
        if assignment.stages < len(self._model) or trains_head(assignment):
            raise UsageError(
                f"FedPMT's operations are counted for whole models on the device, not for {assignment.stages} of "
                f"{len(self._model)} stages with objective {assignment.objective!r}",
                hint="use simulation.cost: flops for methods that cut the model",
            )

    def batch(self, assignment: Assignment, samples: int) -> tuple[float, float]:
        """Operations of one mini-batch: the forward pass, and the rest. A narrow model is counted at its own width."""
        self.check(assignment)
        if assignment.keep:
            whole = msgspec.structs.replace(assignment, keep={})
            return self._of(assignment.keep).batch(whole, samples)
        total = self._count(samples, assignment.train_from)
        layers = len(self._convolutions) + len(self._widths) - 1
        last = self._count(samples, layers - 1)  # forward, with the least possible backward
        return float(min(total, last)), float(max(0, total - last))

    def _of(self, keep: Keep) -> Operations:
        sizes = kept_sizes(keep)
        if sizes not in self._narrow:
            self._narrow[sizes] = Operations(narrow_model(self._model, keep))
        return self._narrow[sizes]

    def _count(self, samples: int, train_from: int) -> int:
        if self._convolutions:
            return cnn_operations(self._convolutions, self._widths, samples, train_from)
        return fcnn_operations(self._widths, samples, train_from)

    def _add(self, name: str, stage: nn.Module, x: torch.Tensor) -> None:
        layers = [m for m in stage.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        if len(layers) != 1:
            raise UsageError(f"stage {name} has {len(layers)} layers with weights, FedPMT's count needs 1", hint=_HINT)
        layer = layers[0]
        if isinstance(layer, nn.Linear):
            self._widths += [layer.out_features] if self._widths else [layer.in_features, layer.out_features]
            return
        side = (x.shape[-1] + 2 * int(layer.padding[0]) - layer.kernel_size[0]) // layer.stride[0] + 1
        self._convolutions.append(Convolution(layer.in_channels, layer.out_channels, layer.kernel_size[0], side))


_HINT = "use one of the models fcnn and cnn, or simulation.cost: flops"
