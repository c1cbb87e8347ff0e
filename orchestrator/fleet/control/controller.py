"""A standing fleet: agents joined, limits on and read back, kept so through deaths, returns and changes of profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence

from edgebed.errors import EdgebedError, FleetError, TransferRefused, UsageError
from edgebed.link.base import Link
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.methods.base import DeviceView
from edgebed.wire.messages import Configure, Header, Probe, ProbeResult, Update
from edgebed.wire.topics import Topics
from orchestrator.experiment import Environment
from orchestrator.fleet.base import BrokerAccess, Enforcement, Fleet
from orchestrator.fleet.control.membership import DeviceEvent, Heard, Joined, Left, Membership
from orchestrator.fleet.control.seams import Driver
from orchestrator.fleet.environment import candidates, profiles_at
from orchestrator.fleet.profile import FleetSpec, Limits, ProfileSpec
from orchestrator.records.types import (
    Calibrated,
    ClockOffset,
    DeviceInfo,
    DeviceJoined,
    DeviceLeft,
    Fault,
    LimitsSet,
    Record,
)

PRESENCE = (DeviceJoined, DeviceLeft)

NAMED = 63
"""So much of a name that is not ours stands in a record."""

RESTARTS = 5
"""An agent that ended by itself so often, without one finished task in between, is not started again."""


class FleetController:
    """The fleet as the run sees it. Made by `session.standing_fleet`.

    Attributes:
        limits: in force, by device, after dilation.
        prober: answers calibration probes.
        labels: samples per class of every device, as the shards of the run in hand were cut; what a device says of its
            shard counts only where there is no run.
    """

    def __init__(
        self,
        fleet_id: str,
        spec: FleetSpec,
        fleet: Fleet,
        dilation: float,
        heartbeat_s: float,
        resolve_profile: Callable[[str], ProfileSpec],
    ) -> None:
        self.fleet_id, self.spec, self.fleet, self.dilation = fleet_id, spec, fleet, dilation
        self.broker: BrokerAccess
        self.profiles: dict[str, ProfileSpec] = {}
        self.limits: dict[str, Limits] = {}
        for device in spec.devices:
            self._assign(device.name, device.profile)
        self.names = list(self.profiles)
        self.labels: Mapping[str, Sequence[int]] = {}
        self._rows: list[Record] = []  # of the calibration
        self._facts: dict[tuple[object, str], Record] = {}  # the latest of each kind and device
        self.port: TransferEndpoint
        self.control: Link
        self.membership: Membership
        self.driver: Driver | None = None
        self._sink: Callable[[Record], None] | None = None
        self._heartbeat_s, self._resolve = heartbeat_s, resolve_profile
        self._ready: set[str] = set()
        self._ready_changed = asyncio.Event()
        self._restarts: dict[str, int] = dict.fromkeys(self.names, 0)
        self._jobs: set[asyncio.Task[None]] = set()
        self._rejoining: dict[str, asyncio.Task[None]] = {}
        self._closing = False

    @property
    def prober(self) -> Membership:
        return self.membership

    @property
    def enforcement(self) -> Enforcement:
        return self.fleet.enforcement

    # ---- records ----

    def record(self, record: Record) -> None:
        """To the run in hand, and kept for the next one where it is a fact of the fleet."""
        match record:
            case Calibrated():
                self._rows.append(record)
            case ClockOffset() | LimitsSet() | DeviceJoined() | DeviceLeft():
                key = (PRESENCE if isinstance(record, PRESENCE) else type(record), record.device)
                self._facts.pop(key, None)
                self._facts[key] = record
            case _:
                pass
        if self._sink is not None:
            self._sink(record)

    def facts(self) -> list[Record]:
        """What is true of the fleet now, in the order of time: every run begins with it."""
        return [*self._rows, *self._facts.values()]

    def attach(self, sink: Callable[[Record], None] | None, driver: Driver | None) -> None:
        """Send records and round events of the fleet to a run from now on; None: to no run."""
        self._sink, self.driver = sink, driver

    def infos(self) -> tuple[DeviceInfo, ...]:
        """The devices as requested, with their data, for RunStarted."""
        return tuple(self._info(name) for name in self.names)

    def _info(self, name: str) -> DeviceInfo:
        profile, labels = self.profiles[name], self._labels_of(name)
        return DeviceInfo(
            name=name,
            profile=profile.name,
            cpus=profile.limits.cpus,
            uplink_bit_s=profile.limits.uplink_bit_s,
            downlink_bit_s=profile.limits.downlink_bit_s,
            memory_mib=profile.limits.memory_mib,
            samples=sum(labels),
            labels=labels,
        )

    def _labels_of(self, name: str) -> tuple[int, ...]:
        presence = self.membership.devices[name].presence
        if name in self.labels:
            return tuple(self.labels[name])
        return presence.labels if presence else ()

    # ---- limits ----

    async def put_on_limits(self, name: str, why: str) -> None:
        """Set a device's limits, read them back, tell the agent its threads. After this the device may work."""
        limits = self.limits[name]
        await self.membership.measure_clock(name)
        held = await self.fleet.limit(name, limits)
        self.record(
            LimitsSet(
                at_ns=time.monotonic_ns(),
                device=name,
                why=why,
                profile=self.profiles[name].name,
                cpus=limits.cpus,
                uplink_bit_s=limits.uplink_bit_s,
                downlink_bit_s=limits.downlink_bit_s,
                held_cpus=held.cpus,
                held_uplink_bit_s=held.uplink_bit_s,
                held_downlink_bit_s=held.downlink_bit_s,
                details=held.details,
            )
        )
        await self.membership.configure(name, self._settings(limits))
        self._ready.add(name)
        self._ready_changed.set()

    def _settings(self, limits: Limits) -> Configure:
        return Configure(
            seq=0,  # the membership's to set
            threads=limits.threads,
            heartbeat_s=self._heartbeat_s,
            software=self.enforcement is Enforcement.SOFTWARE,
            cpus=limits.cpus,
            uplink_bit_s=limits.uplink_bit_s,
            downlink_bit_s=limits.downlink_bit_s,
        )

    async def reprofile(self, environment: Environment, seed: int, round: int) -> None:
        """Put on the profiles of this round, where they differ. Devices that are away get theirs when they return."""
        drawn_from = candidates(self.spec, environment, self._resolve)
        for name, profile in profiles_at(self.spec, drawn_from, environment, seed, round).items():
            if self.profiles[name] != profile:
                await self.change(name, profile)

    async def change(self, name: str, profile: ProfileSpec) -> None:
        """Put another profile on one device, in mid-run and without restart."""
        if name not in self.profiles:
            raise UsageError(f"the fleet has no device {name!r}", hint=f"its devices are: {', '.join(self.names)}")
        self._assign(name, profile)
        if name in self._ready:
            await self.put_on_limits(name, "reprofile")

    async def reset(self) -> None:
        """Put every device back to the profile of the fleet file, so that each run begins alike."""
        for device in self.spec.devices:
            if self.profiles[device.name] != device.profile:
                await self.change(device.name, device.profile)

    def _assign(self, name: str, profile: ProfileSpec) -> None:
        self.profiles[name], self.limits[name] = profile, profile.limits.dilated(self.dilation)

    # ---- who can work ----

    async def ready(self, timeout_s: float = 120.0) -> list[DeviceView]:
        """Devices present with their limits on. Waits for one at least; FleetError when none comes."""
        deadline = time.monotonic() + timeout_s
        while not self._able():
            self._ready_changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._ready_changed.wait()
            except TimeoutError:
                raise FleetError(
                    f"no device has been present for {timeout_s:.0f} s",
                    hint="see the agents' logs in the fleet's folder",
                ) from None
        return [self._view(name) for name in self._able()]

    def _able(self) -> list[str]:
        present = set(self.membership.present())
        return [name for name in self.names if name in self._ready and name in present]

    def _view(self, name: str) -> DeviceView:
        limits, labels = self.limits[name], self._labels_of(name)
        return DeviceView(
            name=name,
            samples=sum(labels),
            cpus=limits.cpus,
            uplink_bit_s=limits.uplink_bit_s,
            downlink_bit_s=limits.downlink_bit_s,
            memory_bytes=limits.memory_mib * 2**20,
            labels=tuple(labels),
        )

    async def probe(self, device: str, probe: Probe) -> ProbeResult:
        return await self.membership.probe(device, probe)

    # ---- events ----

    def on_device(self, event: DeviceEvent) -> None:
        match event:
            case Joined(device, again, restarted):
                if restarted:
                    self._work_gone(device, "its agent restarted")
                if again and not self._closing:
                    self._begin_rejoin(device)
            case Left(device, _):
                self._ready.discard(device)
            case Heard(device, moved, task, phase):
                if self.driver is not None:
                    self.driver.heard(device, moved, task, phase)

    def _begin_rejoin(self, device: str) -> None:
        self._ready.discard(device)
        if (earlier := self._rejoining.get(device)) is not None:
            earlier.cancel()
        self._rejoining[device] = self._spawn(device, self._rejoin(device))

    async def _rejoin(self, device: str) -> None:
        try:
            await self.put_on_limits(device, "rejoin")
        except EdgebedError as error:
            self.record(Fault(time.monotonic_ns(), device, f"came back, but its limits could not be put on: {error}"))
            self.membership.left(device, "it has no limits")  # its next heartbeat brings it here again

    def on_exit(self, device: str, why: str) -> None:
        """The backend says that an agent's process has ended."""
        if self._closing:
            return
        self.membership.left(device, why)
        self._work_gone(device, why)
        self._spawn(device, self._restart(device, why))

    def _work_gone(self, device: str, why: str) -> None:
        self.port.forget(device)
        if self.driver is not None:
            self.driver.lost(device, why)

    async def _restart(self, device: str, why: str) -> None:
        self._restarts[device] += 1
        if self._restarts[device] > RESTARTS:
            what = f"its agent ended {RESTARTS + 1} times without a finished task and is not started again: {why}"
            self.record(Fault(time.monotonic_ns(), device, what))
            self.membership.give_up(device, what)
            return
        try:
            await self.fleet.restart(device)
        except EdgebedError as error:
            self.record(Fault(time.monotonic_ns(), device, f"could not be restarted: {error}"))

    def lost(self, device: str, why: str) -> None:
        """The round gave a device up; it counts as away until it is heard of again."""
        self.membership.left(device, why)

    # ---- the port's inputs ----

    def admit(self, peer: str, header: Header, size: int) -> None:
        if self.driver is None:
            raise TransferRefused("no run is going on")
        self.driver.admit(peer, header, size)

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        if isinstance(inbound.header, Update):
            self._restarts[inbound.peer] = 0
        if self.driver is not None:
            await self.driver.deliver(inbound)

    def knows(self, name: str) -> bool:
        return name in self.profiles

    def dropped(self, peer: str, why: str) -> None:
        """Named once; how often it happened is not."""
        known = self.knows(peer)
        who = peer if known else repr(peer[:NAMED])
        what = f"{who} {why}: its messages are dropped" if known else f"{who} {why}: messages in its name are dropped"
        self.record(Fault(time.monotonic_ns(), peer if known else "", what))

    def progress(self, peer: str, transfer: str) -> None:
        if self.driver is not None:
            self.driver.progress(peer)

    # ---- end ----

    async def close(self) -> None:
        self._closing = True
        for job in tuple(self._jobs):
            job.cancel()
        self.membership.shutdown("the fleet is closed")
        await asyncio.sleep(0.05)  # let the goodbye leave; agents that miss it are ended by the backend
        await self.fleet.close()
        for name in self.names:  # a broker of the user's own must not keep what nobody will ever clear
            self.control.publish(Topics(self.fleet_id).state(name), b"", retain=True)

    def _spawn(self, device: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(lambda done: self._ended(device, done))
        return job

    def _ended(self, device: str, job: asyncio.Task[None]) -> None:
        """An error that nobody foresaw leaves the device away, and must not pass in silence."""
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            what = f"{type(error).__name__}: {error}"
            self.record(Fault(time.monotonic_ns(), device, what))
