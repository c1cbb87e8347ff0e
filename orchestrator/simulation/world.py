"""What a checkpoint of a simulated run holds besides weights and progress, so that the run goes on to the same bits:
the virtual clock, the devices, the scenario, and the laws that were measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec

from edgebed.models.staged import Weights
from orchestrator.references.work_laws import Laws, WorkLaws
from orchestrator.rounds.scenario_player import PlayerState, ScenarioPlayer
from orchestrator.rounds.world import World
from orchestrator.simulation.fleet import FleetState, SimulatedFleet
from orchestrator.simulation.virtual import VirtualLoop

CHEAP = 0.05
"""Share of the wall time that checkpoints may take where no interval is given."""


class WorldState(msgspec.Struct, frozen=True):
    """At a time of the virtual clock. `records`: bytes of the records until then."""

    now_s: Annotated[float, msgspec.Meta(ge=0, lt=9e9)]
    records: int
    fleet: FleetState
    player: PlayerState | None
    laws: Laws


class SimulatedWorld(World):
    """The world of one simulated run.

    Args:
        laws: that are measured during the run; None: nothing is.
        every_s: least seconds of wall time between two checkpoints. None: as many as keep them cheap.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        fleet: SimulatedFleet,
        laws: WorkLaws | None,
        every_s: float | None = None,
    ) -> None:
        self._loop, self._fleet, self._laws, self._every_s = loop, fleet, laws, every_s
        self._saved: WorldState | None = None
        self._records: Callable[[], int] = int
        self._player: ScenarioPlayer | None = None
        self._next_s = 0.0  # of the machine's clock

    def due(self) -> bool:
        return time.monotonic() >= self._next_s

    def wrote(self, seconds: float) -> None:
        """A checkpoint was written in so many seconds of wall time."""
        self._next_s = time.monotonic() + (seconds / CHEAP if self._every_s is None else self._every_s)

    def open(self, records: Callable[[], int], player: ScenarioPlayer | None) -> None:
        self._records, self._player = records, player
        if player is not None and self._saved is not None and self._saved.player is not None:
            player.restore(self._saved.player)

    async def settle(self, devices: Collection[str] | None = None) -> None:
        await self._fleet.settle(devices)

    def state(self, devices: Collection[str] | None = None) -> dict[str, Any]:
        state = WorldState(
            self.now_s(),
            self._records(),
            self._fleet.state(devices),
            None if self._player is None else self._player.state(),
            Laws() if self._laws is None else self._laws.laws(),
        )
        found: dict[str, Any] = msgspec.to_builtins(state)
        return found

    def put_states(self, run: str, states: Mapping[str, tuple[str, Weights]]) -> None:
        self._fleet.put_states(run, states)

    async def reach(self, state: Mapping[str, Any] | None = None) -> None:
        reached = self._saved if state is None else msgspec.convert(state, WorldState)
        assert reached is not None
        await self._loop.until(reached.now_s)
        self._fleet.again(reached.fleet)

    async def until(self, at_s: float) -> None:
        await self._loop.until(at_s)

    def restore(self, saved: Mapping[str, Any]) -> None:
        lanes = saved.get("lanes", {})
        self._saved = last = msgspec.convert(saved, WorldState)
        in_hand = [msgspec.convert(each["world"], WorldState) for each in lanes.get("in_hand", {}).values()]
        first = min([last, *in_hand], key=lambda state: (state.now_s, state.records))
        testing = lanes.get("testing")
        self.first_record = first.records
        self._loop.start_at(min(first.now_s, testing["start_s"]) if testing else first.now_s)
        self._fleet.restore(first.fleet, [state.fleet for state in (last, *in_hand)])
        if self._laws is not None:
            self._laws.learn(last.laws)
