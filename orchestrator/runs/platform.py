"""What carries a run out: a real fleet with the trainer's process, or a simulated one on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import torch

from edgebed.methods.base import Batch, CutCost
from edgebed.models.staged import StagedModel
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.fleet.control.run_fleet import RunFleet
from orchestrator.records.types import Record
from orchestrator.rounds.event_loop import in_thread
from orchestrator.rounds.interfaces import Evaluator
from orchestrator.rounds.world import World
from orchestrator.training.costs import profile_cuts
from orchestrator.training.server import HalfTrainer

T = TypeVar("T")
Write = Callable[[Record], None]


def no_costs(model: StagedModel) -> dict[int, CutCost]:
    """For `Platform.known_costs`: no costs are known."""
    return {}


def plain(write: Write) -> Write:
    """For `Platform.recording`: records are written as they come."""
    return write


class Guard(Protocol):
    """Awaits work, and ends it with an error if what it needs fails meanwhile."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]: ...


async def unguarded(work: Coroutine[Any, Any, T]) -> T:
    """For `Platform.guard`: nothing that the rounds need can fail."""
    return await work


class Profile(Protocol):
    """Measures what each cut of a model costs, as `training.costs.profile_cuts` does."""

    async def __call__(
        self, model: StagedModel, cuts: Sequence[int], batch_size: int, codec: Codec, optimizer: Optimizer, batch: Batch
    ) -> dict[int, CutCost]: ...


def profile_here(accelerator: torch.device) -> Profile:
    """Profiles in this process."""

    async def profile(
        model: StagedModel, cuts: Sequence[int], batch_size: int, codec: Codec, optimizer: Optimizer, batch: Batch
    ) -> dict[int, CutCost]:
        return await in_thread(
            "profiling", profile_cuts, model, cuts, batch_size, codec, optimizer, accelerator, batch=batch
        )

    return profile


class Platform(msgspec.Struct, frozen=True):
    """What carries a run out: real devices and a trainer's process, or simulated ones on a virtual clock.

    Attributes:
        make_trainer: makes a server trainer for one round at a time.
        evaluator: tests the merged weights.
        profile: measures the costs of the model's cuts, where `known_costs` gives none.
        held_server_cpus: quota of the server as read back; None: nothing is in force.
        guard: awaits every step of the run.
        server_slots: server halves that train at once, as the method is told.
        calibrated: whether measurements show that the times of the run are those of its limits.
        host: what the run's first record says of the host.
        known_costs: gives the costs of the model's cuts; {}: they are to be measured.
        recording: gives the function that the run writes its records with, from the one that appends to the file.
        mark: stands in the run's id, after the method's name.
        world: what checkpoints hold of it.
    """

    fleet: RunFleet
    make_trainer: Callable[[], HalfTrainer]
    evaluator: Evaluator
    profile: Profile
    server_slots: int
    calibrated: bool
    host: Mapping[str, str]
    held_server_cpus: float | None = None
    guard: Guard = unguarded
    known_costs: Callable[[StagedModel], dict[int, CutCost]] = no_costs
    recording: Callable[[Write], Write] = plain
    mark: str = ""
    world: World = msgspec.field(default_factory=World)
