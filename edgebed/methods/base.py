"""What a method is: a plan, two halves and a merge (docs/method-interface.md). Pure: no I/O, no clock.

A method file derives from `Method` and reads like its paper. The device half is chosen by the assignment's `objective`
from `HALVES`, so an agent knows objectives and no method; a method that needs a half of its own registers it in its
file with `@device_half("name")`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import torch
from torch import Tensor

from edgebed import methods as _package
from edgebed.errors import EdgebedError, PluginError
from edgebed.methods.parts.device_sampling import DRAWS
from edgebed.methods.parts.evaluation import Score, evaluate
from edgebed.methods.parts.exchange import WORTHS, Worth
from edgebed.methods.parts.exchange import Contribution as Contribution
from edgebed.methods.parts.exchange import Outcome as Outcome
from edgebed.methods.parts.exchange import Outgoing as Outgoing
from edgebed.methods.parts.exchange import Stream as Stream
from edgebed.methods.parts.exchange import Trained as Trained
from edgebed.models.learning import Batch as Batch
from edgebed.models.learning import task_at
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import slice_weights, width_groups
from edgebed.plugins import Plugin, Registry
from edgebed.wire.messages import Assignment, Report
from edgebed.wire.order import assignment_seed
from edgebed.wire.settings import Augment, Codec, Optimizer

# ---- what a plan is made from ----


class Schedule(msgspec.Struct, frozen=True):
    """The local schedule of a round, the same for every device unless the method says otherwise."""

    batch_size: int
    epochs: int
    max_batches: int
    optimizer: Optimizer  # lr as the plateau rule has it now
    codec: Codec
    seed: int  # of the run; an assignment's seed is derived with `assignment_seed`
    augment: Augment = Augment()


class DeviceView(msgspec.Struct, frozen=True):
    """What the orchestrator knows of a device when it plans. Limits are those in force (after dilation)."""

    name: str
    samples: int
    cpus: float
    uplink_bit_s: int
    downlink_bit_s: int
    memory_bytes: int = 0  # 0: not known
    labels: tuple[int, ...] = ()  # samples per class of its shard; () where nobody knows


class CutCost(msgspec.Struct, frozen=True):
    """Measured cost of one cut with one standard batch (papers.md §1.1)."""

    cut: int
    model_bytes: int  # D_model(m): device stages and head, as sent in each round: what is trained of them
    feature_bytes: int  # D_feat(m): features and labels of a batch, as sent with the run's codec
    device_s: float  # T^cp(m): reference seconds per batch, device half
    server_s: float  # T^sp(m): reference seconds per batch, server half


class Context(msgspec.Struct, frozen=True):
    """What stays the same during a run."""

    model_spec: dict[str, object]
    model: StagedModel
    costs: Mapping[int, CutCost]  # by cut; empty for a method whose `needs_costs` is false
    server_slots: int  # server halves that can really run at once
    devices: tuple[str, ...] = ()  # of the fleet in its order, present or not; empty where nobody knows
    rounds: int = 0  # of the run; 0 where nobody knows


class Plan(msgspec.Struct, frozen=True):
    """One assignment per device that takes part, and the seconds each is predicted to take (may be empty)."""

    assignments: dict[str, Assignment]
    predicted_s: dict[str, float] = {}
    notes: dict[str, object] = {}  # e.g. DTFL's estimates per tier; recorded, not read
    enough: int | None = None  # the round ends when so many are done; None: when all are


Replies = Mapping[str, Weights | EdgebedError]
"""Of one step of a server half, by device: tensors ({} where the device does not wait), or why nothing of its upload
could be used."""


# ---- halves ----


DeviceHalf = Callable[[StagedModel, Assignment, Iterable[Batch]], Generator[Outgoing, Weights | None, Trained]]
"""Trains the device's stages of `model` in place over the batches of one task. Does no I/O: it yields uploads and is
resumed with the reply's tensors, or with None. To measure what it costs, it is run on two batches of any size, with
nothing in `model.given` and `model.kept`."""

HALVES: dict[str, DeviceHalf] = {}

STREAMED = frozenset({"features", "logits"})  # what `Assignment.uploads` may name of what goes up within batches

HEADLESS: set[str] = set()  # objectives that train no auxiliary head

Resolve = Callable[[Assignment], Assignment]
"""From an assignment as the device has it (`cpus` and `privacy` filled in) to the work that it really does."""

RESOLVES: dict[str, Resolve] = {}  # of objectives that leave a choice to the device


def device_half(
    objective: str, *, head: bool, resolve: Resolve | None = None, worth: Worth | None = None
) -> Callable[[DeviceHalf], DeviceHalf]:
    """Register a device half under the objective that assignments name. `head`: it trains the head at its cut.
    `resolve`, where the half leaves a choice to the device, or costs what another does: the assignment of the work that
    it is charged as. `worth`, where batches do not all cost alike."""

    def register(half: DeviceHalf) -> DeviceHalf:
        if (other := HALVES.get(objective, half).__module__) != half.__module__:
            why = f"two device halves are called {objective!r}: those of {other} and {half.__module__}"
            raise PluginError(why, hint="give one of them another objective")
        HALVES[objective] = half
        if not head:
            HEADLESS.add(objective)
        if resolve is not None:
            RESOLVES[objective] = resolve
        if worth is not None:
            WORTHS[objective] = worth
        return half

    return register


def real_work(assignment: Assignment) -> Assignment:
    """The work that a device does with this assignment, whose `cpus` are known: what it costs, and what it sends, is
    that of the result. Raises PluginError as `find_half`."""
    find_half(assignment.objective)
    resolve = RESOLVES.get(assignment.objective)
    return assignment if resolve is None else resolve(assignment)


def find_half(objective: str) -> DeviceHalf:
    """The device half of an objective. Reads every method file first, since one may bring a half of its own.

    Raises:
        PluginError: no half is registered under that name.
    """
    METHODS.classes()
    try:
        return HALVES[objective]
    except KeyError:
        raise PluginError(
            f"there is no device half for the objective {objective!r}",
            hint=f"choose one of: {', '.join(sorted(HALVES))}; or run the same version on device and orchestrator",
        ) from None


class ServerHalf:
    """The server's side of one device, of a group, or of all: a copy of the upper stages that trains as uploads arrive.

    `step` gets one upload of every device of the half that is still training (`tensors` on any torch device) and
    returns the replies, by device; {} where the device does not wait. An error instead of a reply says that nothing of
    this device's upload was applied: it leaves the half, the others go on. An error that `step` raises ends the half.
    """

    devices: tuple[str, ...] = ()  # of the half; first those that leave the most stages to it

    def step(self, uploads: Mapping[str, Weights]) -> Replies:
        raise NotImplementedError  # the seam that a method fills

    def worked(self, uploads: Mapping[str, Weights]) -> list[tuple[str, int]]:
        """What the last step, with these uploads, trained on: device and samples of every batch, in the order of
        `devices`; by default every upload once. Costs are charged by it."""
        used = [(device, uploads[device]) for device in self.devices if device in uploads]
        return [(device, max((len(t) for t in tensors.values() if t.ndim), default=0)) for device, tensors in used]

    def weights(self) -> Weights:
        """The trained upper stages by name, on the CPU."""
        raise NotImplementedError  # the seam that a method fills


# ---- the method ----


class Method(Plugin):
    """Base of every method. One instance lives for one run; `observe` feeds it, `state`/`restore` let a run resume."""

    needs_costs = False
    """Whether the cuts must be profiled before the first plan."""

    one_answer = False
    """Whether a sample must have one answer, and not one for each token."""

    keeps_state = False
    """Whether its device halves keep tensors on their devices between tasks (`Trained.state`)."""

    trains_part = False
    """Whether it can train a part of the weights, where the model names one (`edgebed.models.trained_part`)."""

    merges_models = False
    """Whether, where rounds overlap, an update counts as a whole model and not as its difference from `base`."""

    remembers: ClassVar[str] = ""
    """Name of the attribute whose struct is all that the method remembers as plain data."""

    variants: ClassVar[tuple[Mapping[str, object], ...]] = ()
    """Sets of options, beside the default ones, that the contract suite plays as well: one for each way of working that
    an option chooses. They must do on a fleet of one device and of three. Not inherited, for neither are `Options`."""

    def learning(self) -> Mapping[str, object] | str:
        """What the learning of a run follows from beside data, model and schedule, so that runs which differ in their
        times alone may share it; or why it follows from times, in words. Not inherited, for a derived class may plan by
        times."""
        return "its plans may follow measured times"

    def model_spec(self, spec: Mapping[str, object]) -> dict[str, object]:
        """The model of the method's run, from the experiment's `model`: by default as it is there."""
        return dict(spec)

    def setup(self, context: Context) -> None:
        self.context = context

    def check_schedule(self, schedule: Schedule) -> None:
        """Raises UsageError for a schedule that the method cannot work with; called before anything starts."""

    def lanes(self, devices: Sequence[DeviceView]) -> dict[str, list[DeviceView]]:
        """The devices that are present, by lane: rounds of one lane follow one another, lanes go side by side (FedAT).
        By default one lane "" with all.

        Once there is more than one, they stay the same to the end of the run; a lane may have no device for a while.
        `devices` are then those without a round in hand, so that several lanes may offer the same one (FedBuff). An
        `evaluate` of one's own must then read nothing but the weights, for rounds go on beside it.
        """
        return {"": list(devices)}

    def draw(self, round: int, devices: Sequence[DeviceView], share: float, seed: int) -> list[DeviceView]:
        """The devices of a round, of those present: by default `share` of them, drawn as the method's option `draw`
        says, where it has one, else at random (`DRAWS`)."""
        return DRAWS[getattr(self.options, "draw", "random")](devices, share, seed, round)

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        """Assignments for round `round` (0, 1, …) of the devices that were drawn and are present."""
        raise NotImplementedError  # the seam that a method fills

    def follow(self, round: int, devices: Sequence[DeviceView], plan: Plan) -> None:
        """A recorded plan is carried out in place of one's own (`--plan`; `draw` and `plan` are not called): remember
        of it what `plan` would have. `devices`: all that are present. By default nothing."""

    def task_weights(self, weights: Weights, assignment: Assignment) -> Weights:
        """The weights to send down with an assignment: by default those of its device half, as narrow as it is."""
        names = self.context.model.names_below(assignment.stages, head=trains_head(assignment))
        chosen = {name: weights[name] for name in names}
        keep = assignment.keep
        return slice_weights(chosen, width_groups(self.context.model), keep) if keep else chosen

    def state_copy(self, device: str) -> Weights:
        """The server's copy of what this device keeps (`keeps_state`), as of the last merge of its work; sent down
        where the device has lost it. {}: there is none, and the half begins with none."""
        return {}

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        """The server halves of a round; together they name every device whose assignment uploads within batches."""
        return []

    def count_uploads(self, assignment: Assignment, batches: int) -> int:
        """How many uploads a device makes at most within `batches` batches: by default one for each."""
        return batches if STREAMED & set(assignment.uploads) else 0

    def upload_samples(self, sizes: Sequence[int], number: int) -> int:
        """How many samples upload `number` (0, 1, …) holds, where the batches of an epoch hold `sizes`: by default as
        many as the batch of that number."""
        return sizes[number % len(sizes)]

    def streams(self, assignment: Assignment) -> dict[str, Stream]:
        """The tensors of an upload by name: by default features at the cut, labels, and logits where they are sent."""
        model, uploads = self.context.model, assignment.uploads
        wanted = {
            "features": Stream(model.feature_shape(assignment.stages), torch.float32),
            "labels": Stream(model.task.answer_shape, torch.int64),
            "logits": Stream((*model.task.answer_shape, model.classes), torch.float32),
        }
        return {name: stream for name, stream in wanted.items() if name in uploads or name == "labels"}

    def update_names(self, assignment: Assignment, notes: Mapping[str, float]) -> list[str]:
        """Names of the weights that an update must hold; `notes` are those of its report."""
        return trained_names(self.context.model, assignment)

    def extra(self, assignment: Assignment) -> dict[str, Stream]:
        """The tensors that an update holds beside weights (`Trained.extra`), each with its whole shape."""
        return {}

    def decode_update(
        self, assignment: Assignment, report: Report, sent: Weights, update: Weights, extra: Weights
    ) -> Weights:
        """The trained weights from an update with an encoding of its own; by default they are in it as they are. Also
        the place to check what it holds beside them.

        Args:
            sent: the weights that the device began with.
            update: those named by `update_names`, of the shapes in `sent`.
            extra: finite, of the shapes that `extra` says; all else in it may be wrong.

        Raises:
            EdgebedError: it makes no sense; the update is refused.
        """
        return update

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        """The next global weights. `contributions` come in the order of device names, whatever the order of arrival."""
        raise NotImplementedError  # the seam that a method fills

    def observe(self, round: int, outcomes: Sequence[Outcome]) -> None:
        """Measured results of a round. A device that failed is not among them and keeps its last estimate."""

    def evaluate(self, weights: Weights, x: Tensor, y: Tensor, accelerator: torch.device) -> Score:
        """How good the global weights are on the test set: x (N, *input_shape), y (N, *answer_shape)."""
        return evaluate(self.context.model, weights, x, y, accelerator)

    def final(
        self,
        weights: Weights,
        validation: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        accelerator: torch.device,
    ) -> Score:
        """How good the last weights are on the test set, x and y as in `evaluate`; asked once, at the end of a run that
        evaluated its rounds on a validation part. What is chosen beside the weights is chosen on that."""
        return self.evaluate(weights, *test, accelerator)

    def state(self) -> dict[str, Any]:
        """What the method remembers, as plain data; saved with every checkpoint."""
        state: dict[str, Any] = msgspec.to_builtins(getattr(self, self.remembers, {}), str_keys=True)
        return state

    def tensors(self) -> Weights:
        """What the method remembers as tensors (moments of a server optimizer, models of tiers), by any names."""
        return {}

    def restore(self, state: Mapping[str, Any], tensors: Weights) -> None:
        """Take back what `state` and `tensors` gave."""
        if self.remembers:
            kind = type(getattr(self, self.remembers))
            setattr(self, self.remembers, msgspec.convert(state, kind, strict=False))


def trained_names(model: StagedModel, assignment: Assignment) -> list[str]:
    """Names of the weights an update of this assignment holds: what is trained of its stages, and of a head."""
    frozen = {*model.frozen, *model.names_below(assignment.train_from, head=False)}
    below = model.names_below(assignment.stages, head=trains_head(assignment))
    return [name for name in below if name not in frozen]


def trains_head(assignment: Assignment) -> bool:
    return assignment.objective not in HEADLESS


def assign(
    context: Context,
    device: DeviceView,
    schedule: Schedule,
    round: int,
    *,
    stages: int,
    objective: str,
    uploads: tuple[str, ...],
    train_from: int = 0,
    options: dict[str, object] | None = None,
    hold: bool = False,
) -> Assignment:
    """One device's assignment in `round` with the run's model and the round's schedule."""
    local = {**msgspec.structs.asdict(schedule), "seed": assignment_seed(schedule.seed, device.name, round)}
    local |= {"train_from": train_from, "uploads": uploads, "options": options or {}, "hold": hold}
    return task_at(device.name, context.model_spec, context.model.task, stages, objective, **local)


METHODS: Registry[Method] = Registry(_package, Method, "method")
