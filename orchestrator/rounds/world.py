"""What checkpoints of a run depend on besides its rounds: when one is due, and what it holds of devices and clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from edgebed.models.staged import Weights
from orchestrator.rounds.scenario_player import ScenarioPlayer


class World:
    """That of a real run: a checkpoint after every round. Devices and clock go on when the orchestrator does not, so
    nothing of them is saved.

    Attributes:
        first_record: bytes of its records that were written before the oldest round in hand.
    """

    first_record = 0

    def due(self) -> bool:
        """Whether a checkpoint is to be written now; the last one always is."""
        return True

    def wrote(self, seconds: float) -> None:
        """A checkpoint was written in so many seconds of wall time."""

    async def settle(self, devices: Collection[str] | None = None) -> None:
        """Let happen what is due now, and bring devices without a task into a state that a run can go on from.
        `devices`: those of them that are meant. None: all."""

    def state(self, devices: Collection[str] | None = None) -> dict[str, Any]:
        """That state, with the clock and all that goes on. {}: none is kept."""
        return {}

    def open(self, records: Callable[[], int], player: ScenarioPlayer | None) -> None:
        """The run begins or goes on. `records`: gives the bytes of its records so far."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take back `Progress.simulation`. The clock begins where the oldest round in hand does."""

    async def reach(self, state: Mapping[str, Any] | None = None) -> None:
        """Return when the clock is where `state` was given, and devices without a task are as they were then. None: the
        state that `restore` took back."""

    def put_states(self, run: str, states: Mapping[str, tuple[str, Weights]]) -> None:
        """Give the devices their states of a run that goes on: by device the task that made it, and its tensors."""

    def now_s(self) -> float:
        """What the clock shows, for `until`. That of a simulation is finer than the nanoseconds of the records."""
        return asyncio.get_running_loop().time()

    async def until(self, at_s: float) -> None:
        """Return when the clock shows `at_s`."""
        await asyncio.sleep(max(0.0, at_s - self.now_s()))
