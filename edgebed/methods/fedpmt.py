"""FedPMT: slow devices train the last layers only (Wu, Wang and Narayana 2023, algorithm 1; papers.md §3). Pure.

Every device holds the whole model and runs it forward; on a device of width i of |I|, back-propagation stops before
the |I| - i first stages (mask Ξ_i), which stay as they are to the bit and are not uploaded. The widest mask trains all,
every mask the classifier. Per layer the server takes the mean over the devices that trained it (eq. 7).

Option I (`chooser: server`): the server picks the mask. Option II (`chooser: device`): the server sends all masks and
what each asks of a device, the device picks by its own CPUs and reports which. Who gets which is not the paper's rule
but `edgebed.methods.parts.capacity`'s **[ours]**; with `levels` it is the paper's own assignment (§V-B).

The deadline of a round is `training.deadline_s`, as for every method; give it here as well, and masks are picked to
keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import (
    Batch,
    Context,
    Contribution,
    DeviceView,
    Method,
    Outcome,
    Plan,
    Schedule,
    assign,
    device_half,
    trained_names,
)
from edgebed.methods.parts.aggregation import Aggregate, merge_by_name
from edgebed.methods.parts.capacity import Powers, asked_cpus, checked_levels, fit, largest_within
from edgebed.methods.parts.device_sampling import Draw
from edgebed.methods.parts.local_training import Half, output_half
from edgebed.models.costs import partial_costs, size_bytes
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Masks(msgspec.Struct, frozen=True):
    """What option II sends: the masks from the narrowest on, and the CPUs that each asks for."""

    train_from: tuple[int, ...]
    cpus: tuple[float, ...]

    def pick(self, cpus: float) -> int:
        """The widest mask that `cpus` are enough for."""
        return self.train_from[largest_within(cpus, self.cpus)]


def with_mask(assignment: Assignment) -> Assignment:
    """Option II: `output` with the mask that the device picks."""
    chosen = msgspec.convert(assignment.options["masks"], Masks).pick(assignment.cpus)
    return msgspec.structs.replace(assignment, objective="output", train_from=chosen, options={})


@device_half("partial", head=False, resolve=with_mask)
def partial_half(model: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
    """What `with_mask` makes of it; a note tells which mask."""
    work = with_mask(assignment)
    trained = yield from output_half(model, work, batches)
    return msgspec.structs.replace(trained, notes={"train_from": float(work.train_from)})


class FedPmt(Method):
    name = "fedpmt"
    remembers = "powers"
    variants = ({"chooser": "device"}, {"deadline_s": 2.0})

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`widths` is |I|, by default the number of stages; `chooser`: option I or II; `costs` and `levels`: one per
        width from the narrowest on, the cost relative to the widest (by default counted operations) and the share of
        the fastest device's CPUs that a width asks for; `deadline_s`: what masks are picked to keep; `draw`: in
        each round equally many devices of every compute level, as in the paper (§V-B), or any at random."""

        widths: Annotated[int, msgspec.Meta(ge=1)] | None = None
        chooser: Literal["server", "device"] = "server"
        costs: tuple[Share, ...] = ()
        levels: tuple[Share, ...] = ()
        deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
        draw: Draw = "levels"
        aggregate: Aggregate = "uniform"

    options: Options

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.masks = masks_of(context.model, self.options.widths)
        self.costs = self._costs()
        self.levels = checked_levels(self.options.levels, len(self.masks))
        self.traffic = self._traffic()
        self.powers = Powers()

    def _costs(self) -> list[float]:
        given = self.options.costs
        if given and (len(given) != len(self.masks) or list(given) != sorted(given)):
            raise UsageError(
                f"costs {list(given)} for {len(self.masks)} widths", hint=f"give {len(self.masks)} increasing costs"
            )
        return list(given) or partial_costs(self.context.model, self.masks)

    def _traffic(self) -> list[int]:
        """Bytes of a round by mask: the whole model down, the trained stages up."""
        model = self.context.model
        weights = model.weights()
        parts = [model.names_below(cut, head=False) for cut in (len(model), *self.masks)]
        whole, *frozen = [size_bytes({name: weights[name] for name in names}) for names in parts]
        return [2 * whole - left for left in frozen]

    # ---- a round ----

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        self.powers.meet(devices)
        return super().draw(round, devices, share, seed)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        self.powers.meet(devices)
        fitted = fit(
            devices,
            schedule,
            self.costs,
            self.traffic,
            self.powers,
            levels=self.levels,
            deadline_s=self.options.deadline_s,
        )
        chosen = {name: self.masks[size] for name, size in fitted.sizes.items()}
        by_device = self.options.chooser == "device"
        options: dict[str, object] = {"masks": msgspec.to_builtins(self._offer())} if by_device else {}
        bound_s = fitted.bound_s if fitted.measured else None
        notes: dict[str, object] = {"train_from": {} if by_device else chosen, "bound_s": bound_s}
        return Plan(
            {
                device.name: assign(
                    self.context,
                    device,
                    schedule,
                    round,
                    stages=len(self.context.model),
                    objective="partial" if by_device else "output",
                    uploads=("weights",),
                    train_from=0 if by_device else chosen[device.name],
                    options=options,
                )
                for device in devices
            },
            {} if by_device else fitted.predicted_s(),
            notes,
        )

    def _offer(self) -> Masks:
        """Option II: all masks, with the CPUs each asks for by what the fleet declares."""
        return Masks(self.masks, tuple(asked_cpus(self.costs, self.levels, self.powers.cpus.values())))

    def update_names(self, assignment: Assignment, notes: Mapping[str, float]) -> list[str]:
        """The stages that were trained: as planned, or as the device says (option II)."""
        if "masks" not in assignment.options:
            return super().update_names(assignment, notes)
        used = notes.get("train_from", -1.0)
        if used not in self.masks:
            raise RunError(
                f"device {assignment.device!r} trained from stage {used:g}, which is no mask it was offered",
                hint="run the same version of Edgebed on device and orchestrator",
            )
        return trained_names(self.context.model, msgspec.structs.replace(assignment, train_from=int(used)))

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """Eq. 7: w_l + Σ_k (w_k,l - w_l) / |{k that trained l}|; what nobody trained stays."""
        return merge_by_name(weights, contributions, self.options.aggregate)

    # ---- what it learns ----

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        self.powers.observe(outcomes, self._size, self.traffic)

    def _size(self, outcome: Outcome) -> int:
        assignment = outcome.assignment
        chosen = "masks" in assignment.options  # by the device; `update_names` has looked at it
        return self.masks.index(int(outcome.report.notes["train_from"]) if chosen else assignment.train_from)


def masks_of(model: StagedModel, widths: int | None) -> tuple[int, ...]:
    """`train_from` of the |I| masks, the narrowest first: |I| - 1, …, 0. Raises UsageError for more than stages."""
    count = widths or len(model)
    if count > len(model):
        raise UsageError(f"{count} widths of a model with {len(model)} stages", hint=f"choose 1..{len(model)}")
    return tuple(reversed(range(count)))
