"""The simulated fleet: what a round driver needs of a port and a loop of a standing fleet, on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from edgebed.datasets.shard import Shard
from edgebed.errors import TransferError, TransferRefused
from edgebed.link.endpoint import Sent
from edgebed.link.receiver import ReceivedTransfer
from edgebed.methods.base import DeviceView
from edgebed.wire.messages import Cancel, Control, Header, Phase, Task
from orchestrator.experiment import Environment, SimulatedFault
from orchestrator.fleet.control.seams import Driver
from orchestrator.fleet.environment import candidates, profiles_at
from orchestrator.fleet.profile import FleetSpec, Limits, ProfileSpec
from orchestrator.records.types import (
    ClockOffset,
    DeviceInfo,
    DeviceJoined,
    DeviceLeft,
    DevicePhases,
    LimitsSet,
    Record,
)
from orchestrator.rounds.event_loop import now_ns
from orchestrator.simulation.costs import CostModel, Device
from orchestrator.simulation.device import SimulatedDevice
from orchestrator.simulation.pool import HalfPool

HEARD_SHARE = 1 / 3
"""A device that works is heard of after this share of the time in which silence would count as loss."""


class SimulatedFleet:
    """Devices by name; the driver's port and the loop's devices in one.

    Args:
        shards: by device.
        faults: devices that die, and may come back.
        built: devices whose agents have built their model in an earlier run on the same fleet; added to.
    """

    def __init__(
        self,
        spec: FleetSpec,
        shards: Mapping[str, Shard],
        costs: CostModel,
        halves: HalfPool,
        record: Callable[[Record], None],
        *,
        dilation: float,
        liveness_s: float,
        faults: tuple[SimulatedFault, ...],
        resolve: Callable[[str], ProfileSpec],
        built: set[str] | None = None,
    ) -> None:
        self._spec, self._shards, self._record, self._dilation = spec, shards, record, dilation
        self._resolve, self._faults, self._halves = resolve, faults, halves
        self.driver: Driver | None = None
        self.profiles: dict[str, ProfileSpec] = {}
        self.limits: dict[str, Limits] = {}
        for device in spec.devices:
            self._assign(device.name, device.profile)
        self._incarnations = dict.fromkeys(self.profiles, 0)
        self._away: set[str] = set()
        self._back = asyncio.Event()
        self._sends: dict[str, set[asyncio.Task[Any]]] = {name: set() for name in self.profiles}
        self._jobs: set[asyncio.Task[None]] = set()
        tell_s = liveness_s * HEARD_SHARE
        built = set() if built is None else built
        self.devices = {
            name: SimulatedDevice(
                lambda name=name: self.who(name),  # type: ignore[misc]
                shards[name],
                costs,
                halves.start,
                self,
                lambda phases, name=name: self._phases(name, phases),  # type: ignore[misc]
                now_ns,
                tell_s,
                built,
            )
            for name in self.profiles
        }

    def who(self, name: str) -> Device:
        return Device(name, self.profiles[name].name, self.limits[name])

    def infos(self) -> tuple[DeviceInfo, ...]:
        """The devices as the fleet file has them, with their data."""
        return tuple(self._info(name, profile) for name, profile in self.profiles.items())

    def _info(self, name: str, profile: ProfileSpec) -> DeviceInfo:
        limits, shard = profile.limits, self._shards[name]
        return DeviceInfo(
            name=name,
            profile=profile.name,
            cpus=limits.cpus,
            uplink_bit_s=limits.uplink_bit_s,
            downlink_bit_s=limits.downlink_bit_s,
            memory_mib=limits.memory_mib,
            samples=shard.samples,
            labels=tuple(shard.label_counts),
        )

    def announce(self) -> None:
        """Record what is true of the fleet at the start of a run."""
        for name in self.profiles:
            self._join(name, again=False)
            self._limits_set(name, "start")

    async def beat(self, seconds: float) -> None:
        """Heartbeats of all devices, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            for name, device in self.devices.items():
                if name not in self._away:
                    device.beat()

    def close(self) -> None:
        """Record the last phases, and end what still works."""
        for name, device in self.devices.items():
            if name not in self._away:
                self._phases(name, device.phases.take())
            device.stop()
        for job in (*self._jobs, *(job for jobs in self._sends.values() for job in jobs)):
            job.cancel()

    # ---- the driver's port ----

    async def send(self, peer: str, header: Header, body: bytes | bytearray) -> Sent:
        """As `TransferEndpoint.send`: returns when the device has it. Raises TransferError when the device is
        forgotten."""
        begun = now_ns()
        if isinstance(header, Task):
            self._halves.expect(header.assignment, body)
        if peer in self._away:
            await asyncio.Event().wait()  # an absent receiver is waited for without limit
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

    # ---- what comes of the devices ----

    def admit(self, peer: str, header: Header, size: int) -> None:
        if self.driver is None:
            raise TransferRefused("no run is going on")
        self.driver.admit(peer, header, size)

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        if self.driver is not None:
            await self.driver.deliver(inbound)

    def progress(self, device: str) -> None:
        if self.driver is not None:
            self.driver.progress(device)

    def _phases(self, name: str, phases: tuple[Phase, ...]) -> None:
        if phases:
            self._record(DevicePhases(now_ns(), name, self._incarnation(name), phases))

    # ---- the loop's devices ----

    async def ready(self) -> list[DeviceView]:
        """Devices that are there; waits for one at least."""
        while len(self._away) == len(self.profiles):
            self._back.clear()
            await self._back.wait()
        return [self._view(name) for name in self.profiles if name not in self._away]

    def _view(self, name: str) -> DeviceView:
        limits, shard = self.limits[name], self._shards[name]
        return DeviceView(
            name=name,
            samples=shard.samples,
            cpus=limits.cpus,
            uplink_bit_s=limits.uplink_bit_s,
            downlink_bit_s=limits.downlink_bit_s,
            memory_bytes=limits.memory_mib * 2**20,
            labels=tuple(shard.label_counts),
        )

    async def reprofile(self, environment: Environment, seed: int, round: int) -> None:
        """As `FleetController.reprofile`."""
        drawn_from = candidates(self._spec, environment, self._resolve)
        for name, profile in profiles_at(self._spec, drawn_from, environment, seed, round).items():
            if self.profiles[name] != profile:
                self._assign(name, profile)
                self._limits_set(name, "reprofile")

    def lost(self, device: str, why: str) -> None:
        """The round gave a device up. Here it is there all the same: only a fault takes it away."""

    def _assign(self, name: str, profile: ProfileSpec) -> None:
        self.profiles[name], self.limits[name] = profile, profile.limits.dilated(self._dilation)

    # ---- faults ----

    def begin_round(self, round: int) -> None:
        """Set the clocks of the faults of this round."""
        for fault in self._faults:
            if fault.round == round and fault.device in self.devices:
                job = asyncio.ensure_future(self._strike(fault))
                self._jobs.add(job)
                job.add_done_callback(self._jobs.discard)

    async def _strike(self, fault: SimulatedFault) -> None:
        name = fault.device
        await asyncio.sleep(fault.after_s * self._dilation)
        if name in self._away:
            return
        self._phases(name, self.devices[name].phases.take())
        self._away.add(name)
        self.devices[name].die()
        self._record(DeviceLeft(now_ns(), name, "died (a fault of the experiment)"))
        self.forget(name)
        if self.driver is not None:
            self.driver.lost(name, "died (a fault of the experiment)")
        if fault.away_s is not None:
            await asyncio.sleep(fault.away_s * self._dilation)
            self._return(name)

    def _return(self, name: str) -> None:
        self._incarnations[name] += 1
        self.devices[name].phases.restart()
        self._away.discard(name)
        self._join(name, again=True)
        self._limits_set(name, "rejoin")
        self._back.set()

    # ---- records ----

    def _incarnation(self, name: str) -> str:
        return f"{name}/{self._incarnations[name]}"

    def _join(self, name: str, again: bool) -> None:
        self._record(DeviceJoined(now_ns(), name, self._incarnation(name), again, {}))
        self._record(ClockOffset(now_ns(), name, 0, 0))

    def _limits_set(self, name: str, why: str) -> None:
        limits = self.limits[name]
        self._record(
            LimitsSet(
                at_ns=now_ns(),
                device=name,
                why=why,
                profile=self.profiles[name].name,
                cpus=limits.cpus,
                uplink_bit_s=limits.uplink_bit_s,
                downlink_bit_s=limits.downlink_bit_s,
                held_cpus=None,
                held_uplink_bit_s=None,
                held_downlink_bit_s=None,
            )
        )


__all__ = ["SimulatedFleet", "Task"]
