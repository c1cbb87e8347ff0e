"""The devices that are present now: presence, configuration, clocks, probes, and the phases that they report."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from edgebed.errors import FleetError
from edgebed.wire.messages import (
    Configure,
    Control,
    PhasesSeen,
    Ping,
    Pong,
    Presence,
    Probe,
    ProbeResult,
    Shutdown,
    Status,
)
from edgebed.wire.protocol import PROTOCOL
from orchestrator.fleet.control.member import RECORD_BYTES_S, DeviceEvent, Heard, Joined, Left, Member
from orchestrator.fleet.control.pinning import Verdict
from orchestrator.records.host_records import BoardReadings
from orchestrator.records.types import ClockOffset, DeviceJoined, DeviceLeft, DevicePhases, Fault, Record

PHASE_BYTES, READING_BYTES = 100, 300
"""Bytes of a phase and of a reading in the records, without names and cores; at most about."""

REPEAT_S = 1.0
"""Seconds between repetitions of Configure until it is answered, before dilation; other requests wait a multiple of
it."""

ABSENT_S = 60.0
"""A device that is measured and whose connection broke may come back within so long."""

RIVAL_BEATS = 3
"""Heartbeats of a second agent with a device's name, without one of the first, after which it becomes that device."""

SendControl = Callable[[str, Control], None]
"""Sends a control message to a device."""


class Membership:
    """The devices of one standing fleet.

    Args:
        names: every device of the fleet.
        send: sends a control message to a device.
        record: takes records of what happens to devices.
        pinned: whether the agents of a device are started by the fleet only.
        plugins: SHA-256 of the plug-ins that every agent must use, by name.
    """

    def __init__(
        self,
        names: Iterable[str],
        send: SendControl,
        record: Callable[[Record], None],
        dilation: float = 1.0,
        pinned: Callable[[str], bool] = lambda name: False,
        plugins: Mapping[str, str] | None = None,
    ) -> None:
        self._plugins = plugins or {}
        self._repeat_s = REPEAT_S * dilation
        self.devices = {name: Member(name, pinned(name)) for name in names}
        self._send, self._record = send, record
        self._tell: Callable[[DeviceEvent], None] = lambda event: None
        self._probes: dict[str, asyncio.Future[ProbeResult]] = {}
        self._pongs: dict[int, asyncio.Future[tuple[Pong, int]]] = {}
        self._seq = 0

    def listen(self, callback: Callable[[DeviceEvent], None]) -> None:
        """Call `callback` for every event from now on."""
        self._tell = callback

    def present(self) -> list[str]:
        """Devices online now, by name."""
        return [name for name, device in self.devices.items() if device.online]

    # ---- messages ----

    def on_control(self, peer: str, message: Control) -> None:
        """A control message that is not about transfers. One of an unknown device changes nothing."""
        device = self.devices.get(peer)
        if device is None:
            return
        match message:
            case Presence() if message.device == peer:
                self._presence(device, message)
            case Status() if message.device == peer:
                self._status(device, message)
            case Pong(sender, seq, _, _) if sender == peer and seq in self._pongs:
                _resolve(self._pongs[seq], (message, time.monotonic_ns()))
            case ProbeResult() if message.device == peer and message.id in self._probes:
                _resolve(self._probes[message.id], message)
            case _:
                return
        device.changed.set()

    def _presence(self, device: Member, message: Presence) -> None:
        if message.online:
            self._joined(device, message)
        elif message.incarnation == device.incarnation:
            self.left(device.name, "its connection ended (last will)")

    def _joined(self, device: Member, message: Presence) -> None:
        if message.protocol != PROTOCOL:
            why = f"agent speaks protocol {message.protocol}, this orchestrator {PROTOCOL}: update the older side"
            if self._affords(device, len(why) + PHASE_BYTES):
                self._record(Fault(time.monotonic_ns(), device.name, why))
            return
        verdict = device.pin.verdict(message.incarnation, online=device.online)
        if verdict is Verdict.NEW and (why := self._other_code(message)):
            self.give_up(device.name, why)
            self._refuse(device, message, why)
            return
        match verdict:
            case Verdict.OWN if device.online or not device.joins.take(time.monotonic()):
                pass  # a later heartbeat brings it back
            case Verdict.NEW if not device.pin.strict and not device.joins.take(time.monotonic()):
                device.rival, device.rival_beats = message, 0  # its heartbeats bring it in later
            case Verdict.OWN | Verdict.NEW:
                self._admit(device, message)
            case Verdict.RIVAL:
                device.rival, device.rival_beats = message, 0
            case Verdict.FOREIGN:
                self._send_away(device, message)
            case Verdict.PAST:
                who = f"an agent that has ended or was sent away (incarnation {message.incarnation[:8]})"
                self._refuse(device, message, f"{who} announced itself as {device.name} again: it changes nothing")

    def _other_code(self, agent: Presence) -> str:
        """Why an agent may not work in this run, where its plug-ins are not those of the orchestrator; else ""."""
        for name, sha256 in self._plugins.items():
            there = agent.plugins.get(name)
            if there != sha256:
                has = (
                    f"has other code of the plug-in {name!r}, {there[:12]}…" if there else f"lacks the plug-in {name!r}"
                )
                return (
                    f"{agent.device} {has} (SHA-256 of this run's: {sha256[:12]}…); install the version of this run on "
                    "it, or have it take the code from here (edgebed-agent join --allow-code)"
                )
        return ""

    def _admit(self, device: Member, message: Presence) -> None:
        """Take this agent as the device from now on."""
        again = bool(device.incarnation)
        restarted = again and message.incarnation != device.incarnation
        if message.incarnation != device.incarnation:
            device.phases_upto, device.status = 0, None
        device.pin.take(message.incarnation)
        device.hopeless = ""
        device.online, device.presence, device.rival = True, message, None
        self._record(DeviceJoined(time.monotonic_ns(), device.name, message.incarnation, again, message.host))
        self._tell(Joined(device.name, again, restarted))

    def expect(self, name: str) -> None:
        """The device's agent has ended, or the fleet is about to start another one: the next may join."""
        self.devices[name].pin.release()

    def give_up(self, name: str, why: str) -> None:
        """The device will not join: its agent has ended too often."""
        self.devices[name].hopeless = why
        self.devices[name].changed.set()

    def left(self, name: str, why: str) -> None:
        """The device is gone (last will, or its process ended)."""
        device = self.devices[name]
        if device.online:
            device.online = False
            self._record(DeviceLeft(time.monotonic_ns(), name, why))
            self._tell(Left(name, why))

    def _foreign_beat(self, device: Member, incarnation: str) -> None:
        """A heartbeat of another agent with the device's name. It becomes the device if the first agent is silent, as
        after a restart of a board whose end was not seen."""
        if device.pin.is_past(incarnation):
            self._send(device.name, Shutdown(f"another agent is {device.name} already", incarnation))
        elif device.rival is not None and device.rival.incarnation == incarnation:
            device.rival_beats += 1
            if device.rival_beats >= RIVAL_BEATS and device.joins.take(time.monotonic()):
                rival = device.rival
                if why := self._other_code(rival):
                    self._refuse(device, rival, why)
                    return
                self.left(device.name, f"silent for {RIVAL_BEATS} heartbeats of a second agent with its name")
                self._admit(device, rival)

    def _send_away(self, device: Member, rival: Presence) -> None:
        """There is a first agent: have the second one with its name shut down."""
        host, pid = rival.host.get("hostname", "unknown"), rival.host.get("pid", "unknown")
        why = f"two agents call themselves {device.name}: the one that joined later is sent away"
        self._refuse(device, rival, f"{why} (host {host}, process {pid})")
        device.rival = None

    def _refuse(self, device: Member, agent: Presence, why: str) -> None:
        if device.pin.refuse(agent.incarnation):
            self._record(Fault(time.monotonic_ns(), device.name, why))
        self._send(device.name, Shutdown(why, agent.incarnation))

    def _status(self, device: Member, status: Status) -> None:
        if not device.pin.holds(status.incarnation):
            self._foreign_beat(device, status.incarnation)
            return
        if device.rival is not None:
            self._send_away(device, device.rival)
        device.rival_beats = 0
        if not device.online and device.presence is not None:
            if not device.joins.take(time.monotonic()):
                return  # a later heartbeat brings it back
            # After a last will: the device had lost its connection and is back.
            device.online = True
            self._record(DeviceJoined(time.monotonic_ns(), device.name, status.incarnation, True))
            self._tell(Joined(device.name, True, False))
        moved = device.status is None or status.progress != device.status.progress
        device.status = status
        self._take_phases(device, status)
        if status.board:
            device.reading = status.board[-1]
            if self._affords(device, sum(READING_BYTES + 6 * len(each.mhz) for each in status.board)):
                self._record(BoardReadings(time.monotonic_ns(), device.name, device.incarnation, status.board))
        self._tell(Heard(device.name, moved, status.task, status.phase))

    def _take_phases(self, device: Member, status: Status) -> None:
        """Record the phases not yet recorded, and acknowledge them."""
        skip = device.phases_upto - status.first_phase
        if skip < 0 or not status.phases:
            return
        fresh = status.phases[skip:]
        device.phases_upto += len(fresh)
        if fresh and self._affords(device, sum(PHASE_BYTES + len(each.name) + len(each.task) for each in fresh)):
            self._record(DevicePhases(time.monotonic_ns(), device.name, device.incarnation, fresh))
        self._send(device.name, PhasesSeen(device.incarnation, device.phases_upto))

    def _affords(self, device: Member, amount: int) -> bool:
        """Whether the device may make so many more bytes of records. The first time that it may not is recorded."""
        if device.records.take(time.monotonic(), amount):
            return True
        if not device.overspent:
            device.overspent = True
            what = (
                f"its heartbeats make more than {RECORD_BYTES_S >> 10} KiB of records a second: what is above is lost"
            )
            self._record(Fault(time.monotonic_ns(), device.name, what))
        return False

    # ---- requests ----

    async def wait_joined(self, timeout_s: float) -> None:
        """Wait until every device is online. Raises FleetError with the names of those that are not, at once where it
        is known that one will not join."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for device in self.devices.values():
                    while not device.online and not device.hopeless:
                        await self._change(device)
        for device in self.devices.values():
            if device.hopeless and not device.online:
                raise FleetError(
                    f"the agent of {device.name} does not run: {device.hopeless}", hint="remove the cause that it names"
                )
        absent = sorted(set(self.devices) - set(self.present()))
        if absent:
            raise FleetError(
                f"{len(absent)} of {len(self.devices)} devices did not join within {timeout_s:.0f} s: "
                f"{', '.join(absent)}",
                hint="see the agents' logs in the fleet's folder; a firewall between device and broker, or too little "
                "memory, are the usual causes",
            )

    async def configure(self, name: str, settings: Configure, timeout_s: float = 60.0) -> None:
        """Send settings (`seq` is set here) until the agent confirms them. Raises FleetError when it does not."""
        device = self.devices[name]
        self._seq += 1
        device.configure = wanted = msgspec.structs.replace(settings, seq=self._seq, incarnation=device.incarnation)
        deadline = time.monotonic() + timeout_s
        while device.status is None or device.status.configured < wanted.seq:
            if time.monotonic() > deadline:
                raise FleetError(
                    f"{name} took no settings within {timeout_s:.0f} s", hint="its agent hangs: restart it"
                )
            self._send(name, wanted)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._repeat_s):
                    await self._change(device)

    async def probe(self, name: str, probe: Probe) -> ProbeResult:
        """Have a device measure something; repeated until answered. Raises FleetError when it restarts meanwhile, is
        gone for good, or does not come back within ABSENT_S."""
        probe = msgspec.structs.replace(probe, id=probe.id or uuid.uuid4().hex)
        future: asyncio.Future[ProbeResult] = asyncio.get_running_loop().create_future()
        self._probes[probe.id] = future
        device, seen = self.devices[name], time.monotonic()
        incarnation = device.incarnation
        try:
            while not future.done():
                seen = time.monotonic() if device.online else seen
                if device.incarnation != incarnation:
                    raise FleetError(f"{name} restarted during a probe", hint="repeat the calibration")
                if not device.online and (device.hopeless or time.monotonic() - seen > ABSENT_S):
                    why = device.hopeless or f"it was away for {ABSENT_S:.0f} s"
                    raise FleetError(f"{name} is gone: {why}", hint="remove the cause, then measure again")
                self._send(name, probe)
                await asyncio.wait([future], timeout=5 * self._repeat_s)
            return future.result()
        finally:
            del self._probes[probe.id]

    async def measure_clock(self, name: str, rounds: int = 5) -> ClockOffset:
        """Estimate the offset of a device's clock from the quickest of `rounds` round trips. Raises FleetError."""
        best: tuple[int, int] | None = None
        for _ in range(rounds):
            self._seq += 1
            seq, future = self._seq, asyncio.get_running_loop().create_future()
            self._pongs[seq] = future
            sent = time.monotonic_ns()
            self._send(name, Ping(seq, sent, self.devices[name].incarnation))
            try:
                async with asyncio.timeout(5 * self._repeat_s):
                    pong, received = await future
            except TimeoutError:
                continue
            finally:
                del self._pongs[seq]
            trip = received - sent
            if best is None or trip < best[0]:
                best = (trip, pong.device_ns - (sent + received) // 2)
        if best is None:
            raise FleetError(f"{name} answers no ping", hint="check its link: the control connection is dead")
        self.devices[name].offset_ns = best[1]
        offset = ClockOffset(time.monotonic_ns(), name, best[1], best[0] // 2)
        self._record(offset)
        return offset

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Have every device report its phases up to now. Phases that do not come in time are missing from the timeline,
        which shows the gap."""
        now = time.monotonic_ns()
        waits = (self._flush_one(self.devices[name], now) for name in self.present())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*waits)

    async def _flush_one(self, device: Member, now_ns: int) -> None:
        """Repeat the settings, which an agent answers with a Status, until one comes that was sent after `now_ns`."""
        while device.configure and (device.status is None or device.status.sent_ns < now_ns + device.offset_ns):
            self._send(device.name, device.configure)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._repeat_s):
                    await self._change(device)

    async def rest(self, silence_s: float) -> list[str]:
        """Wait until every device that is present has no task.

        Returns:
            Devices that still have a task, and have made no progress for `silence_s` seconds.
        """
        names = self.present()
        resting = await asyncio.gather(*(self._rest_one(self.devices[name], silence_s) for name in names))
        return [name for name, rests in zip(names, resting, strict=True) if not rests]

    async def _rest_one(self, device: Member, silence_s: float) -> bool:
        """Ask now and then with the settings, which an agent answers with a Status. An agent that ends a task
        sends one unasked."""
        since_ns = time.monotonic_ns()
        progress, heard_s = -1, time.monotonic()
        while device.online and not device.rests_since(since_ns):
            if device.status is not None and device.status.progress != progress:
                progress, heard_s = device.status.progress, time.monotonic()
            if time.monotonic() - heard_s > silence_s:
                return False
            if device.configure is not None:
                self._send(device.name, device.configure)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._repeat_s):
                    while not device.rests_since(since_ns):
                        await self._change(device)
        return True

    def shutdown(self, why: str) -> None:
        for name in self.devices:
            self._send(name, Shutdown(why))

    async def _change(self, device: Member) -> None:
        device.changed.clear()
        await device.changed.wait()


def _resolve(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
