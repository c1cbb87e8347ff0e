"""What a run is asked for, and what carries it out: real devices, or simulated ones."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import torch

from edgebed.datasets.shard import sha256_of
from edgebed.methods.base import Batch, Context, CutCost, Method
from edgebed.models.staged import StagedModel
from edgebed.pacing import HOST
from edgebed.wire.messages import Assignment, Cost
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.fleet.control.run_fleet import RunFleet
from orchestrator.records.types import HostIndex, Record
from orchestrator.rounds.evaluator import Evaluator
from orchestrator.rounds.settings import no_costs
from orchestrator.rounds.world import World
from orchestrator.runs.data import Prepared
from orchestrator.runs.folder import Series
from orchestrator.runs.request import ExperimentRequest
from orchestrator.training.costs import profile_cuts
from orchestrator.training.server import HalfTrainer
from orchestrator.training.slot import HeldTo

T = TypeVar("T")
Write = Callable[[Record], None]


class RunRequest(msgspec.Struct, frozen=True):
    """One method of an experiment."""

    whole: ExperimentRequest  # the experiment, with the id of its series
    place: int  # of the method in the experiment's list
    method: Method
    prepared: Prepared
    model: StagedModel  # has the weights that a new run starts from
    interleaved: bool  # its rounds alternate with those of other methods
    # `plan`, `each_piece`: as in `request.Request`
    plan: Path | None = None
    each_piece: bool = False
    simulation: bytes = b""  # the file of that name, for the folder of a simulation

    @property
    def begun(self) -> Path | None:
        """The folder of a run to go on with; None: a new run begins."""
        return self.whole.begun.get(self.place)

    @property
    def series(self) -> Series:
        """The experiment that the run belongs to."""
        whole, wanted = self.whole, self.whole.experiment
        place, sweep = whole.first_place + self.place, wanted.sweep or {}
        path = os.path.abspath(whole.path) if sweep else ""
        weights = "" if wanted.weights is None else sha256_of(whole.path.parent / wanted.weights)
        return Series(whole.series, place, wanted.methods, wanted.all_seeds, sweep, path, wanted.dilation, weights)


def no_cut_costs(model: StagedModel) -> dict[int, CutCost]:
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


async def unprepared(context: Context) -> None:
    """For `Platform.prepare`: nothing is to be done."""


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
        return await asyncio.to_thread(
            profile_cuts, model, cuts, batch_size, codec, optimizer, accelerator, batch=batch
        )

    return profile


class Platform(msgspec.Struct, frozen=True):
    """What carries a run out: real devices and a trainer's process, or simulated ones on a virtual clock."""

    fleet: RunFleet
    make_trainer: Callable[[], HalfTrainer]  # makes a server trainer for one round at a time
    evaluator: Evaluator  # tests the merged weights
    profile: Profile  # measures the costs of the model's cuts, where `known_costs` gives none
    server_slots: int  # server halves that train at once, as the method is told
    calibrated: bool  # whether measurements show that the times of the run are those of its limits
    host: Mapping[str, str]  # what the run's first record says of the host
    held_server_cpus: float | None = None  # quota of the server as read back; None: nothing is in force
    # called with the method's context before the first round
    prepare: Callable[[Context], Awaitable[object]] = unprepared
    guard: Guard = unguarded  # awaits every step of the run
    # gives the costs of the model's cuts; {}: they are to be measured
    known_costs: Callable[[StagedModel], dict[int, CutCost]] = no_cut_costs
    # gives the function that the run writes its records with, from the one that appends to the file
    recording: Callable[[Write], Write] = plain
    mark: str = ""  # stands in the run's id, after the method's name
    # what the pieces of a device's task cost on the reference whose time it keeps
    costs: Callable[[str, Assignment], dict[str, Cost]] = no_costs
    held_server: HeldTo | None = None  # the same of the server; None: it keeps none
    speed: str = HOST  # name of that reference, or `host`
    host_index: Callable[[], HostIndex] | None = None  # measures how fast the host is; None: it does not matter
    world: World = msgspec.field(default_factory=World)  # what checkpoints hold of it
