"""What a run needs of its devices, real or simulated: profiles, limits and data, and where records and events go."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from edgebed.errors import TransferRefused
from edgebed.limits.cpu_quota import TICK_US
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.methods.base import DeviceView
from edgebed.pacing import Earned
from edgebed.wire.messages import Header
from orchestrator.experiment import Environment, Grain
from orchestrator.fleet.base import Held
from orchestrator.fleet.control.interfaces import Driver, Sender
from orchestrator.fleet.spec.condition import profile_under
from orchestrator.fleet.spec.environment import candidates, profiles_at
from orchestrator.fleet.spec.profile import FleetSpec, Limits, ProfileSpec
from orchestrator.records.types import (
    Calibrated,
    ClockOffset,
    DeviceInfo,
    DeviceJoined,
    DeviceLeft,
    LimitsSet,
    Record,
)
from orchestrator.scenario.agenda import Condition

NORMAL = Condition()
PRESENCE = (DeviceJoined, DeviceLeft)
Fact = ClockOffset | LimitsSet | DeviceJoined | DeviceLeft

ResolveProfile = Callable[[str], ProfileSpec]
"""The profile of a name, for an experiment whose devices change profiles."""


class Applied(msgspec.Struct, frozen=True):
    """What was read back after a device was put into a condition: in words, and the rates in bit/s where they are
    known."""

    held: str = ""
    uplink_bit_s: int | None = None
    downlink_bit_s: int | None = None


class RunFleet(ABC):
    """The devices of a run. `FleetController` has an agent for each, `SimulatedFleet` simulates them.

    Attributes:
        endpoint: sends tasks and replies to the devices.
        backend_name: what carries the devices, and `enforcement`: what holds their limits, in the words of the records.
        dilation_by: what made the dilation as large as it is: `CPUs`, `network`, or `the experiment`.
        names: of the devices, in the order of the fleet file.
        boards: names of the real boards, by device.
        own: by device, the profile of the fleet file, or what the environment gave it since.
        conditions: by device, what a scenario makes of it.
        profiles: in force, by device.
        limits: in force, by device, after dilation. Their CPUs are those of quotas.
        cpus: of the devices, after dilation: CPU seconds per second of the host, or of the reference whose time they
            keep; then the quotas are larger.
        earned: CPU seconds that the CPUs of each device have given, on the monotonic clock, as its agent was told.
        labels: samples per class of every device, as the shards of the run in hand were cut.
        grain: how the CPU quotas are divided into pieces of time; `tick_us`: of the accounting that stops a thread.
        drivers: by device, who sends it tasks at the moment.
    """

    endpoint: Sender
    backend_name: str
    enforcement: str

    def __init__(
        self,
        spec: FleetSpec,
        dilation: float,
        resolve_profile: ResolveProfile,
        grain: Grain = "quota",
        tick_us: int = TICK_US,
        dilation_by: str = "",
    ) -> None:
        self.spec, self.dilation, self.grain, self.tick_us = spec, dilation, grain, tick_us
        self._resolve = resolve_profile
        self.own = {device.name: device.profile for device in spec.devices}
        self.boards = {device.name: device.board for device in spec.boards}
        self.conditions = dict.fromkeys(self.own, NORMAL)
        self.profiles: dict[str, ProfileSpec] = {}
        self.limits: dict[str, Limits] = {}
        self.cpus: dict[str, float] = {}
        for name in self.own:
            self._assign(name)
        self.names = list(self.profiles)
        self.earned: dict[str, Earned] = {}  # of devices whose hold can be judged
        self.dilation_by = dilation_by
        self.labels: Mapping[str, Sequence[int]] = {}
        self.drivers: dict[str, Driver] = {}
        self._sink: Callable[[Record], None] | None = None
        self._calibration: list[Calibrated] = []
        self._facts: dict[tuple[object, str], Fact] = {}  # the latest of each kind and device

    # ---- records ----

    def record(self, record: Record) -> None:
        """To the run in hand; kept for the next one where it is a fact about the fleet."""
        match record:
            case Calibrated():
                self._calibration.append(record)
            case ClockOffset() | LimitsSet() | DeviceJoined() | DeviceLeft():
                key = (PRESENCE if isinstance(record, PRESENCE) else type(record), record.device)
                self._facts.pop(key, None)
                self._facts[key] = record
        if self._sink is not None:
            self._sink(record)

    def facts(self, after_ns: int = 0) -> list[Record]:
        """What is true of the fleet now, in the order of time: every run begins with it. `after_ns`: only what has
        become true after this time."""
        return [record for record in (*self._calibration, *self._facts.values()) if record.at_ns > after_ns]

    def agent_of(self, device: str) -> str:
        """The incarnation of the agent that joined last; "" where the device has left."""
        joined = self._facts.get((PRESENCE, device))
        return joined.incarnation if isinstance(joined, DeviceJoined) else ""

    def attach(self, sink: Callable[[Record], None] | None) -> None:
        """Send records of the fleet to a run from now on; None: to no run."""
        self._sink = sink

    def infos(self) -> tuple[DeviceInfo, ...]:
        """The devices with their profiles (before dilation) and their data, for RunStarted."""
        return tuple(self._info(name) for name in self.names)

    def _info(self, name: str) -> DeviceInfo:
        profile, labels = self.profiles[name], self._labels_of(name)
        limits = profile.limits
        return DeviceInfo(
            name=name,
            profile=profile.name,
            cpus=limits.cpus,
            uplink_bit_s=0 if limits.unlimited else limits.uplink_bit_s,
            downlink_bit_s=0 if limits.unlimited else limits.downlink_bit_s,
            memory_mib=limits.memory_mib,
            samples=sum(labels),
            labels=labels,
            board=self.boards.get(name, ""),
            look_alike_of=profile.look_alike_of,
            unlimited=limits.unlimited,
            threads=limits.threads,
        )

    def _labels_of(self, name: str) -> tuple[int, ...]:
        return tuple(self.labels[name])

    def _limits_set(self, at_ns: int, name: str, why: str, held: Held | None) -> LimitsSet:
        """The record of the limits in force. `held`: what was read back; None where nothing holds them."""
        limits = self.limits[name]
        return LimitsSet(
            at_ns=at_ns,
            device=name,
            why=why,
            profile=self.profiles[name].name,
            cpus=self.cpus[name],
            ceiling_cpus=limits.cpus if self.spec.speed.reference else None,
            uplink_bit_s=0 if limits.unlimited else limits.uplink_bit_s,
            downlink_bit_s=0 if limits.unlimited else limits.downlink_bit_s,
            held_cpus=held.cpus if held else None,
            held_uplink_bit_s=held.uplink_bit_s if held else None,
            held_downlink_bit_s=held.downlink_bit_s if held else None,
            details=held.details if held else {},
            latency_ms=limits.latency_ms,
            period_us=limits.period_us,
            held_period_us=held.period_us if held else None,
            unlimited=limits.unlimited,
        )

    # ---- profiles ----

    async def reset(self) -> None:
        """Give every device the profile of the fleet file again, so that all runs begin alike."""
        for device in self.spec.devices:
            if self.own[device.name] != device.profile:
                await self.change(device.name, device.profile)

    async def reprofile(self, environment: Environment, seed: int, round: int) -> None:
        """Give every device its profile of this round, where it has another one."""
        drawn_from = candidates(self.spec, environment, self._resolve)
        for name, profile in profiles_at(self.spec, drawn_from, environment, seed, round).items():
            if self.own[name] != profile:
                await self.change(name, profile)

    @abstractmethod
    async def change(self, name: str, profile: ProfileSpec) -> None:
        """Give one device another profile, in mid-run and without restart."""

    @abstractmethod
    async def put(self, name: str, condition: Condition) -> Applied:
        """Put one device into a condition of the scenario, in mid-run. Raises FleetError where it cannot be done."""

    @abstractmethod
    async def all_back(self) -> None:
        """Wait until the devices that a scenario has let return are at work again."""

    def _assign(self, name: str) -> None:
        """Work out the profile and the limits that a device is to have."""
        self.profiles[name] = profile_under(self.conditions[name], self.own[name], self._resolve)
        limits = self.profiles[name].limits
        self.cpus[name] = limits.cpus if limits.unlimited else limits.cpus / self.dilation
        ceiling = msgspec.structs.replace(limits, cpus=limits.cpus * self.spec.speed.ceiling(name))
        self.limits[name] = ceiling.dilated(self.dilation, self.grain, self.tick_us)

    def share(self, name: str, condition: Condition) -> float:
        """As `Condition.share`, of a device in a condition."""
        return condition.share(self.cpus[name] * self.dilation, self.limits[name].threads)

    # ---- who can work ----

    @abstractmethod
    async def ready(self) -> list[DeviceView]:
        """Devices that can work now; waits for one at least."""

    def _view(self, name: str) -> DeviceView:
        limits, labels = self.limits[name], self._labels_of(name)
        return DeviceView(
            name=name,
            samples=sum(labels),
            cpus=self.cpus[name],
            uplink_bit_s=limits.uplink_bit_s,
            downlink_bit_s=limits.downlink_bit_s,
            memory_bytes=limits.memory_mib * 2**20,
            labels=labels,
        )

    @abstractmethod
    def lost(self, device: str, why: str) -> None:
        """The round gave a device up."""

    # ---- the end of a turn, and of a run ----

    @abstractmethod
    async def rest(self, left_out: Collection[str]) -> None:
        """Wait until nothing of the last round is left on the devices and their links. Called before another run gets
        the fleet. `left_out`: devices whose work the round left out: they may still be at it."""

    @abstractmethod
    def end_work(self) -> None:
        """The rounds are over: end what devices still do. Called before the run's last record."""

    @abstractmethod
    async def flush(self) -> None:
        """Have every device report its phases up to now. Called at the end of a turn, and after the run's last
        record."""

    # ---- what comes from the devices, for their drivers ----

    @contextlib.contextmanager
    def driven(self, devices: Collection[str], driver: Driver) -> Iterator[None]:
        """What comes from these devices goes to `driver` while the `with` block runs."""
        self.drivers |= dict.fromkeys(devices, driver)
        try:
            yield
        finally:
            for device in devices:
                del self.drivers[device]

    def admit(self, peer: str, header: Header, size: int) -> None:
        """Raises TransferRefused for what nobody waits for."""
        if (driver := self.drivers.get(peer)) is None:
            raise TransferRefused(f"no round of {peer} is open: its task is over")
        driver.admit(peer, header, size)

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        if (driver := self.drivers.get(inbound.peer)) is not None:
            await driver.deliver(inbound)

    def progress(self, device: str, transfer: str = "") -> None:
        """The device, or its link with this transfer, has made progress."""
        if (driver := self.drivers.get(device)) is not None:
            driver.progress(device)
