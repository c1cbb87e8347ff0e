"""FedGKT: small extractors on the devices, one big model on the server, knowledge both ways as logits (He et al. 2020,
algorithm 1; methods.md §1.4). Pure.

Per round a device trains its own extractor and classifier on CE + KL to the server's last logits, and sends features,
labels and logits; the server trains the upper stages on all devices' features together, on CE + KL to the device's
logits, and its logits go back. Extractors are never averaged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, autograd
from torch.nn import functional

from edgebed.errors import EdgebedError, RunError, UsageError
from edgebed.methods.base import (
    Batch,
    Context,
    Contribution,
    DeviceView,
    Method,
    Outgoing,
    Plan,
    Replies,
    Schedule,
    ServerHalf,
    assign,
    device_half,
)
from edgebed.methods.evaluation import Score, evaluate
from edgebed.methods.halves import DevicePart, Half, checked_loss, checked_upload, make_optimizer
from edgebed.methods.sharing import checked_half, undone_on_error
from edgebed.models.staged import GIVEN, StagedModel, Weights
from edgebed.wire.messages import Assignment

LOGITS = f"{GIVEN}logits"


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), mean over the batch; both (B, classes)."""
    learned = functional.log_softmax(student / temperature, 1)
    known = functional.log_softmax(teacher / temperature, 1)
    return temperature**2 * functional.kl_div(learned, known, reduction="batchmean", log_target=True)


# ---- device half -----------------------------------------------------------------------------------------------------


@device_half("gkt", head=True)
def gkt_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """Extractor and head; `given.logits` (samples of the round, classes) are the server's for the same batches in the
    same order, none in a device's first round. The reported loss is the cross entropy alone.

    Features and logits go up as the batch is trained, like DTFL's, so that sending and computing overlap; the paper
    sends them in a pass of their own after training **[ours]**.
    """
    part = DevicePart(model, assignment)
    head = model.head(assignment.stages)
    temperature = msgspec.convert(assignment.options["temperature"], float)
    teacher, used = model.given.get("logits"), 0
    for x, y in batches:
        z = part.forward(x)
        logits = head(z)
        yield Outgoing({"features": part.guard.upload(z), "labels": y, "logits": logits.detach()}, samples=len(y))
        loss = wanted = functional.cross_entropy(logits, y)
        if teacher is not None:
            wanted = loss + distillation(logits, _rows(teacher, used, len(y)), temperature)
            used += len(y)
        part.step(loss, len(y), part.guard.loss(wanted, x, z))
    return part.trained()


def _rows(logits: Tensor, start: int, count: int) -> Tensor:
    if start + count > len(logits):
        raise UsageError(
            f"the server's logits are of {len(logits)} samples, the round has more",
            cure="keep batch_size, epochs and max_batches as they were when the run began",
        )
    return logits[start : start + count]


# ---- server half -----------------------------------------------------------------------------------------------------


class CommonUpper(ServerHalf):
    """One copy of the upper stages for all devices. A step takes a batch of every device that is still training, in the
    order of their names, and trains on one after the other; so memory holds a few batches of each device, and the bits
    do not depend on who was first. Batches of a device that is lost later stay in the common model **[ours]**.

    The logits are those of the forward pass that trains, before its step **[ours]**: a pass of its own would double
    the server's work.
    """

    def __init__(
        self,
        model: StagedModel,
        weights: Weights,
        assignments: Mapping[str, Assignment],
        temperature: float,
        accelerator: torch.device,
    ) -> None:
        first = next(iter(assignments.values()))
        self.devices = tuple(sorted(assignments))
        self.temperature, self.accelerator = temperature, accelerator
        self.shape, self.classes = model.feature_shape(first.stages), model.classes
        self.upper = copy.deepcopy(model.upper(first.stages))
        self.upper.load_state_dict({name: weights[name] for name in self.upper.state_dict()})
        self.upper.to(accelerator).train()
        self.optimizer = make_optimizer(self.upper.parameters(), first.optimizer)
        self.logits: dict[str, list[Tensor]] = {device: [] for device in self.devices}

    def step(self, uploads: Mapping[str, Weights]) -> Replies:
        errors: dict[str, EdgebedError] = {}
        for device in sorted(uploads):
            try:
                with undone_on_error(self.upper):
                    self.logits[device].append(self._train(device, uploads[device]))
            except EdgebedError as error:
                errors[device] = error
        return errors

    def _train(self, device: str, tensors: Weights) -> Tensor:
        """One step on one device's batch; its logits. Raises EdgebedError, before the step, where it is no use."""
        features, labels = checked_upload(tensors, device, self.shape, self.classes)
        teacher = tensors.get("logits")
        if teacher is None or teacher.shape != (len(labels), self.classes):
            raise RunError(
                f"device {device!r} sent no logits ({len(labels)}, {self.classes})",
                cure="run the same version of Edgebed and the same model on device and orchestrator",
            )
        out: Tensor = self.upper(features.to(self.accelerator))
        loss = functional.cross_entropy(out, labels.to(self.accelerator))
        loss = loss + distillation(out, teacher.to(self.accelerator), self.temperature)
        checked_loss(loss, f"the server half with a batch of device {device!r}")
        self.optimizer.zero_grad()
        autograd.backward(loss)
        checked_half(self.upper, f"the server half with a batch of device {device!r}")
        self.optimizer.step()
        return out.detach().cpu()

    def weights(self) -> Weights:
        return {name: value.detach().cpu().clone() for name, value in self.upper.state_dict().items()}


# ---- the method ------------------------------------------------------------------------------------------------------


class FedGKT(Method):
    """**[ours]**, so that a run resumes and can be evaluated: a device's extractor and head go up as its update and
    come down again with its next task; they are kept by device and merged with nobody's. The lower stages and heads of
    the global weights stay as they were at the start: what a device begins with that has not trained yet. The server's
    logits come down with the task too, for which a device meets its batches in the same order in every round. All this
    is sent, and counted, like any other byte; the paper's devices keep their extractors and send none of it.
    """

    name = "fedgkt"
    variants = ({"cut": 1, "temperature": 1.0},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`cut`: stages of the extractor; `temperature`: T of both KL terms."""

        cut: Annotated[int, msgspec.Meta(ge=1)] = 2
        temperature: Annotated[float, msgspec.Meta(gt=0)] = 3.0

    def setup(self, context: Context) -> None:
        super().setup(context)
        if self.options.cut not in context.model.cuts_with_head:
            raise UsageError(
                f"cut {self.options.cut} has no head to classify with",
                cure=f"choose a cut of: {', '.join(map(str, context.model.cuts_with_head)) or 'another model'}",
            )
        self.own: dict[str, Weights] = {}  # extractor and head, by device
        self.logits: dict[str, Tensor] = {}  # the server's, by device: (samples of a round, classes)
        self._half: CommonUpper | None = None

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        return Plan(
            {
                device.name: assign(
                    self.context,
                    device,
                    schedule,
                    0,  # the order of batches of the first round, in every round
                    stages=self.options.cut,
                    objective="gkt",
                    uploads=("features", "logits", "weights"),
                    options={"temperature": self.options.temperature},
                )
                for device in devices
            }
        )

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        device = assignment.device
        tensors = self.own.get(device) or super().task_weights(weights, assignment)
        return {**tensors, LOGITS: self.logits[device]} if device in self.logits else tensors

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        if not assignments:
            return []
        self._half = CommonUpper(self.context.model, weights, assignments, self.options.temperature, accelerator)
        return [self._half]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """The server's half is one for all; what the devices trained is kept, each by itself."""
        if self._half is None or not contributions:
            return weights
        for part in contributions:
            self.own[part.device] = part.weights
            self.logits[part.device] = torch.cat(self._half.logits[part.device])
        return {**weights, **contributions[0].server_weights}

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        """Mean over the devices of what each classifies with its own extractor and the server's stages **[ours]**."""
        scores = [
            evaluate(self.context.model, {**weights, **self.own[device]}, x, y, accelerator)
            for device in sorted(self.own)
        ]
        if not scores:
            return super().evaluate(weights, x, y, accelerator)
        accuracies = [score.accuracy for score in scores]
        return Score(
            sum(accuracies) / len(scores),
            sum(score.loss for score in scores) / len(scores),
            {"worst device": min(accuracies), "best device": max(accuracies)},
        )

    def tensors(self) -> Weights:
        kept = {f"own/{device}/{name}": w for device, own in self.own.items() for name, w in own.items()}
        return {**kept, **{f"logits/{device}": value for device, value in self.logits.items()}}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        self.own, self.logits = {}, {}
        for key, value in tensors.items():
            kind, device, *name = key.split("/")
            if kind == "own":
                self.own.setdefault(device, {})[name[0]] = value
            else:
                self.logits[device] = value
