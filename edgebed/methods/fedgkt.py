"""FedGKT: small extractors on the devices, one big model on the server, knowledge both ways as logits (He et al. 2020,
algorithm 1; papers.md §1.4). Pure.

Per round a device trains its own extractor and classifier on CE + KL to the server's last logits, for its local epochs,
and sends features, labels and logits; the server trains the upper stages on all devices' features together, on CE + KL
to the device's logits, for epochs of its own, and its logits go back. Extractors are never averaged.
"""

from __future__ import annotations

import contextlib
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
from edgebed.methods.parts.evaluation import Score, evaluate
from edgebed.methods.parts.local_training import DevicePart, Half, checked_loss, checked_upload, make_optimizer
from edgebed.methods.parts.shared_half import checked_half, undone_on_error
from edgebed.models.staged import GIVEN, StagedModel, Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.order import batch_bounds, shuffled

LOGITS, KNOWN = f"{GIVEN}logits", f"{GIVEN}known"
SERVER_LOGITS = "logits"


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), mean over the batch; both (B, classes)."""
    learned = functional.log_softmax(student / temperature, 1)
    known = functional.log_softmax(teacher / temperature, 1)
    return temperature**2 * functional.kl_div(learned, known, reduction="batchmean", log_target=True)


# ---- device half -----------------------------------------------------------------------------------------------------


@device_half("gkt", head=True)
def gkt_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """Extractor and head; `given.logits` (samples of the shard, classes) are the server's by row of the shard, of the
    rows that `given.known` (samples of the shard,) names; there are none in a device's first round. The reported loss
    is the cross entropy alone.

    Features and logits of the last epoch go up as the batch is trained, like DTFL's, so that sending and computing
    overlap; the paper sends them in a pass of their own after training **[ours]**.
    """
    part = DevicePart(model, assignment)
    head = model.head(assignment.stages)
    teacher = _Teacher(model.given, assignment)
    first = (assignment.epochs - 1) * teacher.per_epoch
    for number, (x, y) in enumerate(batches):
        z = part.forward(x)
        logits = head(z)
        if number >= first:
            yield Outgoing({"features": part.guard.upload(z), "labels": y, "logits": logits.detach()}, samples=len(y))
        loss = functional.cross_entropy(logits, y)
        part.step(loss, len(y), part.guard.loss(teacher.added(loss, logits, number), x, z))
    return part.trained()


class _Teacher:
    """What the server's logits of the round before teach, batch by batch."""

    def __init__(self, given: Weights, assignment: Assignment) -> None:
        self._given, self._assignment = given, assignment
        self._temperature = msgspec.convert(assignment.options["temperature"], float)
        self._bounds = _bounds(assignment)
        self.per_epoch = len(self._bounds)

    def added(self, loss: Tensor, logits: Tensor, number: int) -> Tensor:
        """`loss` and the distillation over the samples of batch `number` that the server has logits of."""
        if "logits" not in self._given:
            return loss
        epoch, place = divmod(number, self.per_epoch)
        rows = _rows(self._assignment, epoch, self._bounds[place])
        if len(rows) != len(logits) or len(self._given["logits"]) != _samples(self._assignment):
            raise UsageError(
                f"the server's logits are of {len(self._given['logits'])} samples, the shard has others",
                hint="keep batch_size and max_batches, and the shards, as they were when the run began",
            )
        known = self._given["known"][rows]
        if not known.any():
            return loss
        taught = distillation(logits[known], self._given["logits"][rows][known], self._temperature)
        return loss + taught * (int(known.sum()) / len(known))


def _samples(assignment: Assignment) -> int:
    """Samples of the device's shard."""
    return msgspec.convert(assignment.options["samples"], int)


def _bounds(assignment: Assignment) -> list[tuple[int, int]]:
    return batch_bounds(_samples(assignment), assignment.batch_size, assignment.max_batches)


def _rows(assignment: Assignment, epoch: int, bounds: tuple[int, int]) -> Tensor:
    """The rows of the shard in one batch: its order follows from the assignment's seed, so it need not be sent."""
    return shuffled(_samples(assignment), assignment.seed, epoch)[slice(*bounds)]


# ---- server half -----------------------------------------------------------------------------------------------------


class CommonUpper(ServerHalf):
    """One copy of the upper stages for all devices. A step takes a batch of every device that is still training and
    trains on them one after the other, in the order of device names; so the result does not depend on the order of
    arrival. Batches of a device that is lost later stay in the common model **[ours]**.

    With one epoch memory holds a few batches of each device; with more, all features of the round are kept, and the
    step with the last upload goes through them again. The logits that go back are those of the last epoch, each
    batch's after the step on it (algorithm 1); running statistics are not moved a second time by that.
    """

    def __init__(
        self,
        model: StagedModel,
        weights: Weights,
        assignments: Mapping[str, Assignment],
        temperature: float,
        accelerator: torch.device,
        epochs: int = 1,
    ) -> None:
        first = next(iter(assignments.values()))
        self.devices = tuple(sorted(assignments))
        self.temperature, self.accelerator, self.epochs = temperature, accelerator, epochs
        self.shape, self.classes = model.feature_shape(first.stages), model.classes
        self.upper = copy.deepcopy(model.upper(first.stages))
        self.upper.load_state_dict({name: weights[name] for name in self.upper.state_dict()})
        self.upper.to(accelerator).train()
        self.optimizer = make_optimizer(self.upper.parameters(), first.optimizer)
        self.logits: dict[str, dict[int, Tensor]] = {device: {} for device in self.devices}
        self._left = {device: len(_bounds(assignment)) for device, assignment in assignments.items()}
        self._seen = dict.fromkeys(self.devices, 0)
        self._kept: list[tuple[str, int, Weights]] = []  # device, number of the batch, its tensors
        self._worked: list[tuple[str, int]] = []

    def step(self, uploads: Mapping[str, Weights]) -> Replies:
        errors: dict[str, EdgebedError] = {}
        self._worked = []
        for device in sorted(uploads):
            number = self._seen[device]
            try:
                self._learn(device, number, uploads[device], last=self.epochs == 1)
            except EdgebedError as error:
                errors[device] = error
                continue
            self._seen[device] += 1
            if self.epochs > 1:
                self._kept.append((device, number, uploads[device]))
        if all(self._seen[device] >= self._left[device] for device in uploads if device not in errors):
            self._go_on()
        return errors

    def worked(self, uploads: Mapping[str, Weights]) -> list[tuple[str, int]]:
        return self._worked

    def _go_on(self) -> None:
        """The epochs after the first, over all batches of the round in the order they were first used."""
        kept, self._kept = self._kept, []
        for epoch in range(2, self.epochs + 1 if kept else 2):
            for device, number, tensors in kept:
                with contextlib.suppress(EdgebedError):  # the batch is left out, as what it would have done is undone
                    self._learn(device, number, tensors, last=epoch == self.epochs)

    def _learn(self, device: str, number: int, tensors: Weights, *, last: bool) -> None:
        """One step on one device's batch; in the last epoch its logits after that. Raises EdgebedError, and leaves all
        as it was, where it is no use."""
        with undone_on_error(self.upper):
            self._train(device, tensors)
        samples = len(tensors["labels"])
        if last:
            self.logits[device][number] = self._answer(tensors["features"])
            samples += samples // 3  # a forward pass is a third of a step
        self._worked.append((device, samples))

    def _train(self, device: str, tensors: Weights) -> None:
        features, labels = checked_upload(tensors, device, self.shape, self.classes)
        teacher = tensors.get("logits")
        if teacher is None or teacher.shape != (len(labels), self.classes):
            raise RunError(
                f"device {device!r} sent no logits ({len(labels)}, {self.classes})",
                hint="run the same version of Edgebed and the same model on device and orchestrator",
            )
        out: Tensor = self.upper(features.to(self.accelerator))
        loss = functional.cross_entropy(out, labels.to(self.accelerator))
        loss = loss + distillation(out, teacher.to(self.accelerator), self.temperature)
        checked_loss(loss, f"the server half with a batch of device {device!r}")
        self.optimizer.zero_grad()
        autograd.backward(loss)
        checked_half(self.upper, f"the server half with a batch of device {device!r}")
        self.optimizer.step()

    def _answer(self, features: Tensor) -> Tensor:
        """The logits of a batch, normalised by its own statistics as in training; the running ones stay."""
        buffers = {name: value.clone() for name, value in self.upper.named_buffers()}
        with torch.no_grad():
            out: Tensor = torch.func.functional_call(self.upper, buffers, (features.to(self.accelerator),))
        return out.cpu()

    def weights(self) -> Weights:
        """The upper stages; and the logits of every batch, by names that `server_logits` reads."""
        self._go_on()  # where the device with the most batches was lost, no step was the last
        upper = {name: value.detach().cpu().clone() for name, value in self.upper.state_dict().items()}
        answers = {
            f"{SERVER_LOGITS}/{device}/{number}": value
            for device, batches in self.logits.items()
            for number, value in batches.items()
        }
        return {**upper, **answers}


def server_logits(weights: Weights, device: str) -> dict[int, Tensor]:
    """The logits of a device's batches, by number, from the weights of the server half."""
    keys = {name: name.split("/") for name in weights if name.startswith(f"{SERVER_LOGITS}/")}
    return {int(number): weights[name] for name, (_, owner, number) in keys.items() if owner == device}


# ---- the method ------------------------------------------------------------------------------------------------------


class FedGKT(Method):
    """FedGKT. Differs from the paper **[ours]**: extractor and head of a device travel with its update and its next
    task, so that a run can be resumed and evaluated.

    They are kept by device and merged with nobody's. The lower stages and heads of the global weights stay as they were
    at the start: a device that has not trained yet begins with them. The server's logits come down with the task too,
    by row of the shard, since a device meets its samples in another order in every round. All this is sent, and
    counted, like any other byte; the paper's devices keep their extractors and send none of it.
    """

    name = "fedgkt"
    variants = ({"cut": 1, "temperature": 1.0, "server_epochs": 2},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`cut`: stages of the extractor; `temperature`: T of both KL terms; `server_epochs`: how often the server goes
        through a round's features (the authors' runs of ResNet-56: 20). Local epochs are `training.epochs`."""

        cut: Annotated[int, msgspec.Meta(ge=1)] = 2
        temperature: Annotated[float, msgspec.Meta(gt=0)] = 3.0
        server_epochs: Annotated[int, msgspec.Meta(ge=1)] = 1

    options: Options

    def setup(self, context: Context) -> None:
        super().setup(context)
        if self.options.cut not in context.model.cuts_with_head:
            raise UsageError(
                f"cut {self.options.cut} has no head to classify with",
                hint=f"choose a cut of: {', '.join(map(str, context.model.cuts_with_head)) or 'another model'}",
            )
        self.own: dict[str, Weights] = {}  # extractor and head, by device
        self.logits: dict[str, Tensor] = {}  # the server's, by device: (samples of the shard, classes)
        self.known: dict[str, Tensor] = {}  # which rows of it are: (samples of the shard,) bool

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        return Plan(
            {
                device.name: assign(
                    self.context,
                    device,
                    schedule,
                    round,
                    stages=self.options.cut,
                    objective="gkt",
                    uploads=("features", "logits", "weights"),
                    options={"temperature": self.options.temperature, "samples": device.samples},
                )
                for device in devices
            }
        )

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        device = assignment.device
        tensors = self.own.get(device) or super().task_weights(weights, assignment)
        if device not in self.logits:
            return tensors
        return {**tensors, LOGITS: self.logits[device], KNOWN: self.known[device]}

    def count_uploads(self, assignment: Assignment, batches: int) -> int:
        """Of the last epoch alone."""
        return batches // assignment.epochs

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        if not assignments:
            return []
        temperature, epochs = self.options.temperature, self.options.server_epochs
        return [CommonUpper(self.context.model, weights, assignments, temperature, accelerator, epochs)]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """The upper stages come from the one server half; the extractor of each device is kept separately."""
        if not contributions:
            return weights
        for part in contributions:
            self.own[part.device] = part.weights
            self._remember(part.assignment, server_logits(part.server_weights, part.device))
        server = contributions[0].server_weights
        return {name: server.get(name, value) for name, value in weights.items()}

    def _remember(self, assignment: Assignment, logits: Mapping[int, Tensor]) -> None:
        """Keep the logits of a device's batches by row of its shard; rows of no batch keep those of before."""
        device, samples = assignment.device, _samples(assignment)
        if len(self.known.get(device, ())) != samples:
            self.logits[device] = torch.zeros(samples, self.context.model.classes)
            self.known[device] = torch.zeros(samples, dtype=torch.bool)
        for number, bounds in enumerate(_bounds(assignment)):
            if number in logits:
                rows = _rows(assignment, assignment.epochs - 1, bounds)
                self.logits[device][rows], self.known[device][rows] = logits[number], True

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
        known = {f"known/{device}": value for device, value in self.known.items()}
        return {**kept, **known, **{f"logits/{device}": value for device, value in self.logits.items()}}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        self.own, self.logits, self.known = {}, {}, {}
        for key, value in tensors.items():
            kind, device, *name = key.split("/")
            if kind == "own":
                self.own.setdefault(device, {})[name[0]] = value
            else:
                (self.logits if kind == "logits" else self.known)[device] = value
