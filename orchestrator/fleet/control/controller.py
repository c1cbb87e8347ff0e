"""Controls a standing fleet: its agents, and the limits of its devices while agents die, return or change profile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Coroutine, Mapping

import msgspec

from edgebed.errors import EdgebedError, FleetError, UsageError
from edgebed.limits.cpu_quota import TICK_US
from edgebed.link.base import Link
from edgebed.link.endpoint import CHUNK_BYTES, ReceivedTransfer, TransferEndpoint
from edgebed.methods.base import DeviceView
from edgebed.pacing import Earned
from edgebed.wire.messages import Configure, Update
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.experiment import Grain
from orchestrator.fleet.base import Backend, BrokerAccess, Enforcement
from orchestrator.fleet.control.member import DeviceEvent, Heard, Joined, Left
from orchestrator.fleet.control.membership import Membership
from orchestrator.fleet.control.restarts import WITHIN_S, RestartBudget
from orchestrator.fleet.control.run_fleet import NORMAL, Applied, ResolveProfile, RunFleet
from orchestrator.fleet.host.cores import tick_s
from orchestrator.fleet.mixed import backend_of
from orchestrator.fleet.spec.profile import FleetSpec, Limits, ProfileSpec, only_rates
from orchestrator.records.types import Fault
from orchestrator.scenario.agenda import Condition

NAME_CHARACTERS = 63
"""Characters that a record keeps of a name that is not a device's."""

REST_SILENCE_S = 30.0
"""How long `rest` waits for a device that makes no progress, before dilation."""

CHUNKS_UNDER_WAY = 4
"""Chunks of cancelled transfers that may still be on a link: those that a sender hands over before an answer."""


class FleetController(RunFleet):
    """A standing fleet of agents: keeps them at work with their limits on, whatever dies or returns. Made by
    `session.standing_fleet`.

    Args:
        chunk_bytes: size of a chunk that the endpoint sends. plugins: as of `Membership`.

    Attributes:
        backend: starts the agents and limits them.
        broker: how a device reaches the broker.
        control, data: the orchestrator's connections, which the caller opens and closes.
    """

    endpoint: TransferEndpoint

    def __init__(
        self,
        fleet_id: str,
        spec: FleetSpec,
        backend: Backend,
        broker: BrokerAccess,
        control: Link,
        data: Link,
        resolve_profile: ResolveProfile,
        *,
        heartbeat_s: float,
        dilation: float = 1.0,
        dilation_by: str = "",
        grain: Grain = "quota",
        chunk_bytes: int = CHUNK_BYTES,
        plugins: Mapping[str, str] | None = None,
    ) -> None:
        tick_us = round((tick_s() or 0.0) * 1e6) or TICK_US
        super().__init__(spec, dilation, resolve_profile, grain, tick_us, dilation_by)
        self.fleet_id, self.backend, self.broker, self.control, self.data = fleet_id, backend, broker, control, data
        self.backend_name, self.enforcement = backend.name, backend.enforcement
        self.earned = {name: Earned(0.0) for name in self.names}
        self._heartbeat_s = heartbeat_s
        self._ready: set[str] = set()
        self._ready_changed = asyncio.Event()
        self._restarts = {name: RestartBudget(within_s=WITHIN_S * dilation) for name in self.names}
        self._jobs: set[asyncio.Task[None]] = set()
        self._rejoining: dict[str, asyncio.Task[None]] = {}
        self._in_force: dict[str, Limits] = {}
        self._left: set[str] = set()  # devices that the scenario has taken away
        self._closing = False
        self.endpoint = TransferEndpoint(
            ORCHESTRATOR,
            Topics(fleet_id),
            control,
            data,
            deliver=self.deliver,
            admit=self.admit,
            on_control=lambda peer, message: self.membership.on_control(peer, message),
            on_progress=self.progress,
            known=self.knows,
            on_dropped=self.dropped,
            chunk_bytes=chunk_bytes,
        )
        self.membership = Membership(self.names, self.endpoint.control, self.record, dilation, backend.pins, plugins)
        self.membership.listen(self.on_device)
        backend.on_exit(self.on_exit)
        self.endpoint.start()

    def _labels_of(self, name: str) -> tuple[int, ...]:
        """Of the run's shard; without a run, what the device says of the shard that it has."""
        if name in self.labels:
            return tuple(self.labels[name])
        presence = self.membership.devices[name].presence
        return presence.labels if presence else ()

    # ---- limits ----

    async def put_on_limits(self, name: str, why: str) -> None:
        """Set a device's limits, read them back and send the agent its settings. After this the device may work. `why`:
        start, rejoin or reprofile, for the record."""
        await self.membership.measure_clock(name)
        limits = await self._limit(name, why)
        await self._configure(name, limits)
        self._ready.add(name)
        self._ready_changed.set()

    async def adopt(self, spec: FleetSpec, dilation: float, dilation_by: str) -> None:
        """Take over the speed that the start has measured. All devices get their limits again."""
        self._heartbeat_s *= dilation / self.dilation
        self.spec, self.dilation, self.dilation_by = spec, dilation, dilation_by
        for name in self.names:
            self._assign(name)
            await self._configure(name, await self._limit(name, "measured"))

    async def _limit(self, name: str, why: str) -> Limits:
        """Set the limits that a device is to have, read them back and record them."""
        limits = self.limits[name]
        held = await self.backend.limit(name, limits)
        self._in_force[name] = limits
        self.record(self._limits_set(time.monotonic_ns(), name, why, held))
        return limits

    async def _configure(self, name: str, limits: Limits) -> None:
        """Send the agent its settings, until it confirms them."""
        settings = self._settings(name, limits)
        await self.membership.configure(name, settings)
        self.earned[name].set(settings.share * settings.cpus, time.monotonic())

    def _settings(self, name: str, limits: Limits) -> Configure:
        by_reference = bool(self.spec.speed.reference)
        return Configure(
            seq=0,  # set by the membership
            threads=limits.threads,
            heartbeat_s=self._heartbeat_s,
            software=self._held_by_agent(name),
            cpus=self.cpus[name],
            ceiling=limits.cpus,
            uplink_bit_s=limits.uplink_bit_s,
            downlink_bit_s=limits.downlink_bit_s,
            period_s=0.0 if limits.unlimited else limits.period_us / 1e6,
            paced=self.grain == "pacing" and not limits.unlimited,
            by_reference=by_reference,
            share=self.share(name, self.conditions[name]) if by_reference else 1.0,
        )

    def _held_by_agent(self, name: str) -> bool:
        return backend_of(self.backend, name).enforcement is Enforcement.SOFTWARE

    async def change(self, name: str, profile: ProfileSpec) -> None:
        """As `RunFleet.change`. A device that is away gets the limits when it returns."""
        if name not in self.profiles:
            raise UsageError(f"the fleet has no device {name!r}", hint=f"its devices are: {', '.join(self.names)}")
        self.own[name] = profile
        self._assign(name)
        if name in self._ready:
            await self.put_on_limits(name, "reprofile")

    # ---- what a scenario does ----

    async def put(self, name: str, condition: Condition) -> Applied:
        """As `RunFleet.put`. A device that is away, or stopped, gets its limits when it goes on."""
        before, self.conditions[name] = self.conditions[name], condition
        self._assign(name)
        said: list[str] = []
        if before.present and not condition.present:
            await self._take_away(name, before)
            return Applied("its agent has ended")
        if not condition.present:
            return Applied("it is away")
        if not before.present:
            self._left.discard(name)
            self.membership.expect(name)
            await self.backend.restart(name)
            said.append("its agent was started")
            before = NORMAL
        if condition.link != before.link:
            said.append(await self.backend.set_link(name, condition.link))
        if condition.running and not before.running:
            said.append(await self.backend.set_frozen(name, False))
        rates = await self._put_limits(name) if condition.running else Applied()
        if condition.rival_cpus != before.rival_cpus:
            said.append(await self.backend.set_rival(name, condition.rival_cpus / self.dilation))
        if self.spec.speed.reference and self.share(name, condition) != self.share(name, before):
            await self._configure(name, self.limits[name])
        if before.running and not condition.running:
            said.append(await self.backend.set_frozen(name, True))
        return msgspec.structs.replace(rates, held="; ".join([*said, *([rates.held] if rates.held else [])]))

    async def _take_away(self, name: str, before: Condition) -> None:
        """End a device's agent, and what else the scenario has done to the device: its next agent starts afresh."""
        self._left.add(name)
        self.membership.left(name, "the scenario took it away")
        if not before.link:
            await self.backend.set_link(name, True)
        if before.rival_cpus:
            await self.backend.set_rival(name, 0.0)
        if not before.running:
            await self.backend.set_frozen(name, False)
        await self.backend.stop(name)

    async def _put_limits(self, name: str) -> Applied:
        """Bring the limits in force to those wanted, where the device has its limits on."""
        wanted, had = self.limits[name], self._in_force.get(name)
        if name not in self._ready or had is None or wanted == had:
            return Applied()
        software = self._held_by_agent(name)
        if only_rates(had, wanted):
            up, down = await self.backend.set_rates(name, wanted)
            self._in_force[name] = wanted
            applied = Applied("", up, down)
        else:
            await self._limit(name, "scenario")
            applied = Applied("limits as wanted", wanted.uplink_bit_s, wanted.downlink_bit_s)
        if software or wanted.cpus != had.cpus:
            self._spawn(name, self._configure(name, wanted))
        return Applied("told to the agent, which holds its own limits") if software else applied

    async def all_back(self, timeout_s: float = 60.0) -> None:
        """Wait until every agent that was started is at work again. Those that are not in time stay away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not set(self.names) <= {*self._able(), *self._left}:
                    self._ready_changed.clear()
                    await self._ready_changed.wait()

    # ---- who can work ----

    async def ready(self, timeout_s: float = 120.0) -> list[DeviceView]:
        """Devices that are present with their limits on. Waits for one at least. Raises FleetError: none has come
        within `timeout_s`."""
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
                if (driver := self.drivers.get(device)) is not None:
                    driver.heard(device, moved, task, phase)

    def _begin_rejoin(self, device: str) -> None:
        self._ready.discard(device)
        if (earlier := self._rejoining.get(device)) is not None:
            earlier.cancel()
        self._rejoining[device] = self._spawn(device, self._rejoin(device))

    async def _rejoin(self, device: str) -> None:
        try:
            await self.put_on_limits(device, "rejoin")
            await self._put_limits(device)  # the scenario may have changed them meanwhile
        except EdgebedError as error:
            self.record(Fault(time.monotonic_ns(), device, f"came back, but its limits could not be put on: {error}"))
            self.membership.left(device, "it has no limits")  # its next heartbeat is a new attempt

    def on_exit(self, device: str, why: str) -> None:
        """The backend says that an agent's process has ended."""
        if self._closing:
            return
        taken = device in self._left
        self.membership.left(device, why)
        self.membership.expect(device)
        self._in_force.pop(device, None)
        self._work_gone(device, why)
        if not taken:
            self._spawn(device, self._restart(device, why))

    def _work_gone(self, device: str, why: str) -> None:
        self.endpoint.forget(device)
        if (driver := self.drivers.get(device)) is not None:
            driver.lost(device, why)

    async def _restart(self, device: str, why: str) -> None:
        budget = self._restarts[device]
        if not budget.take(time.monotonic()):
            ended = f"ended {budget.most + 1} times within {budget.within_s / 60:.0f} min without a finished task"
            what = f"its agent {ended} and is not started again: {why}"
            self.record(Fault(time.monotonic_ns(), device, what))
            self.membership.give_up(device, what)
            return
        try:
            await self.backend.restart(device)
        except EdgebedError as error:
            self.record(Fault(time.monotonic_ns(), device, f"could not be restarted: {error}"))
            self.membership.give_up(device, str(error))

    def end_work(self) -> None:
        """Nothing: the round driver has cancelled the tasks that were open."""

    async def flush(self) -> None:
        await self.membership.flush()

    async def rest(self, left_out: Collection[str]) -> None:
        """As `RunFleet.rest`. A device that stays at work without progress is recorded as a fault."""
        silence_s = REST_SILENCE_S * self.dilation
        busy = await self.membership.rest(silence_s)
        for name in busy:
            what = f"still has a task of the last round after {silence_s:.0f} s without progress"
            self.record(Fault(time.monotonic_ns(), name, f"{what}; it may disturb the next method's round"))
        slowest = min((min(self.limits[n].uplink_bit_s, self.limits[n].downlink_bit_s) for n in left_out), default=0)
        if slowest:
            await asyncio.sleep(8 * CHUNKS_UNDER_WAY * CHUNK_BYTES / slowest)

    def lost(self, device: str, why: str) -> None:
        """The round gave a device up; it counts as away until its next message."""
        self.membership.left(device, why)

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        if isinstance(inbound.header, Update):
            self._restarts[inbound.peer].clear()
        await super().deliver(inbound)

    # ---- messages that are dropped ----

    def knows(self, name: str) -> bool:
        return name in self.profiles

    def dropped(self, peer: str, why: str) -> None:
        """Messages of a peer are dropped. Told once for each peer and cause."""
        known = self.knows(peer)
        who = peer if known else repr(peer[:NAME_CHARACTERS])
        what = f"{who} {why}: its messages are dropped" if known else f"{who} {why}: messages in its name are dropped"
        self.record(Fault(time.monotonic_ns(), peer if known else "", what))

    # ---- end ----

    async def close(self) -> None:
        self._closing = True
        for job in tuple(self._jobs):
            job.cancel()
        self.membership.shutdown("the fleet is closed")
        await asyncio.sleep(0.05)  # time for the message to leave; the backend ends agents that miss it
        await self.backend.close()
        for name in self.names:  # clear the retained messages, which a user's own broker would keep
            self.control.publish(Topics(self.fleet_id).state(name), b"", retain=True)

    def _spawn(self, device: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(lambda done: self._ended(device, done))
        return job

    def _ended(self, device: str, job: asyncio.Task[None]) -> None:
        """Record an unexpected error; the device stays away."""
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            what = f"{type(error).__name__}: {error}"
            self.record(Fault(time.monotonic_ns(), device, what))
