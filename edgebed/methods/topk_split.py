"""SplitFed with sparse features: of each sample the k largest go up, and what was left out is added the next time
(top-k split learning, Zheng et al. 2023, without its random choice; error feedback, Stich et al. 2018). Pure.

v = z + e of the sample; the k entries of v with the largest |v| go up, the others are the sample's new e. The gradient
comes back at the k places alone; elsewhere it is 0. With k = all this is SplitFed, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
import torch
from torch import Tensor

from edgebed.errors import EdgebedError, RunError
from edgebed.methods.base import (
    Batch,
    Context,
    DeviceView,
    Outgoing,
    Plan,
    Replies,
    Schedule,
    ServerHalf,
    Stream,
    device_half,
)
from edgebed.methods.parts.distillation import row_bounds, rows_of, samples_of
from edgebed.methods.parts.local_training import DevicePart, Half, UpperHalf
from edgebed.methods.splitfed import SplitFed
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment


@device_half("topk", head=False)
def topk_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """As the objective `server`. What was left out, (samples of the shard, *features), is the device state."""
    part, bounds = DevicePart(model, assignment), row_bounds(assignment)
    k = msgspec.convert(assignment.options["k"], int)
    left_out = model.kept.get("left_out")
    for number, (x, y) in enumerate(batches):
        z = part.forward(x)
        if left_out is None:
            left_out = z.new_zeros(samples_of(assignment), *z.shape[1:])
        epoch, place = divmod(number, len(bounds))
        start, _ = bounds[place]
        rows = rows_of(assignment, epoch, (start, start + len(y)))
        v = part.guard.upload(z.detach() + left_out[rows]).flatten(1)
        places = v.abs().topk(k).indices.sort().values
        reply = yield Outgoing(
            {"values": v.gather(1, places), "places": places.int(), "labels": y}, samples=len(y), wait=True
        )
        left_out[rows] = part.guard.returned(v.scatter(1, places, 0.0).reshape(z.shape))
        gradient = torch.zeros_like(v).scatter(1, places, (reply or {})["gradient"].to(v))
        part.backward(x, z, part.guard.returned(gradient.reshape(z.shape)))
    return msgspec.structs.replace(part.trained(), state={} if left_out is None else {"left_out": left_out})


class SparseUpper(UpperHalf):
    """The server's copy for one device, which sends values (B, k) and their places (B, k) among a sample's features."""

    def step(self, uploads: Mapping[str, Weights]) -> Replies:
        upload = uploads[self.device]
        places = upload["places"].long()
        features = dense(upload["values"], places, self.shape)
        reply = super().step({self.device: {"features": features, "labels": upload["labels"]}})[self.device]
        assert not isinstance(reply, EdgebedError)
        return {self.device: {"gradient": reply["gradient"].flatten(1).gather(1, places)}}


def dense(values: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Features (B, *shape), 0 at all other places. Raises RunError where places do not increase, or are none of
    these."""
    size = math.prod(shape)
    if places.numel() and not (places.min() >= 0 and places.max() < size and (places.diff() > 0).all()):
        raise RunError(f"places of features are not increasing numbers of 0..{size - 1}")
    return values.new_zeros(len(values), size).scatter(1, places, values).reshape(len(values), *shape)


class TopkSplit(SplitFed):
    """**[ours]** A device that lost what it had left out begins again with zeros: the server has no copy of it. With
    patches that are shuffled, it is kept in the order of the device's own features."""

    name = "topk-split"
    keeps_state = True
    variants = ({"share": 1.0},)

    class Options(SplitFed.Options, frozen=True, forbid_unknown_fields=True):
        """`cut`: stages on the device; `share`: k ÷ the entries of a sample's features."""

        share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1

    options: Options

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.k = math.ceil(self.options.share * math.prod(context.model.feature_shape(self.options.cut)))

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        assignments = super().plan(round, devices, schedule).assignments
        return Plan(
            {
                device.name: msgspec.structs.replace(
                    assignments[device.name], objective="topk", options={"k": self.k, "samples": device.samples}
                )
                for device in devices
            }
        )

    def streams(self, assignment: Assignment) -> dict[str, Stream]:
        labels = super().streams(assignment)["labels"]
        sparse = {"values": Stream((self.k,), torch.float32), "places": Stream((self.k,), torch.int32)}
        return {**sparse, "labels": labels}

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        return [
            SparseUpper(self.context.model, weights, each, accelerator, gradient=True) for each in assignments.values()
        ]
