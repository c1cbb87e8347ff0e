"""FedGKT: small extractors on the devices, one big model on the server, knowledge both ways as logits (He et al. 2020,
algorithm 1; papers.md §1.4). Pure.

The extractor is the stem of the network, and the device's own classifier has two residual blocks, a pool and an fc
layer. Per round a device trains both on CE + KL to the server's last logits, for its local epochs, and sends features,
labels and logits; the server trains the upper stages on all devices' features together, on CE + KL to the device's
logits, for epochs of its own, and its logits go back. Extractors are never averaged. Optimizers go on from round to
round, on the devices and on the server.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, autograd

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
from edgebed.methods.parts.distillation import Teacher, distillation, row_bounds, rows_of, samples_of
from edgebed.methods.parts.evaluation import Score, evaluate
from edgebed.methods.parts.local_training import (
    DevicePart,
    Half,
    checked_loss,
    checked_upload,
    load_state,
    make_optimizer,
    new_state,
    optimizer_state,
)
from edgebed.methods.parts.shared_half import checked_half, undone_on_error
from edgebed.models.learning import loss_of
from edgebed.models.staged import GIVEN, MODELS, StagedModel, Weights, with_prefix, without_prefix
from edgebed.wire.messages import Assignment

LOGITS, KNOWN = f"{GIVEN}logits", f"{GIVEN}known"
OPTIMIZER = "optimizer."
"""Prefix of what an optimizer remembers; of a device's it follows `GIVEN`."""

SERVER_LOGITS = "logits"

CLASSIFIER_BLOCKS = 2
"""Residual blocks of a device's classifier: one third of ResNet-8."""


# ---- device half -----------------------------------------------------------------------------------------------------


@device_half("gkt", head=True)
def gkt_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """Extractor and head; `given.logits` (samples of the shard, classes) are the server's by row of the shard, of the
    rows that `given.known` (samples of the shard,) names; there are none in a device's first round. What the optimizer
    remembers comes down as `given.optimizer.…` and goes up by the same names. The reported loss is the cross entropy
    alone.

    Features and logits of the last epoch go up as the batch is trained, like DTFL's, so that sending and computing
    overlap; the paper sends them in a pass of their own after training **[ours]**.
    """
    part = DevicePart(model, assignment)
    load_state(part.optimizer, without_prefix(model.given, OPTIMIZER))
    head = model.head(assignment.stages)
    teacher = Teacher(model.given, assignment)
    first = (assignment.epochs - 1) * teacher.per_epoch
    for number, (x, y) in enumerate(batches):
        z = part.forward(x)
        logits = head(z)
        if number >= first:
            yield Outgoing({"features": part.guard.upload(z), "labels": y, "logits": logits.detach()}, samples=len(y))
        loss = loss_of(logits, y)
        part.step(loss, len(y), part.guard.loss(teacher.added(loss, logits, number), x, z))
    trained = part.trained()
    kept = with_prefix(optimizer_state(part.optimizer), GIVEN + OPTIMIZER)
    return msgspec.structs.replace(trained, weights={**trained.weights, **kept})


# ---- server half -----------------------------------------------------------------------------------------------------


class CommonUpper(ServerHalf):
    """One copy of the upper stages for all devices. A step takes a batch of every device that is still training and
    trains on them one after the other, in the order of device names; so the result does not depend on the order of
    arrival. Batches of a device that is lost later stay in the common model **[ours]**.

    With one epoch memory holds a few batches of each device; with more, all features of the round are kept, and the
    step with the last upload goes through them again. The logits that go back are those of the last epoch, each
    batch's after the step on it (algorithm 1; the authors' code takes those before it); running statistics are not
    moved a second time by that.

    Args:
        remembered: what the optimizer remembered at the end of the last round.
    """

    def __init__(
        self,
        model: StagedModel,
        weights: Weights,
        assignments: Mapping[str, Assignment],
        temperature: float,
        accelerator: torch.device,
        epochs: int = 1,
        remembered: Weights | None = None,
    ) -> None:
        first = next(iter(assignments.values()))
        self.devices = tuple(sorted(assignments))
        self.temperature, self.accelerator, self.epochs = temperature, accelerator, epochs
        self.shape, self.task = model.feature_shape(first.stages), model.task
        self.upper = copy.deepcopy(model.upper(first.stages))
        self.upper.load_state_dict({name: weights[name] for name in self.upper.state_dict()})
        self.upper.to(accelerator).train()
        self.optimizer = make_optimizer(self.upper.parameters(), first.optimizer)
        load_state(self.optimizer, remembered or {})
        self.logits: dict[str, dict[int, Tensor]] = {device: {} for device in self.devices}
        self._left = {device: len(row_bounds(assignment)) for device, assignment in assignments.items()}
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
        features, labels = checked_upload(tensors, device, self.shape, self.task)
        teacher = tensors.get("logits")
        if teacher is None or teacher.shape != (len(labels), self.task.classes):
            raise RunError(
                f"device {device!r} sent no logits ({len(labels)}, {self.task.classes})",
                hint="run the same version of Edgebed and the same model on device and orchestrator",
            )
        out: Tensor = self.upper(features.to(self.accelerator))
        loss = loss_of(out, labels.to(self.accelerator))
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
        """The upper stages; what the optimizer remembers; and the logits of every batch, by names that `server_logits`
        reads."""
        self._go_on()  # where the device with the most batches was lost, no step was the last
        upper = {name: value.detach().cpu().clone() for name, value in self.upper.state_dict().items()}
        answers = {
            f"{SERVER_LOGITS}/{device}/{number}": value
            for device, batches in self.logits.items()
            for number, value in batches.items()
        }
        kept = {name: value.cpu() for name, value in optimizer_state(self.optimizer).items()}
        return {**upper, **with_prefix(kept, OPTIMIZER), **answers}


def server_logits(weights: Weights, device: str) -> dict[int, Tensor]:
    """The logits of a device's batches, by number, from the weights of the server half."""
    keys = {name: name.split("/") for name in weights if name.startswith(f"{SERVER_LOGITS}/")}
    return {int(number): weights[name] for name, (_, owner, number) in keys.items() if owner == device}


# ---- the method ------------------------------------------------------------------------------------------------------


class FedGKT(Method):
    """FedGKT. Differs from the paper **[ours]**: extractor, classifier and optimizer's state of a device go up with its
    update and come down with its next task, so that a run can be resumed and evaluated.

    They are kept by device and merged with nobody's. The lower stages and heads of the global weights stay as they were
    at the start: a device that has not trained yet begins with them. The server's logits come down with the task too,
    by row of the shard, since a device meets its samples in another order in every round. All this is sent, and
    counted, like any other byte; the paper's devices keep their extractors and send none of it.

    A model without the option `head_blocks` has no such classifier: there the device's is the head at the cut.
    """

    name = "fedgkt"
    one_answer = True
    variants = ({"cut": 2, "temperature": 1.0, "server_epochs": 2},)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`cut`: stages of the extractor, by default the stem; `temperature`: T of both KL terms; `server_epochs`: how
        often the server goes through a round's features (the authors' runs of ResNet-56: 20); `features_mib`: most that
        it keeps for that. Local epochs are `training.epochs`."""

        cut: Annotated[int, msgspec.Meta(ge=1)] = 1
        temperature: Annotated[float, msgspec.Meta(gt=0)] = 3.0
        server_epochs: Annotated[int, msgspec.Meta(ge=1)] = 1
        features_mib: Annotated[int, msgspec.Meta(ge=1)] = 4096

    options: Options

    def model_spec(self, spec: Mapping[str, object]) -> dict[str, object]:
        """With a classifier of two residual blocks, unless `spec` says otherwise or the model has none."""
        cls = MODELS.class_of(spec)
        known = () if cls is None else cls.Options.__struct_fields__
        return (
            {**spec, "head_blocks": spec.get("head_blocks", CLASSIFIER_BLOCKS)} if "head_blocks" in known else {**spec}
        )

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
        self.remembered: Weights = {}  # what the server's optimizer remembers

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        assignments = {
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
        self._check_memory(assignments.values())
        return Plan(assignments)

    def _check_memory(self, assignments: Iterable[Assignment]) -> None:
        """Raises UsageError where the server would keep more features for its epochs than `features_mib`."""
        cut, epochs, most = self.options.cut, self.options.server_epochs, self.options.features_mib
        samples = sum(stop - start for assignment in assignments for start, stop in row_bounds(assignment))
        sample_bytes = 4 * math.prod(self.context.model.feature_shape(cut))
        needed_mib = math.ceil(samples * sample_bytes / 2**20)
        if epochs > 1 and needed_mib > most:
            raise UsageError(
                f"for {epochs} server epochs the server keeps the features of the round: {samples} samples × "
                f"{sample_bytes} bytes (after stage {cut}) = {needed_mib} MiB, more than features_mib: {most}",
                hint=f"set features_mib to {needed_mib} if the server has the memory, or server_epochs to 1, or lower "
                "training.sample or training.max_batches, or choose a cut with smaller features",
            )

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        device = assignment.device
        tensors = self.own.get(device) or {**super().task_weights(weights, assignment), **self._new_state(assignment)}
        if device not in self.logits:
            return tensors
        return {**tensors, LOGITS: self.logits[device], KNOWN: self.known[device]}

    def _new_state(self, assignment: Assignment) -> Weights:
        model, cut = self.context.model, assignment.stages
        parameters = [*model.lower(cut).parameters(), *model.head(cut).parameters()]
        return with_prefix(new_state(parameters, assignment.optimizer), GIVEN + OPTIMIZER)

    def update_names(self, assignment: Assignment, notes: Mapping[str, float]) -> list[str]:
        return [*super().update_names(assignment, notes), *self._new_state(assignment)]

    def count_uploads(self, assignment: Assignment, batches: int) -> int:
        """Of the last epoch alone."""
        return batches // assignment.epochs

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        if not assignments:
            return []
        model, options = self.context.model, self.options
        settings = (options.temperature, accelerator, options.server_epochs, self.remembered)
        return [CommonUpper(model, weights, assignments, *settings)]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """The upper stages come from the one server half; the extractor of each device is kept separately."""
        if not contributions:
            return weights
        for part in contributions:
            self.own[part.device] = part.weights
            self._remember(part.assignment, server_logits(part.server_weights, part.device))
        server = contributions[0].server_weights
        self.remembered = without_prefix(server, OPTIMIZER)
        return {name: server.get(name, value) for name, value in weights.items()}

    def _remember(self, assignment: Assignment, logits: Mapping[int, Tensor]) -> None:
        """Keep the logits of a device's batches by row of its shard; rows of no batch keep those of before."""
        device, samples = assignment.device, samples_of(assignment)
        if len(self.known.get(device, ())) != samples:
            self.logits[device] = torch.zeros(samples, self.context.model.classes)
            self.known[device] = torch.zeros(samples, dtype=torch.bool)
        for number, bounds in enumerate(row_bounds(assignment)):
            if number in logits:
                rows = rows_of(assignment, assignment.epochs - 1, bounds)
                self.logits[device][rows], self.known[device][rows] = logits[number], True

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        """Mean over the devices of what each classifies with its own extractor and the server's stages **[ours]**."""
        scores = [
            evaluate(self.context.model, {**weights, **own}, x, y, accelerator) for _, own in sorted(self.own.items())
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
        logits = {f"logits/{device}": value for device, value in self.logits.items()}
        return {**kept, **known, **logits, **with_prefix(self.remembered, "server//")}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        self.own, self.logits, self.known, self.remembered = {}, {}, {}, {}
        for key, value in tensors.items():
            kind, device, *name = key.split("/")
            if kind == "own":
                self.own.setdefault(device, {})[name[0]] = value
            elif kind == "server":
                self.remembered[name[0]] = value
            else:
                (self.logits if kind == "logits" else self.known)[device] = value
