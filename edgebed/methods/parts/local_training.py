"""The halves that most methods share: device halves by objective, and the server half of one device. No I/O.

Objectives (papers.md §0): `head` trains against the auxiliary head at the cut (DTFL, early exits), `output` holds the
whole model (FedAvg, FedPMT), `server` waits for the gradient of its features (SplitFed, S²FL). Each step is the plain
torch sequence zero_grad, backward, step, so a half equals the same layers trained without Edgebed to the bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Iterable, Mapping

import torch
from torch import Tensor, autograd, nn

from edgebed.errors import DivergedError, RunError, UsageError
from edgebed.methods.base import (
    Batch,
    Outgoing,
    Replies,
    Schedule,
    ServerHalf,
    Trained,
    device_half,
    trained_names,
    trains_head,
)
from edgebed.methods.parts.feature_privacy import Guard
from edgebed.models.learning import loss_of
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.trained_part import training_mode
from edgebed.wire.messages import Assignment
from edgebed.wire.order import batch_bounds
from edgebed.wire.settings import LearningTask, Optimizer

Half = Generator[Outgoing, Weights | None, Trained]


def count_batches(samples: int, schedule: Schedule | Assignment) -> int:
    """Ñ: mini-batches of a round."""
    return len(batch_bounds(samples, schedule.batch_size, schedule.max_batches)) * schedule.epochs


def make_optimizer(parameters: Iterable[nn.Parameter], spec: Optimizer) -> torch.optim.Optimizer:
    """The torch optimizer that `spec` names, of those parameters that are trained; both halves of a model are built by
    this one function."""
    chosen = [each for each in parameters if each.requires_grad]
    if not chosen:
        raise UsageError("there are no parameters to train", hint="choose a cut or train_from with trainable stages")
    if spec.name == "adam":
        return torch.optim.Adam(chosen, lr=spec.lr, weight_decay=spec.weight_decay, amsgrad=spec.amsgrad)
    if spec.name == "sgd":
        return torch.optim.SGD(chosen, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
    raise UsageError(f"there is no optimizer {spec.name!r}", hint="choose adam or sgd")


def optimizer_state(optimizer: torch.optim.Optimizer) -> Weights:
    """What an optimizer remembers, by "NUMBER.KEY": the place of the parameter and torch's name ("0.exp_avg")."""
    return {
        f"{number}.{key}": value.detach().clone()
        for number, kept in optimizer.state_dict()["state"].items()
        for key, value in kept.items()
        if isinstance(value, Tensor)
    }


def load_state(optimizer: torch.optim.Optimizer, state: Weights) -> None:
    """Go on with what `optimizer_state` gave. The learning rate and the other settings stay."""
    kept: dict[int, Weights] = {}
    for name, value in state.items():
        number, key = name.split(".")
        kept.setdefault(int(number), {})[key] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})


def new_state(parameters: Iterable[nn.Parameter], spec: Optimizer) -> Weights:
    """The state of an optimizer before its first step, which trains as one without state does: all zeros."""
    copies = [nn.Parameter(torch.zeros_like(each)) for each in parameters]
    optimizer = make_optimizer(copies, spec)
    for each in copies:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    return {name: torch.zeros_like(value) for name, value in optimizer_state(optimizer).items()}


# ---- device halves ---------------------------------------------------------------------------------------------------


@device_half("head", head=True)
def head_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """DTFL steps 2 and 4: features go up right after the forward pass, while head, backward and step go on.

    The upload shares memory with the features, so a head must not work in place on its input.
    """
    part = DevicePart(model, assignment)
    head = model.head(assignment.stages)
    for x, y in batches:
        z = part.forward(x)
        if "features" in assignment.uploads:
            yield Outgoing({"features": part.guard.upload(z), "labels": y}, samples=len(y))
        loss = loss_of(head(z), y)
        part.step(loss, len(y), part.guard.loss(loss, x, z))
    return part.trained()


@device_half("output", head=False)
def output_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """The whole model on the device; stages before `train_from` only run forward (FedPMT)."""
    if assignment.stages != len(model):
        raise UsageError(
            f"objective 'output' with {assignment.stages} of {len(model)} stages", hint="assign all stages"
        )
    part = DevicePart(model, assignment)
    for x, y in batches:
        part.step(loss_of(part.forward(x), y), len(y))
    yield from ()
    return part.trained()


@device_half("server", head=False)
def server_gradient_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """SplitFed: features up, wait, backward with the returned gradient. The loss stays with the server: 0 here."""
    part = DevicePart(model, assignment)
    for x, y in batches:
        z = part.forward(x)
        reply = yield Outgoing({"features": part.guard.upload(z), "labels": y}, samples=len(y), wait=True)
        part.backward(x, z, part.guard.returned(_gradient(reply, z)))
    return part.trained()


def _gradient(reply: Weights | None, z: Tensor) -> Tensor:
    gradient = (reply or {}).get("gradient")
    if gradient is None or gradient.shape != z.shape:
        got = "nothing" if gradient is None else f"shape {tuple(gradient.shape)}"
        raise RunError(
            f"features of shape {tuple(z.shape)} were answered with {got}",
            hint="the method's server half must reply with the gradient of the features",
        )
    return gradient.to(z.device)


class DevicePart:
    """The device's stages with their optimizer. Frozen stages run forward only, in eval mode, so that they stay
    untouched to the running statistics **[ours]**. What leaves the device goes through `guard`."""

    def __init__(self, model: StagedModel, assignment: Assignment) -> None:
        self.model, self.assignment = model, assignment
        self.frozen = model.stages(0, assignment.train_from).eval()
        self.stages = training_mode(model.stages(assignment.train_from, assignment.stages), model.frozen)
        parameters = list(self.stages.parameters())
        if trains_head(assignment):
            parameters += model.head(assignment.stages).train().parameters()
        self.optimizer = make_optimizer(parameters, assignment.optimizer)
        self.guard = Guard(assignment)
        self.loss_sum, self.samples, self.batches = 0.0, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.frozen(x)
        z: Tensor = self.stages(x)
        return z

    def step(self, loss: Tensor, samples: int, minimised: Tensor | None = None) -> None:
        """`loss` is reported; `minimised`, if given, is trained on. Reporting that one would reveal α."""
        where = f"batch {self.batches} on device {self.assignment.device!r}"
        value = checked_loss(loss, where)
        if minimised is None or minimised is loss:
            minimised = loss
        else:
            checked_loss(minimised, where)
        self.optimizer.zero_grad()
        autograd.backward(minimised)
        self.optimizer.step()
        self._count(value, samples)

    def backward(self, x: Tensor, z: Tensor, gradient: Tensor) -> None:
        self.optimizer.zero_grad()
        self.guard.backward(x, z, gradient)
        self.optimizer.step()
        self._count(0.0, len(x))

    def trained(self) -> Trained:
        state = self.model.weights()
        weights = {name: state[name].clone() for name in trained_names(self.model, self.assignment)}
        return Trained(weights, loss=self.loss_sum / max(1, self.samples), batches=self.batches)

    def _count(self, loss: float, samples: int) -> None:
        self.loss_sum += loss * samples
        self.samples += samples
        self.batches += 1


def checked_loss(loss: Tensor, where: str) -> float:
    """The loss as a number; DivergedError where it is not finite."""
    value = float(loss.item())
    if not math.isfinite(value):
        raise DivergedError(f"training diverged: the loss of {where} is {value}", hint="lower optimizer.lr")
    return value


# ---- server half -----------------------------------------------------------------------------------------------------


class UpperHalf(ServerHalf):
    """The server's copy of the upper stages for one device: forward, loss, backward, step per upload (papers.md §1
    step 3). Its optimizer has the same hyper-parameters as the device's and starts anew each round, as the device's.

    Args:
        weights: global weights by name; those above the cut are copied.
        gradient: reply with the gradient of the features (SplitFed); DTFL's features are leaves without one.
    """

    def __init__(
        self,
        model: StagedModel,
        weights: Weights,
        assignment: Assignment,
        accelerator: torch.device,
        *,
        gradient: bool = False,
    ) -> None:
        self.device, self.gradient, self.accelerator = assignment.device, gradient, accelerator
        self.devices = (self.device,)
        self.shape, self.task = model.feature_shape(assignment.stages), model.task
        self.upper = copy.deepcopy(model.upper(assignment.stages))
        self.upper.load_state_dict({name: weights[name] for name in self.upper.state_dict()})
        training_mode(self.upper.to(accelerator), model.frozen)
        self.trained = [name for name in self.upper.state_dict() if name not in model.frozen]
        self.optimizer = make_optimizer(self.upper.parameters(), assignment.optimizer)

    def step(self, uploads: Mapping[str, Weights]) -> Replies:
        features, labels = checked_upload(uploads[self.device], self.device, self.shape, self.task)
        z = features.detach().to(self.accelerator).requires_grad_(self.gradient)
        loss = loss_of(self.upper(z), labels.to(self.accelerator))
        checked_loss(loss, f"the server half of device {self.device!r}")
        self.optimizer.zero_grad()
        autograd.backward(loss)
        self.optimizer.step()
        return {self.device: {"gradient": z.grad.cpu()}} if z.grad is not None else {}

    def weights(self) -> Weights:
        state = self.upper.state_dict()
        return {name: state[name].detach().cpu().clone() for name in self.trained}


def checked_upload(tensors: Weights, device: str, shape: tuple[int, ...], task: LearningTask) -> tuple[Tensor, Tensor]:
    """Features (B, *shape) and labels (B, *answer_shape) of an upload.

    Raises:
        RunError: a stream is missing or misshapen, or a label is no class. (On an accelerator a label out of range
            would end every half, not only this one.)
    """
    features, labels = tensors.get("features"), tensors.get("labels")
    if features is None or labels is None:
        raise RunError(f"device {device!r} sent {sorted(tensors)} instead of features and labels", hint=_SAME_VERSION)
    if features.ndim == 0 or tuple(features.shape[1:]) != shape or not features.is_floating_point():
        raise RunError(
            f"device {device!r} sent features {tuple(features.shape)} instead of (B, {', '.join(map(str, shape))})",
            hint=_SAME_VERSION,
        )
    if labels.dtype != torch.int64 or labels.shape != (len(features), *task.answer_shape) or not labels.numel():
        raise RunError(
            f"device {device!r} sent labels {labels.dtype}{tuple(labels.shape)} for {len(features)} samples",
            hint=_SAME_VERSION,
        )
    if labels.min() < 0 or labels.max() >= task.classes:
        raise RunError(
            f"device {device!r} sent a label outside 0..{task.classes - 1}",
            hint="cut the shards from the same data set",
        )
    return features, labels


_SAME_VERSION = "run the same version of Edgebed and the same model on device and orchestrator"
