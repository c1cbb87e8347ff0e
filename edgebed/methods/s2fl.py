"""S²FL: sliding split federated learning (Yan et al. 2023, algorithms 1 and 2; papers.md §2). Pure.

Each round a device gets, of a few candidate cuts, the one whose round takes it nearest to the median of the client time
table (§3.1), which the first rounds fill, one cut each. The paper's printed seconds and bytes contain no such rounds
(papers.md §2): `warm_up: profile` fills the table with eq. 1 before the first round instead. Devices are grouped so
that their labels together are near to uniform (eq. 2); a group has one server-side copy, which every device's features
enter at its own cut. The losses of a group are summed (eq. 3, 6), the gradients of the features go back, and per layer
the device's weights are averaged where it held the layer, else its group's copy (algorithm 1).

A step really waits for all devices of its group, which eq. 1, the time model of the paper's simulation, leaves out. So
what the table learns is a choice: whole rounds (`times: round`), as the paper's text has it, or the device's own work,
eq. 1 made of measured parts (`times: own`) **[ours]**, as its tables have it; with the first, fast devices look slow
after a round beside a slow one. With one device S²FL is centralised training, to the bit.

Ablations: neither (R), `balance` (B), `sliding` (M), both (MB, the default). A group's step is larger than that of one
device, and there are fewer copies, whatever labels it has. Controls for that **[ours]**: `grouping: random`,
`loss: mean`, another `group`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor, autograd

from edgebed.errors import UsageError
from edgebed.methods.base import (
    Context,
    Contribution,
    CutCost,
    DeviceView,
    Method,
    Outcome,
    Plan,
    Replies,
    Schedule,
    ServerHalf,
    assign,
)
from edgebed.methods.parts.aggregation import merge_by_name
from edgebed.methods.parts.device_sampling import draw_share
from edgebed.methods.parts.label_groups import group_by_labels, random_groups
from edgebed.methods.parts.local_training import checked_loss, checked_upload, make_optimizer
from edgebed.methods.parts.shared_half import checked_half, without_bad
from edgebed.methods.parts.time_table import TimeTable, median_rule
from edgebed.models.costs import cut_costs
from edgebed.models.learning import loss_of
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.trained_part import check_halves, training_mode
from edgebed.wire.messages import Assignment

Cut = Annotated[int, msgspec.Meta(ge=1)]


# ---- the server half of a group ----


class GroupHalf(ServerHalf):
    """One copy of the upper stages for a group, from the shallowest cut of its devices on (algorithm 2, 12-23).

    Args:
        mean: train on the mean of the devices' losses, not on their sum.
    """

    def __init__(
        self,
        model: StagedModel,
        weights: Weights,
        assignments: Mapping[str, Assignment],
        accelerator: torch.device,
        *,
        mean: bool = False,
    ) -> None:
        self.mean = mean
        self.cuts = {device: each.stages for device, each in assignments.items()}
        self.devices = tuple(sorted(assignments, key=lambda device: (self.cuts[device], device)))
        self.start = self.cuts[self.devices[0]]
        self.shapes = {cut: model.feature_shape(cut) for cut in set(self.cuts.values())}
        self.accelerator, self.task = accelerator, model.task
        self.upper = copy.deepcopy(model.upper(self.start))
        self.upper.load_state_dict({name: weights[name] for name in self.upper.state_dict()})
        training_mode(self.upper.to(accelerator), model.frozen)
        self.trained = [name for name in self.upper.state_dict() if name not in model.frozen]
        self.optimizer = make_optimizer(self.upper.parameters(), assignments[self.devices[0]].optimizer)

    def step(self, uploads: Mapping[str, Weights]) -> Replies:
        leaves, errors = without_bad(self.upper, uploads, self._backward)
        if leaves is None:
            return errors
        self.optimizer.step()
        replies = {device: {"gradient": z.grad.cpu()} for device, z in leaves.items() if z.grad is not None}
        return {**errors, **replies}

    def _backward(self, uploads: Mapping[str, Weights]) -> dict[str, Tensor]:
        """Gradients of the common loss of some devices; their features. Raises EdgebedError where they are no use."""
        leaves: dict[str, Tensor] = {}
        losses = []
        for device in sorted(uploads):
            cut = self.cuts[device]
            features, labels = checked_upload(uploads[device], device, self.shapes[cut], self.task)
            z = leaves[device] = features.detach().to(self.accelerator).requires_grad_()
            loss = loss_of(self.upper[cut - self.start :](z), labels.to(self.accelerator))
            checked_loss(loss, f"the server half of device {device!r}")
            losses.append(loss)
        self.optimizer.zero_grad()
        common = torch.stack(losses)
        autograd.backward(common.mean() if self.mean else common.sum())
        checked_half(self.upper, f"the server half with a batch of {', '.join(map(repr, sorted(uploads)))}")
        return leaves

    def weights(self) -> Weights:
        state = self.upper.state_dict()
        return {name: state[name].detach().cpu().clone() for name in self.trained}


# ---- the method ----


class Memory(msgspec.Struct):
    """What S²FL remembers: the client time table."""

    table: TimeTable = msgspec.field(default_factory=TimeTable)


class S2fl(Method):
    name = "s2fl"
    trains_part = True
    remembers = "memory"
    variants = (
        {"times": "own", "warm_up": "drawn"},
        {"times": "own", "warm_up": "profile"},
        {"sliding": False},
        {"balance": False},
        {"grouping": "random", "loss": "mean", "group": 3},
    )

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`cuts`: candidates, by default the model's split points; `group`: devices per group; `grouping`: by labels,
        or at random; `loss`: what a group trains on, the sum of its devices' losses (eq. 3) or their mean; `warm_up`:
        whether the first rounds train all devices that are present, as in the paper's text (§3.1), or those drawn, or
        profiled costs fill the table and there is no warm-up, as in the paper's figures; `times`: what the table
        holds, whole rounds, or a device's own work without its wait for others."""

        cuts: tuple[Cut, ...] = ()
        group: Annotated[int, msgspec.Meta(ge=1)] = 2
        grouping: Literal["labels", "random"] = "labels"
        loss: Literal["sum", "mean"] = "sum"
        sliding: bool = True
        balance: bool = True
        warm_up: Literal["all", "drawn", "profile"] = "all"
        times: Literal["round", "own"] = "round"

    options: Options

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.needs_costs = self.options.sliding and self.options.warm_up == "profile"

    def learning(self) -> dict[str, object] | str:
        """With one cut and no groups FedAvg's, as SplitFed's."""
        if self.options.sliding:
            return "its cuts follow measured times"
        if not self.options.balance:
            return {"as": "fedavg", "aggregate": "samples"}
        options = self.options
        grouping = {"group": options.group, "grouping": options.grouping, "loss": options.loss}
        return {"as": "s2fl", "cuts": options.cuts, **grouping}

    def setup(self, context: Context) -> None:
        super().setup(context)
        cuts = candidate_cuts(context.model, self.options.cuts)
        self.cuts = cuts if self.options.sliding else cuts[-1:]
        unknown = sorted(set(self.cuts) - set(context.model.cuts_with_head)) if self.needs_costs else []
        if unknown:
            raise UsageError(
                f"warm_up: profile, but cuts {unknown} cannot be profiled: they have no head",
                hint=f"choose cuts of: {', '.join(map(str, context.model.cuts_with_head))}; or warm_up: all",
            )
        check_halves(context.model, self.cuts, head=False)
        self.memory = Memory()
        self._groups: list[tuple[str, ...]] = []  # of this round
        self._counted = cut_costs(context.model)
        self._costs = self._device_costs()

    def _device_costs(self) -> dict[int, float]:
        """Device-side cost by candidate cut: measured where it is, else counted operations."""
        measured = self.context.costs
        if all(cut in measured for cut in self.cuts):
            return {cut: measured[cut].device_s for cut in self.cuts}
        return {cut: float(self._counted[cut - 1]) for cut in self.cuts}

    # ---- a round ----

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        everybody = self.options.warm_up == "all" and self._warming_up(round)
        return draw_share(devices, 1.0 if everybody else share, seed, round)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        names = [device.name for device in devices]
        if self.needs_costs:
            self._profile(devices, schedule)
        rows = {name: self.memory.table.row(name, self._costs) for name in names}
        middle, cuts = self._choose(round, rows)
        groups = self._groups = self._group(round, devices, schedule.seed)
        times_s = {device: {str(cut): seconds for cut, seconds in row.items()} for device, row in rows.items()}
        notes: dict[str, object] = {"cuts": cuts, "median_s": middle, "groups": groups, "times_s": times_s}
        return Plan(
            {
                device.name: assign(
                    self.context,
                    device,
                    schedule,
                    round,
                    stages=cuts[device.name],
                    objective="server",
                    uploads=("features", "weights"),
                )
                for device in devices
            },
            self._predicted(cuts, groups),
            notes,
        )

    def follow(self, round: int, devices: Sequence[DeviceView], plan: Plan) -> None:
        self._groups = msgspec.convert(plan.notes["groups"], list[tuple[str, ...]])

    def _predicted(self, cuts: Mapping[str, int], groups: Sequence[Sequence[str]]) -> dict[str, float]:
        """t[k][s] of those that had the cut before; of own work the longest of the group."""
        times = {device: self.memory.table.measured(device, cut) for device, cut in cuts.items()}
        known = {device: seconds for device, seconds in times.items() if seconds is not None}
        if self.options.times == "round":
            return known
        return {d: max(known[each] for each in group if each in known) for group in groups for d in group if d in known}

    def _profile(self, devices: Sequence[DeviceView], schedule: Schedule) -> None:
        """The first times of devices that are not in the table yet."""
        for device in devices:
            if device.name not in self.memory.table.means:
                for cut in self.cuts:
                    self.memory.table.add(device.name, cut, profiled_seconds(device, schedule, self.context.costs[cut]))

    def _warming_up(self, round: int) -> bool:
        return self.options.sliding and not self.needs_costs and round < len(self.cuts)

    def _choose(self, round: int, rows: Mapping[str, Mapping[int, float]]) -> tuple[float | None, dict[str, int]]:
        """The median, and a cut per device: in turn while warming up, then by the median rule. A device that is first
        met later begins with the shallowest **[ours]**."""
        if self._warming_up(round):
            return None, dict.fromkeys(rows, self.cuts[round])
        if not any(rows.values()):
            return None, dict.fromkeys(rows, self.cuts[0])
        middle, chosen = median_rule(rows)
        return middle, {device: chosen.get(device, self.cuts[0]) for device in rows}

    def _group(self, round: int, devices: Sequence[DeviceView], seed: int) -> list[tuple[str, ...]]:
        """Groups by the labels of this round's devices (algorithm 2, line 10). A device whose labels are not known
        forms a group of its own, as do all while the table is filled with whole rounds, so that each is measured alone
        **[ours]**."""
        alone = not self.options.balance or (self._warming_up(round) and self.options.times == "round")
        unknown = self.context.model.task.per_token  # without a class there is nothing to balance
        if (self.options.grouping == "random" or unknown) and not alone:
            return random_groups([view.name for view in devices], self.options.group, seed, round)
        known = {} if alone else {view.name: view.labels for view in devices if self._usable(view.labels)}
        groups = group_by_labels(known, self.options.group) if known else []
        return sorted([*groups, *((view.name,) for view in devices if view.name not in known)])

    def _usable(self, labels: Sequence[int]) -> bool:
        return len(labels) == self.context.model.classes and min(labels) >= 0 and sum(labels) > 0

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        model, mean = self.context.model, self.options.loss == "mean"
        members = [{device: assignments[device] for device in group} for group in self._groups]
        return [GroupHalf(model, weights, each, accelerator, mean=mean) for each in members]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """Algorithm 1: per layer Σ|D_i|·(device i's where it held the layer, else its group's copy) / Σ|D_i|."""
        return merge_by_name(weights, contributions, "samples")

    # ---- what it learns ----

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        shares = self._server_shares(outcomes) if self.options.times == "own" else {}
        for outcome in outcomes:
            share = shares.get(outcome.device)
            seconds = outcome.seconds if share is None else own_seconds(outcome, share)
            self.memory.table.add(outcome.device, outcome.assignment.stages, seconds)

    def _server_shares(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Each device's share of what its group's server half worked, by counted operations; what a lost device took
        counts for the others of its group."""
        upper = {cut: self._counted[-1] - self._counted[cut - 1] for cut in self.cuts}
        work = {each.device: each.report.samples * upper[each.assignment.stages] for each in outcomes}
        shares = {}
        for group in self._groups:
            total = sum(work.get(device, 0) for device in group)
            shares.update({device: work[device] / total for device in group if device in work})
        return shares


class Sfl(S2fl):
    """SFL, the baseline of the paper: the largest candidate cut for all devices, no data balance (§5)."""

    name = "sfl"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`cuts`: the candidates of S²FL; the last one is used; by default the model's split points."""

        cuts: tuple[Cut, ...] = ()

    def __init__(self, options: Options | None = None) -> None:
        chosen = options or Sfl.Options()
        super().__init__(S2fl.Options(cuts=chosen.cuts, sliding=False, balance=False))

    def learning(self) -> dict[str, object] | str:
        return super().learning()


def own_seconds(outcome: Outcome, server_share: float = 1.0) -> float:
    """Eq. 1 of measured parts: both models and the features over the link, the gradients back at the same speed, and
    the work of the device, and of the server for it.

    Args:
        server_share: the device's share of what the server's half of its group worked.
    """
    report, speed = outcome.report, outcome.link_bytes_s
    gradients = report.upload_bytes / speed if speed > 0 else 0.0
    return outcome.communication_s + gradients + report.compute_s + report.encode_s + server_share * outcome.server_s


def profiled_seconds(device: DeviceView, schedule: Schedule, cost: CutCost) -> float:
    """Eq. 1 before anything was measured: of the profiled costs of a cut and of what the device declares."""
    samples = min(device.samples, schedule.max_batches * schedule.batch_size or device.samples)
    batches = schedule.epochs * samples / schedule.batch_size
    byte_s = 8 / device.uplink_bit_s + 8 / device.downlink_bit_s
    link_s = (cost.model_bytes + batches * cost.feature_bytes) * byte_s
    return link_s + batches * (cost.device_s / device.cpus + cost.server_s)


def candidate_cuts(model: StagedModel, wanted: Sequence[int]) -> tuple[int, ...]:
    """The cuts to choose from: `wanted`, else the model's split points, at most three spread over them **[ours]**.

    Raises:
        UsageError: not increasing, or one that leaves the device or the server no stage.
    """
    points = model.split_points
    spread = {points[place * (len(points) - 1) // 2]: None for place in range(3 if points else 0)}
    chosen = tuple(wanted) or tuple(spread)
    if not chosen or list(chosen) != sorted(set(chosen)) or not all(1 <= cut < len(model) for cut in chosen):
        raise UsageError(
            f"cuts {list(chosen)} of a model with {len(model)} stages",
            hint=f"give increasing cuts in 1..{len(model) - 1}",
        )
    return chosen
