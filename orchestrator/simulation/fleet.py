"""The simulated fleet: the devices of a run on a virtual clock, and the endpoint that the round driver sends to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from edgebed.datasets.shard import Shard
from edgebed.errors import TransferError
from edgebed.link.endpoint import Sent
from edgebed.methods.base import DeviceView
from edgebed.models.staged import Weights
from edgebed.wire.messages import Cancel, Control, Header, Task
from edgebed.wire.piece_times import Phase
from orchestrator.clock import now_ns
from orchestrator.experiment import Grain
from orchestrator.fleet.control.interfaces import Driver
from orchestrator.fleet.control.run_fleet import Applied, ResolveProfile, RunFleet
from orchestrator.fleet.spec.profile import FleetSpec, ProfileSpec, only_rates
from orchestrator.records.types import SIMULATED, ClockOffset, DeviceJoined, DeviceLeft, DevicePhases
from orchestrator.scenario.agenda import Condition
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.device import Leftover, SimulatedDevice
from orchestrator.simulation.pool import HalfPool
from orchestrator.simulation.virtual import VirtualLoop


class Known(msgspec.Struct, frozen=True):
    """A device as the fleet knows it. `profile`: its own."""

    profile: ProfileSpec
    condition: Condition
    incarnation: int
    away: bool
    silent: bool
    built: bool


class Idle(msgspec.Struct, frozen=True):
    """A device between two tasks: its open phase, and what is left of a task."""

    phase: tuple[str, str, int]
    left: Leftover | None = None


class FleetState(msgspec.Struct, frozen=True):
    """All devices by name, and those between two tasks. `beat_s`: when the next heartbeat is due; None: there was none
    yet."""

    known: dict[str, Known]
    idle: dict[str, Idle]
    beat_s: float | None = None


HEARTBEAT_SHARE = 1 / 3
"""Heartbeat period ÷ the silence after which a device counts as lost."""


class SimulatedFleet(RunFleet):
    """Simulated devices by name. It is its own endpoint: what the driver sends goes straight to the devices.

    Args:
        shards: by device.
        liveness_s: silence after which the driver counts a device as lost.
        built: devices whose agents have built their model in an earlier run on the same fleet; added to.
    """

    backend_name = enforcement = SIMULATED

    def __init__(
        self,
        spec: FleetSpec,
        shards: Mapping[str, Shard],
        costs: CostModel,
        halves: HalfPool,
        *,
        dilation: float,
        liveness_s: float,
        resolve: ResolveProfile,
        built: set[str] | None = None,
        grain: Grain = "quota",
    ) -> None:
        super().__init__(spec, dilation, resolve, grain)
        self.endpoint = self
        self.labels = {name: shard.label_counts for name, shard in shards.items()}
        self._halves = halves
        self._incarnations = dict.fromkeys(self.names, 0)
        self._away: set[str] = set()
        self._silent: set[str] = set()  # of those away: their agents run
        self._back = asyncio.Event()
        self._sends: dict[str, set[asyncio.Task[Any]]] = {name: set() for name in self.names}
        self._heartbeat_s = liveness_s * HEARTBEAT_SHARE
        self._heartbeats: asyncio.Task[None] | None = None
        self._beat_s: float | None = None  # when the next one is due
        self._interrupted: dict[str, Idle] = {}  # at the last `settle`
        self._built = set() if built is None else built
        self.devices = {name: self._device(name, shards[name], costs, self._built) for name in self.names}
        for name in self.names:
            self._join(name, again=False)
            self.record(self._limits_set(now_ns(), name, "start", None))

    def _device(self, name: str, shard: Shard, costs: CostModel, built: set[str]) -> SimulatedDevice:
        return SimulatedDevice(
            name,
            lambda: self.limits[name],
            lambda: self.agent_cpus(name),
            shard,
            costs,
            self._halves.begin,
            self,
            lambda phases: self._phases(name, phases),
            now_ns,
            self._heartbeat_s,
            built,
        )

    def agent_cpus(self, name: str) -> float:
        """CPUs that a device's agent gets: none while it is frozen, and not those that a rival takes."""
        return self.limits[name].cpus * self.share(name, self.conditions[name])

    @contextlib.contextmanager
    def driven(self, devices: Collection[str], driver: Driver) -> Iterator[None]:
        """As `RunFleet.driven`. Heartbeats begin with the first driver."""
        self._heartbeats = self._heartbeats or asyncio.ensure_future(self._beat(_loop()))
        with super().driven(devices, driver):
            yield

    async def _beat(self, loop: VirtualLoop) -> None:
        while True:
            self._beat_s = self._beat_s or loop.time() + self._heartbeat_s
            await loop.until(self._beat_s)
            self._beat_s = None
            for name, device in self.devices.items():
                if name not in self._away:
                    device.beat()

    def end_work(self) -> None:
        """Record the last phases, and end what still works."""
        for name, device in self.devices.items():
            if name not in self._away:
                self._phases(name, device.phases.take())
            device.stop()
        jobs = (job for jobs in self._sends.values() for job in jobs)
        for job in (*jobs, *([self._heartbeats] if self._heartbeats is not None else [])):
            job.cancel()

    async def rest(self, left_out: Collection[str]) -> None:
        """Nothing: the clock of a simulated run stands still while others have their turns."""

    async def flush(self) -> None:
        for name, device in self.devices.items():
            if name not in self._away:
                self._phases(name, device.phases.take())

    # ---- a run that is saved, and goes on ----

    async def settle(self, devices: Collection[str] | None = None) -> None:
        """Let happen what is due now. What devices without a task still do of earlier ones is interrupted and begun
        again, whether the run is saved here or not: so a run that goes on from here does the same."""
        await _loop().settled()
        busy = [name for name in self._without_task(devices) if self.devices[name].busy]
        for name in busy:
            if name not in self._away or name in self._silent:
                self._phases(name, self.devices[name].phases.take())
        left = {name: self.devices[name].interrupt() for name in busy}
        if busy:
            await _loop().settled()
        self._interrupted = {name: Idle(self.devices[name].phases.open, each) for name, each in left.items()}
        for name, each in left.items():
            self.devices[name].go_on(each)
        if busy:
            await _loop().settled()

    def _without_task(self, devices: Collection[str] | None) -> list[str]:
        return [name for name in devices or self.names if name not in self.drivers]

    def state(self, devices: Collection[str] | None = None) -> FleetState:
        """These devices directly after `settle`, as a run that goes on needs them."""
        idle = {
            name: self._interrupted.get(name) or Idle(self.devices[name].phases.open)
            for name in self._without_task(devices)
        }
        return FleetState({name: self._known(name) for name in self.names}, idle, self._beat_s)

    def _known(self, name: str) -> Known:
        away, silent, built = name in self._away, name in self._silent, name in self._built
        return Known(self.own[name], self.conditions[name], self._incarnations[name], away, silent, built)

    def restore(self, first: FleetState, states: Iterable[FleetState]) -> None:
        """Take back what `state` gave.

        Args:
            first: the earliest of them: the clock is there now.
            states: of devices between two tasks, the last one counts. Work in hand goes on at the next `settle`.
        """
        for state in states:
            for name, idle in state.idle.items():
                self.devices[name].restore(idle.phase, idle.left)
        for name, each in first.known.items():
            self.own[name], self.conditions[name] = each.profile, each.condition
            self._incarnations[name] = each.incarnation
            self._assign(name)
            self.devices[name].change(_connected(each.condition))
        self.again(first, self.names)
        if first.beat_s is not None:
            self._beat_s = first.beat_s
            self._heartbeats = asyncio.ensure_future(self._beat(_loop()))

    def again(self, state: FleetState, devices: Collection[str] | None = None) -> None:
        """Who is away and who has built its model, as `state` has it. `devices`: None: those without a task; what they
        did until then is not done again."""
        for name in state.idle if devices is None else devices:
            each = state.known[name]
            for names, inside in ((self._away, each.away), (self._silent, each.silent), (self._built, each.built)):
                (names.add if inside else names.discard)(name)

    def put_states(self, run: str, states: Mapping[str, tuple[str, Weights]]) -> None:
        """As `World.put_states`."""
        for name, (task, state) in states.items():
            self.devices[name].states.keep(run, task, state)

    def agent_of(self, device: str) -> str:
        return self._incarnation(device)

    # ---- the driver's endpoint ----

    async def send(self, peer: str, header: Header, body: bytes | bytearray) -> Sent:
        """As `TransferEndpoint.send`: returns when the device has acknowledged the transfer. Raises TransferError: the
        device was forgotten meanwhile."""
        begun = now_ns()
        if isinstance(header, Task):
            self._halves.expect(header.round, header.assignment, body)
        if peer in self._away:
            await asyncio.Event().wait()  # as in a real fleet: no time limit for a receiver that is away
        receiving = asyncio.ensure_future(self.devices[peer].receive(header, body))
        self._sends[peer].add(receiving)
        try:
            arrival = await asyncio.shield(receiving)
        except asyncio.CancelledError:
            if receiving.cancelled():
                raise TransferError(f"{peer} is gone") from None
            receiving.cancel()
            raise
        finally:
            self._sends[peer].discard(receiving)
        return Sent(begun, now_ns(), arrival.bytes, 0)

    def control(self, peer: str, message: Control) -> None:
        if isinstance(message, Cancel):
            self.devices[peer].cancel(message.task)
            self._halves.forget(peer)

    def forget(self, peer: str) -> None:
        for sending in tuple(self._sends[peer]):
            sending.cancel()

    # ---- the run's devices ----

    async def ready(self) -> list[DeviceView]:
        while len(self._away) == len(self.profiles):
            self._back.clear()
            await self._back.wait()
        return [self._view(name) for name in self.names if name not in self._away]

    async def change(self, name: str, profile: ProfileSpec) -> None:
        self.own[name] = profile
        self._assign(name)
        self.record(self._limits_set(now_ns(), name, "reprofile", None))

    async def put(self, name: str, condition: Condition) -> Applied:
        before, had = self.conditions[name], self.limits[name]
        self.conditions[name] = condition
        self._assign(name)
        if before.present and not condition.present:
            self._take_away(name, "the scenario took it away")
        elif condition.present and not before.present:
            self._return(name)
        elif not only_rates(had, self.limits[name]):
            self.record(self._limits_set(now_ns(), name, "scenario", None))
        self.devices[name].change(_connected(condition))
        if name in self._silent and _connected(condition):
            self._hear_again(name)
        return Applied(SIMULATED)

    async def all_back(self) -> None:
        """Nothing: a device is back at once."""

    def lost(self, device: str, why: str) -> None:
        """The round gave a device up. It is away if nothing can be heard of it; otherwise it stays present here."""
        if device not in self._away and not _connected(self.conditions[device]):
            self._away.add(device)
            self._silent.add(device)
            self.record(DeviceLeft(now_ns(), device, why))

    def _hear_again(self, name: str) -> None:
        """A device is back: its agent went on without us, or is a new one."""
        self._silent.discard(name)
        self._away.discard(name)
        self._join(name, again=True)
        self.record(self._limits_set(now_ns(), name, "rejoin", None))
        self._back.set()

    # ---- devices that leave and return ----

    def _take_away(self, name: str, why: str) -> None:
        """The agent ends, and all its work is lost."""
        self._phases(name, self.devices[name].phases.take())
        was_here = name not in self._away
        self._away.add(name)
        self._silent.discard(name)
        self.devices[name].die()
        if was_here:
            self.record(DeviceLeft(now_ns(), name, why))
        self.forget(name)
        if (driver := self.drivers.get(name)) is not None:
            driver.lost(name, why)

    def _return(self, name: str) -> None:
        self._incarnations[name] += 1
        self.devices[name].restart_phases()
        self._hear_again(name)

    # ---- records ----

    def _incarnation(self, name: str) -> str:
        return f"{name}/{self._incarnations[name]}"

    def _join(self, name: str, again: bool) -> None:
        self.record(DeviceJoined(now_ns(), name, self._incarnation(name), again, {}))
        self.record(ClockOffset(now_ns(), name, 0, 0))

    def _phases(self, name: str, phases: tuple[Phase, ...]) -> None:
        if phases:
            self.record(DevicePhases(now_ns(), name, self._incarnation(name), phases))


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def _connected(condition: Condition) -> bool:
    """Whether anything can be heard of a device that is present."""
    return condition.link and condition.running
