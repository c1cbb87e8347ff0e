"""The backend `boards`: real boards that have joined this host's boards service do the devices' work.

A board gets an order over MQTT, fetches its shard over HTTPS, and starts an agent; it starts the agent again by
itself. What a board cannot do for us (freeze, cut its link) is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from edgebed.datasets.shard import sha256_of
from edgebed.errors import FleetError, LimitError, WireError
from edgebed.limits.throttle import confirm
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.plugin_code import read_plugins
from edgebed.wire.boards import WAITING, BoardOrder, BoardState, decode_json
from edgebed.wire.protocol import PROTOCOL
from edgebed.wire.topics import Topics
from orchestrator.boards.boards_broker import BoardsBroker
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.fleet.base import ALONE, Enforcement, Held
from orchestrator.fleet.spec.profile import FleetSpec, Limits

CONNECT_S, RECONNECT_S = 10.0, 45.0
"""A fleet waits so long for its boards to be connected: to a service that stands, and to one that has just started,
which boards that wait find within 30 s."""

RELEASE_S = 15.0
"""A board has ended its agent after so long; it kills one that does not end within 10 s."""

LIMIT_S = 30.0
"""A board has put limits on itself after so long."""

SHARD_KEPT_S = 7 * 86400.0
"""A shard that no fleet has used for so long is removed."""

AWAY = BoardState(False)


class BoardsBackend:
    """The boards of one fleet.

    Args:
        spec: the fleet; its boards are the devices here.
        ids: the boards' ids, by device.
        plugins: folder of the plug-ins that the agents use.
    """

    name = "boards"

    def __init__(
        self,
        spec: FleetSpec,
        fleet_id: str,
        ids: Mapping[str, str],
        place: ServiceFolder,
        broker: BoardsBroker,
        notify: Callable[[str], None],
        plugins: Path | None = None,
    ) -> None:
        self._plugins = plugins
        self._boards = {device.name: device.board for device in spec.boards}
        self._accelerators = {device.name: device.accelerator for device in spec.boards}
        self._limited = {device.name for device in spec.boards if not device.profile.limits.unlimited}
        self.enforcement = Enforcement.KERNEL if self._limited else Enforcement.UNLIMITED
        self._fleet_id, self._ids, self._place, self._broker = fleet_id, dict(ids), place, broker
        self._devices = {board: name for name, board in self._ids.items()}
        self._notify = notify
        self._states = dict.fromkeys(self._ids, AWAY)
        self._orders: dict[str, BoardOrder] = {}
        self._stopped: set[str] = set()
        self._lives: dict[str, str] = {}  # by device: `life` of the board that started its agent
        self._changed = asyncio.Event()
        self._exit: Callable[[str, str], None] = lambda device, why: None
        self._link = MqttLink(broker.find, broker.client("desk"))
        self._open = False

    async def prepare(self) -> list[str]:
        """Wait until every board is connected. Raises FleetError."""
        self._link.subscribe(WAITING.state("+"), self._heard)
        self._link.on_connect(self._again)
        self._open = True
        await self._link.open()
        await self._until_allowed()
        seconds = RECONNECT_S if self._broker.started else CONNECT_S
        if not await self._until(lambda: not self._absent(), seconds):
            raise FleetError(
                f"not connected within {seconds:.0f} s: {', '.join(self._told_away(name) for name in self._absent())}",
                hint="see whether they have power and a network, and what `edgebed-agent run` says on them",
            )
        for name, state in self._states.items():
            if state.protocol != PROTOCOL:
                raise FleetError(
                    f"the board {self._boards[name]} has edgebed {state.version or 'of an older version'}, whose agent "
                    f"speaks protocol {state.protocol or 'not known'}; this host's speaks {PROTOCOL}",
                    hint=f"install the wheel of {metadata.version('edgebed')} on the board (docs/boards.md), never one "
                    "of an index; restart edgebed-agent",
                )
        return []

    async def _until_allowed(self) -> None:
        """The service lets boards use the topics of the fleet that has claimed them. Raises FleetError."""
        deadline = time.monotonic() + CONNECT_S
        while (live := self._place.live()) is None or any(
            live.fleets.get(board) != self._fleet_id for board in self._ids.values()
        ):
            if time.monotonic() > deadline:
                raise FleetError(
                    f"the boards service has not given the boards the topics of this fleet within {CONNECT_S:.0f} s",
                    hint="see what `edgebed boards serve` says",
                )
            await asyncio.sleep(0.05)

    def host_of(self, device: str) -> str:
        """All addresses on which the service listens: an agent takes the one that its board has joined."""
        return self._broker.where.listen

    def pins(self, device: str) -> bool:
        """False: a board starts its agent by itself, after a reboot too."""
        return False

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        alone_s = float(os.environ.get(ALONE, "1800"))
        sums = await asyncio.to_thread(self._offer, {name: shards[name] for name in self._ids})
        plugins, code = await asyncio.to_thread(self._offer_code)
        for name, sha256 in sums.items():
            where = self._accelerators[name]
            order = BoardOrder(self._fleet_id, sha256, alone_s, name, accelerator=where, plugins=plugins, code=code)
            self._order(name, order)

    def _offer_code(self) -> tuple[tuple[str, ...], str]:
        """The names of the plug-ins, and the SHA-256 of an archive of them, which boards that take code can fetch."""
        if self._plugins is None:
            return (), ""
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(shutil.make_archive(f"{folder}/plugins", "zip", self._plugins))
            return tuple(code.name for code in read_plugins(self._plugins)), self._offer_one(archive)

    def _offer(self, shards: Mapping[str, Path]) -> dict[str, str]:
        """Put the shards where boards can fetch them; remove old ones. Returns their SHA-256, by device."""
        now = time.time()
        for path in self._place.shards.glob("*.safetensors"):
            if path.stat().st_mtime < now - SHARD_KEPT_S:
                path.unlink(missing_ok=True)
        return {name: self._offer_one(path) for name, path in shards.items()}

    def _offer_one(self, path: Path) -> str:
        sha256 = sha256_of(path)
        there = self._place.shards / f"{sha256}.safetensors"
        if there.exists():
            os.utime(there)
            return sha256
        part = there.with_suffix(f".{os.getpid()}.part")
        shutil.copyfile(path, part)
        part.replace(there)
        return sha256

    # ---- limits: a board has none, or those with which it limits itself ----

    async def limit(self, device: str, limits: Limits) -> Held:
        if limits.unlimited:
            return await self.held(device)
        if device not in self._limited:
            raise FleetError(
                f"{device} is a real board without limits",
                hint="write `limit: true` beside its `board`, or remove what changes its limits",
            )
        before = self._orders[device]
        wanted = msgspec.structs.replace(before, limits=limits, limited=before.limited + 1)
        self._order(device, wanted)
        if not await self._until(lambda: self._states[device].limited == wanted.limited, LIMIT_S):
            raise LimitError(
                f"the board {self._boards[device]} has not put its limits on within {LIMIT_S:.0f} s",
                hint="see what `edgebed-agent run` says on it",
            )
        if why := self._states[device].unheld:
            raise LimitError(f"the board {self._boards[device]} cannot be limited: {why}")
        return confirm(limits, await self.held(device))

    async def held(self, device: str) -> Held:
        state = self._states[device]
        alive = state.online and state.fleet == self._fleet_id
        if state.held is not None:
            return msgspec.structs.replace(state.held, device=device, alive=alive)
        return Held(device, UNHELD, None, None, None, None, 0.0, 0.0, 0, 0.0, 0, 0, alive, read_back=False)

    async def set_rates(self, device: str, limits: Limits) -> tuple[int, int]:
        if device not in self._limited:
            raise self._refused(device, "its rates cannot be set")
        held = await self.limit(device, limits)
        return held.uplink_bit_s or 0, held.downlink_bit_s or 0

    async def set_link(self, device: str, up: bool) -> str:
        raise self._refused(device, "its link cannot be cut from here")

    async def set_frozen(self, device: str, frozen: bool) -> str:
        raise self._refused(device, "its agent cannot be frozen")

    async def set_rival(self, device: str, cpus: float) -> str:
        raise self._refused(device, "nothing can compete with its agent")

    def _refused(self, device: str, why: str) -> FleetError:
        return FleetError(
            f"{device} is the real board {self._boards[device]}: {why}",
            hint="a scenario can let a board `leave` and `return`; the rest is for devices of this host",
        )

    # ---- agents ----

    async def stop(self, device: str) -> None:
        self._stopped.add(device)
        await self._release([device])
        if self._states[device].fleet == self._fleet_id:
            raise FleetError(f"{device} has not ended its agent within {RELEASE_S:.0f} s", hint="see to the board")
        self._exit(device, "its agent was ended")

    async def restart(self, device: str) -> None:
        """Of an agent that was stopped. One that failed is started again by its board."""
        state = self._states[device]
        if state.final:
            raise FleetError(state.error)
        if device in self._stopped:
            self._stopped.discard(device)
            again = self._orders[device]
            self._order(device, msgspec.structs.replace(again, start=again.start + 1, limits=None))

    def on_exit(self, callback: Callable[[str, str], None]) -> None:
        self._exit = callback

    async def close(self) -> None:
        """Send the boards back to waiting."""
        if not self._open:
            return
        self._open = False
        left = await self._release(list(self._orders))
        if left:
            self._notify(f"still ending their agents: {', '.join(self._boards[name] for name in left)}")
        for board in self._ids.values():
            self._link.publish(Topics(self._fleet_id).state(board), b"", retain=True)
        self._orders.clear()
        await self._link.close()

    async def _release(self, names: list[str]) -> list[str]:
        """Withdraw the orders of these devices. Returns those whose boards do not say so within RELEASE_S."""

        def left() -> list[str]:
            states = {name: self._states[name] for name in names}
            return [name for name, state in states.items() if state.online and state.fleet == self._fleet_id]

        for name in names:
            self._link.publish(WAITING.control_to(self._ids[name]), b"", retain=True)
        await self._until(lambda: not left(), RELEASE_S if self._link.connected else 0.0)
        return left()

    def _order(self, device: str, wanted: BoardOrder) -> None:
        self._orders[device] = wanted
        self._link.publish(WAITING.control_to(self._ids[device]), msgspec.json.encode(wanted), retain=True)

    def _again(self) -> None:
        """The service was away: its broker has forgotten the orders."""
        for device, wanted in self._orders.items():
            if device not in self._stopped:
                self._order(device, wanted)

    # ---- what boards say ----

    def _heard(self, topic: str, payload: bytes) -> None:
        device = self._devices.get(WAITING.device_of(topic))
        if device is None:
            return
        try:
            state = decode_json(payload, BoardState)
        except WireError:
            return
        before, self._states[device] = self._states[device], state
        self._changed.set()
        if self._open and device in self._orders and state != before and (why := self._end_of_agent(device, state)):
            self._exit(device, why)

    def _end_of_agent(self, device: str, state: BoardState) -> str:
        """Why the agent of this device has ended, as far as its board's new state tells; else ""."""
        if not state.online:  # it ended in order, or is revoked; without an error its connection broke
            if state.error:
                self._lives.pop(device, None)
            return state.error
        if state.fleet != self._fleet_id:
            return ""
        before, self._lives[device] = self._lives.get(device, state.life), state.life
        return state.error or ("" if before == state.life else "its board was restarted")

    def _absent(self) -> list[str]:
        return [name for name, state in self._states.items() if not state.online]

    def _told_away(self, device: str) -> str:
        error = self._states[device].error
        return f"{self._boards[device]} ({error})" if error else self._boards[device]

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        return condition()


UNHELD = Limits(0.0, 0, 0, 0, unlimited=True)
