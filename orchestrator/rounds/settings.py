"""Settings of all rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from edgebed.limits.spec import Limits
from edgebed.methods.base import Schedule
from edgebed.pacing import Earned
from edgebed.wire.messages import Assignment, Cost
from orchestrator.experiment import Training
from orchestrator.rounds.device_states import DeviceStates
from orchestrator.rounds.frozen_base import FrozenBase

QUEUED_UPLOADS = 4
"""Uploads of one device that may wait for its server half. Further ones are acknowledged only when a place is free, so
the device waits."""


def no_costs(device: str, assignment: Assignment) -> dict[str, Cost]:
    """Devices keep no reference's time."""
    return {}


class RoundSettings(msgspec.Struct, frozen=True):
    """Settings of all rounds of a run. Seconds are those of the clock, after dilation.

    Attributes:
        samples: of each device's shard, as the orchestrator cut it; reports must agree with it.
        deadline_s, quorum, liveness_s, ceiling_s: as in `machine.RoundMachine`.
        queued_uploads: of one device that may wait for its server half.
        costs: what the pieces of a device's task cost on the reference whose time it keeps; {}: it keeps none.
        earned, limits: of the devices, for those that keep a reference's time.
        indices: by device, CPU seconds of the reference for one of this host.
        each_piece: records tell the CPU time of every piece of a task, not only the sum.
        max_update_norm: how far an update may be from what its device began with (`aggregation.moved`); None: any way.
        states: which device state the devices hold; rounds add to it. base: the frozen weights, and who keeps them.
    """

    run: str
    samples: Mapping[str, int]
    deadline_s: float | None = None
    quorum: int = 1
    liveness_s: float = 30.0
    ceiling_s: float | None = None
    max_update_norm: float | None = None
    queued_uploads: int = QUEUED_UPLOADS
    costs: Callable[[str, Assignment], dict[str, Cost]] = no_costs
    earned: Mapping[str, Earned] = {}
    limits: Mapping[str, Limits] = {}
    indices: Mapping[str, float] = msgspec.field(default_factory=dict)
    each_piece: bool = False
    states: DeviceStates = msgspec.field(default_factory=DeviceStates)
    base: FrozenBase = msgspec.field(default_factory=FrozenBase)


def schedule_of(training: Training, lr: float) -> Schedule:
    """The local schedule of a round at this learning rate."""
    t, optimizer = training, msgspec.structs.replace(training.optimizer, lr=lr)
    return Schedule(t.batch_size, t.epochs, t.max_batches, optimizer, t.codec, t.seed, t.augment)


def round_settings(run: str, training: Training, dilation: float, samples: Mapping[str, int]) -> RoundSettings:
    """The settings of an experiment. The ceiling is at least the deadline."""
    deadline_s = None if training.deadline_s is None else training.deadline_s * dilation
    return RoundSettings(
        run,
        samples,
        deadline_s,
        training.quorum,
        training.liveness_s * dilation,
        max(training.round_ceiling_s * dilation, deadline_s or 0.0),
        training.max_update_norm,
    )
