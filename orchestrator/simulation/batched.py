"""Devices with equal halves train together as one stacked network with one row per device (torch.func).

Rows do not influence each other: the loss of a row has no gradient in another one, torch's optimizers work element by
element, and batch norm keeps running statistics per row. Each row equals what its device trains alone, within float
tolerance.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, UntypedStorage, nn
from torch.func import functional_call, vmap

from edgebed.datasets.shard import Shard
from edgebed.device.batches import Batches, ShardBatches
from edgebed.errors import DivergedError
from edgebed.methods.base import Batch, Outgoing, Trained, trained_names, trains_head
from edgebed.methods.parts.local_training import Half, make_optimizer
from edgebed.models.costs import built_costs
from edgebed.models.learning import blank_x, blank_y, loss_of
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.trained_part import training_mode
from edgebed.wire.messages import Assignment
from edgebed.wire.order import batch_bounds
from edgebed.wire.settings import Privacy

ALIKE = ("head", "output")
"""Objectives that can be stacked. Their arithmetic is repeated here; they wait for no reply and read no options."""

BUDGET_BYTES = 1 << 30
"""On the CPU: about how many bytes the features, weights and activations of devices that train together may take."""

FREE_SHARE = 0.8
"""The same on an accelerator, as a share of its free memory."""

MOST = 64
"""The most devices that train together; more do not make it faster."""

LAYER_FLOPS = 1e7
"""On the CPU devices train alone where a step takes more operations in each layer. A stack saves the time that small
operations take to start. Larger ones are slower in a stack: ten networks of convolutions of 32x32 pixels took
1.3 to 3.2 times as long as one by one."""


def kind_of(assignment: Assignment, shard: Shard) -> bytes | None:
    """Devices with equal kinds can train together; None for a half that trains alone."""
    hidden = assignment.privacy.dcor_alpha or assignment.privacy.patch_shuffle
    plain = not assignment.keep and not hidden
    if assignment.objective not in ALIKE or not plain or assignment.arrivals is not None:
        return None
    bounds = batch_bounds(shard.samples, assignment.batch_size, assignment.max_batches)
    sizes = [stop - start for start, stop in bounds]
    bare = msgspec.structs.replace(assignment, device="", seed=0, cpus=0.0, privacy=Privacy(), options={})
    return msgspec.msgpack.encode((bare, sizes))


def memory_bytes(accelerator: torch.device) -> int:
    """About how many bytes devices that train together may take: on an accelerator most of what is free now. On the CPU
    a fixed number, since the bits depend on how many train together."""
    if accelerator.type != "cuda":
        return BUDGET_BYTES
    free, _ = torch.cuda.mem_get_info(accelerator)
    return int(FREE_SHARE * free)


def fits(memory_bytes: int, each_bytes: int) -> int:
    """How many devices may train at once, each of which takes so many bytes."""
    return max(1, min(MOST, memory_bytes // each_bytes))


def layer_flops(model: StagedModel, assignment: Assignment, samples: int) -> float:
    """The mean operations of a layer in a step of a device, with so many samples."""
    head = trains_head(assignment)
    held = nn.ModuleList([model.lower(assignment.stages), *([model.head(assignment.stages)] if head else [])])
    layers = sum(any(True for _ in each.parameters(recurse=False)) for each in held.modules())
    costs = built_costs(model, "", "", samples)
    return costs.training_flops(assignment.stages, assignment.train_from, head=head) / max(1, layers)


def row_bytes(model: StagedModel, assignment: Assignment, shard: Shard) -> int:
    """About how many bytes one such device takes in a stack: its weights with gradients, optimizer and copies, what a
    step keeps for its backward pass and the gradients of that, and the features of its task."""
    weights = sum(value.nbytes for name, value in model.weights().items() if name not in model.frozen)
    step = saved_bytes(model, assignment, min(shard.samples, assignment.batch_size))
    per_sample = math.prod(model.feature_shape(assignment.stages)) * 4
    kept = shard.samples * (assignment.epochs or 1) * per_sample if "features" in assignment.uploads else 0
    return kept + 6 * weights + 2 * step


def saved_bytes(model: StagedModel, assignment: Assignment, samples: int) -> int:
    """Bytes that a forward pass of a device half keeps for its backward pass. Nothing is computed: the pass is that of
    tensors without values (torch's device `meta`)."""
    half = _Half(copy.deepcopy(model).to("meta"), assignment)
    own = {id(value.untyped_storage()) for value in (*half.parameters(), *half.buffers())}
    kept: dict[int, UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()  # one object for all tensors that share it, as long as it is referred to
        kept[id(storage)] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        half(blank_x(model.task, samples).to("meta"), blank_y(model.task, samples).to("meta"))
    return sum(storage.nbytes() for key, storage in kept.items() if key not in own)


class StackedPart:
    """One device's part of a stacked training."""

    def __init__(self) -> None:
        self._events: deque[tuple[tuple[int, ...], Outgoing | Trained | DivergedError]] = deque()

    def add(self, drawn: tuple[int, ...], event: Outgoing | Trained | DivergedError) -> None:
        """After batches of the sizes `drawn` comes an upload, the result, or an error."""
        self._events.append((drawn, event))

    def half(self, batches: Batches) -> Half:
        """What the device half would yield and return."""
        while True:
            drawn, event = self._events.popleft()
            batches.drawn.extend(drawn)
            if isinstance(event, DivergedError):
                raise event
            if isinstance(event, Trained):
                return event
            yield event


class _Half(nn.Module):
    """The device's stages and head as one module, which torch can call with other weights."""

    def __init__(self, model: StagedModel, assignment: Assignment) -> None:
        super().__init__()
        self.model = model
        self._frozen = model.stages(0, assignment.train_from).eval()
        self._stages = training_mode(model.stages(assignment.train_from, assignment.stages), model.frozen)
        self._head = model.head(assignment.stages).train() if trains_head(assignment) else None

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Features and mean loss of one device's batch."""
        with torch.no_grad():
            x = self._frozen(x)
        z = self._stages(x)
        logits = z if self._head is None else self._head(z)
        return z, loss_of(logits, y)


class BatchedTrainer:
    """Trains devices of one kind through their whole tasks.

    Args:
        model: is put into training mode; its weights are not changed.
        assignments, shards, weights: by row.
    """

    def __init__(
        self,
        model: StagedModel,
        assignments: Sequence[Assignment],
        shards: Sequence[Shard],
        weights: Sequence[Weights],
        accelerator: torch.device,
    ) -> None:
        self._model, self._assignments, self._accelerator = model, assignments, accelerator
        self._batches = [iter(ShardBatches(shard, each)) for shard, each in zip(shards, assignments, strict=True)]
        self.rows = [StackedPart() for _ in assignments]
        first = assignments[0]
        self._half = _Half(model, first).to(accelerator)
        self._names = trained_names(model, first)
        self._stack(weights)
        self._optimizer = make_optimizer([p for p in self._parameters.values() if p.requires_grad], first.optimizer)
        self._loss = torch.zeros(len(self.rows), dtype=torch.float64)
        self._samples = self._steps = 0
        self._drawn: list[int] = []
        self._gone: set[int] = set()

    def _stack(self, weights: Sequence[Weights]) -> None:
        learnt = {name for name, _ in self._model.named_parameters()}
        self._parameters: dict[str, nn.Parameter] = {}
        self._buffers: dict[str, Tensor] = {}
        frozen = self._model.frozen  # the model's own are those of all rows
        for name in (each for each in weights[0] if each not in frozen):
            rows = torch.stack([each[name] for each in weights]).to(self._accelerator)
            if name in learnt:
                self._parameters[name] = nn.Parameter(rows, requires_grad=name in set(self._names))
            else:
                self._buffers[name] = rows.clone()

    def _all(self) -> dict[str, Tensor]:
        return {**self._parameters, **self._buffers}

    def train(self) -> list[StackedPart]:
        """Train all batches of all rows. Returns the rows, which hold the uploads and the results."""
        uploads = "features" in self._assignments[0].uploads
        while batch := [next(each, None) for each in self._batches]:
            if batch[0] is None:
                break
            self._step([each for each in batch if each is not None], uploads)
        self._end(uploads)
        return self.rows

    def _step(self, batch: Sequence[Batch], uploads: bool) -> None:
        x = torch.stack([x for x, _ in batch]).to(self._accelerator)
        y = torch.stack([y for _, y in batch]).to(self._accelerator)
        count = y.shape[1]
        weights = {f"model.{name}": value for name, value in self._all().items()}
        z, losses = vmap(self._call)(weights, x, y)
        self._optimizer.zero_grad()
        torch.autograd.backward(losses.sum())
        self._optimizer.step()
        values = losses.detach().cpu().double()
        features = z.detach().cpu() if uploads else None
        self._hand_out(batch, values, features, count)

    def _call(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = functional_call(self._half, weights, (x, y))
        return out

    def _hand_out(self, batch: Sequence[Batch], losses: Tensor, features: Tensor | None, count: int) -> None:
        """A row ends when its loss is not finite, as its device would, after the upload of that batch."""
        for index, row in enumerate(self.rows):
            if index in self._gone:
                continue
            if features is not None:
                tensors = {"features": features[index], "labels": batch[index][1]}
                row.add((count,), Outgoing(tensors, samples=count))
            if not math.isfinite(losses[index]):
                where = f"batch {self._steps} on device {self._assignments[index].device!r}"
                text = f"training diverged: the loss of {where} is {float(losses[index])}"
                row.add((), DivergedError(text, hint="lower optimizer.lr"))
                self._gone.add(index)
        self._loss += losses * count
        self._samples += count
        self._steps += 1
        self._drawn.append(count)

    def _end(self, uploads: bool) -> None:
        whole = {name: value.detach().cpu() for name, value in self._all().items()}
        drawn = () if uploads else tuple(self._drawn)
        for index, row in enumerate(self.rows):
            weights = {name: whole[name][index].clone() for name in self._names}
            loss = float(self._loss[index]) / max(1, self._samples)
            if index not in self._gone:
                row.add(drawn, Trained(weights, loss=loss, batches=self._steps))
