"""The seams carry methods that are not here yet: groups with gradients back (S²FL), frozen fronts (FedPMT)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from edgebed.methods.base import Batch, Context, Contribution, DeviceView, Method, Plan, Schedule, ServerHalf, assign
from edgebed.methods.halves import make_optimizer
from edgebed.methods.merging import merge_by_name
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment, Optimizer
from tests.contract.rounds import COSTS, SCHEDULE, batches_of, play, shard, small_model, view

CUTS = {"a": 1, "b": 2}
SGD = Optimizer("sgd", 0.05)


class GroupHalf(ServerHalf):
    """One copy for a group; features enter at their own cut; losses are summed (methods.md §2)."""

    def __init__(self, model: StagedModel, weights: Weights, assignments: Mapping[str, Assignment]) -> None:
        self.devices = tuple(assignments)
        self.cuts = {device: each.stages for device, each in assignments.items()}
        self.model = copy.deepcopy(model)
        self.model.load(weights)
        self.start = min(self.cuts.values())
        upper = self.model.upper(self.start).train()
        self.optimizer = make_optimizer(upper.parameters(), next(iter(assignments.values())).optimizer)

    def step(self, uploads: Mapping[str, Weights]) -> Mapping[str, Weights]:
        leaves: dict[str, Tensor] = {}
        losses = []
        for device, tensors in sorted(uploads.items()):
            z = leaves[device] = tensors["features"].detach().requires_grad_()
            losses.append(nn.functional.cross_entropy(self.model.upper(self.cuts[device])(z), tensors["labels"]))
        self.optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        self.optimizer.step()
        return {device: {"gradient": leaf.grad} for device, leaf in leaves.items() if leaf.grad is not None}

    def weights(self) -> Weights:
        state = self.model.weights()
        return {name: state[name].clone() for name in self.model.names_above(self.start)}


class Grouped(Method):
    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        schedule = msgspec.structs.replace(schedule, optimizer=SGD)
        return Plan(
            {
                d.name: assign(
                    self.context,
                    d,
                    schedule,
                    round,
                    stages=CUTS[d.name],
                    objective="server",
                    uploads=("features", "weights"),
                )
                for d in devices
            }
        )

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        return [GroupHalf(self.context.model, weights, assignments)]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        return merge_by_name(weights, contributions, "samples")


class FrozenFront(Method):
    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        """Each device trains another number of the last stages."""
        return Plan(
            {
                d.name: assign(
                    self.context,
                    d,
                    schedule,
                    round,
                    stages=4,
                    objective="output",
                    uploads=("weights",),
                    train_from=1 + i,
                )
                for i, d in enumerate(devices)
            }
        )

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        return merge_by_name(weights, contributions, "uniform")


def ready(method: Method) -> Method:
    method.setup(Context({"name": "small"}, small_model(), COSTS, server_slots=1))
    return method


def plain_group(batches: Mapping[str, list[Batch]]) -> Mapping[str, Mapping[str, Tensor]]:
    """S²FL's group step in plain torch: device parts of their own, one shared upper part; by part its weights."""
    lower = {d: copy.deepcopy(small_model().lower(cut)).train() for d, cut in CUTS.items()}
    shared = small_model()
    shared.train()
    upper_optimizer = torch.optim.SGD(shared.upper(1).parameters(), lr=0.05)
    optimizers = {d: torch.optim.SGD(part.parameters(), lr=0.05) for d, part in lower.items()}
    for step in range(max(len(each) for each in batches.values())):
        going = [d for d in sorted(batches) if step < len(batches[d])]
        for optimizer in [upper_optimizer, *(optimizers[d] for d in going)]:
            optimizer.zero_grad()
        losses = []
        for d in going:
            x, y = batches[d][step]
            losses.append(nn.functional.cross_entropy(shared.upper(CUTS[d])(lower[d](x)), y))
        torch.stack(losses).sum().backward()
        for optimizer in [upper_optimizer, *(optimizers[d] for d in going)]:
            optimizer.step()
    return {"shared": shared.state_dict(), **{d: part.state_dict() for d, part in lower.items()}}


async def test_a_group_of_two_cuts_equals_plain_torch_and_ends_with_the_longer_device() -> None:
    method, sizes = ready(Grouped()), {"a": 10, "b": 5}
    merged = await play(method, small_model().weights(), sizes, range(1), order=2)
    assignments = method.plan(0, [view(d, n) for d, n in sizes.items()], SCHEDULE).assignments
    plain = plain_group({d: list(batches_of(shard(d, n), assignments[d])) for d, n in sizes.items()})
    assert torch.equal(merged["md3.conv.weight"], plain["shared"]["md3.conv.weight"])
    # stage 1 is held by both devices, stage 2 by b and by a's server copy
    for name, other in (("md1.conv.weight", plain["a"]), ("md2.conv.weight", plain["shared"])):
        expected = (10 * other[name].double() + 5 * plain["b"][name].double()) / 15
        assert torch.allclose(merged[name].double(), expected, atol=1e-6)


async def test_a_group_survives_a_lost_device() -> None:
    merged = await play(ready(Grouped()), small_model().weights(), {"a": 10, "b": 5}, range(2), lost=("a",))
    assert all(bool(torch.isfinite(value).all()) for value in merged.values())


async def test_stages_are_merged_over_those_who_trained_them_and_the_front_stays() -> None:
    before = small_model().weights()
    merged = await play(ready(FrozenFront()), before, {"a": 10, "b": 10}, range(1))
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], merged[name])}
    assert changed == {"md2", "md3", "md4"}
    alone = await play(ready(FrozenFront()), before, {"a": 10}, range(1))
    assert all(torch.equal(alone[name], merged[name]) for name in before if name.startswith("md2."))
