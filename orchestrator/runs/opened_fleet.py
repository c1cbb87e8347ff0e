"""Opens the backends of a fleet: that of this host's devices, that of its boards, or both."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from edgebed.errors import UsageError
from edgebed.link.base import Link
from edgebed.link.mqtt import MqttLink
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.boards.backend import BoardsFleet
from orchestrator.boards.boards_broker import BoardsBroker, boards_broker
from orchestrator.boards.members import Taken, board_ids, claimed
from orchestrator.boards.registry import Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.boards.split_link import SplitLink
from orchestrator.broker.open_broker import Broker, open_broker
from orchestrator.broker.own import OwnBroker
from orchestrator.fleet.base import Fleet
from orchestrator.fleet.mixed import MixedFleet, many_hosts
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.runs.request import Notify


def claim_boards(stack: AsyncExitStack, spec: FleetSpec, fleet_id: str) -> None:
    """`stack` gives them back. Raises FleetError where another fleet has them."""
    if spec.boards:
        place = ServiceFolder.of_user()
        ids = board_ids(spec, Store(place).read())
        taken = Taken(spec.name, fleet_id, os.getpid())
        stack.enter_context(claimed(place, {each.board: ids[each.name] for each in spec.boards}, taken))


class OpenedFleet:
    """The backends of a fleet, and the brokers of its devices.

    Attributes:
        fleet: all devices.
        broker: of this host's devices, else of the boards; set by `open_broker`.
    """

    broker: Broker | BoardsBroker

    def __init__(self, spec: FleetSpec, fleet_id: str, fleet: Fleet, boards: BoardsBroker | None) -> None:
        self.fleet = fleet
        self._spec, self._fleet_id, self._boards = spec, fleet_id, boards
        self._ids: dict[str, str] = {}

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        spec: FleetSpec,
        fleet_id: str,
        notify: Notify,
        open_here: Callable[[FleetSpec], Fleet],
    ) -> OpenedFleet:
        """Nothing is prepared yet; `stack` closes it. `open_here` opens the fleet of the devices that are no boards.
        Raises FleetError."""
        if not spec.boards:
            return cls(spec, fleet_id, open_here(spec), None)
        place = ServiceFolder.of_user()
        ids = board_ids(spec, Store(place).read())
        boards = await stack.enter_async_context(boards_broker(place, notify))
        fleet: Fleet = BoardsFleet(spec, fleet_id, ids, place, boards, notify)
        if spec.here:
            fleet = MixedFleet(open_here(msgspec.structs.replace(spec, devices=spec.here)), fleet, ids)
        opened = cls(spec, fleet_id, fleet, boards)
        opened._ids = ids
        return opened

    async def open_broker(self, stack: AsyncExitStack, addresses: list[str], own: OwnBroker | None) -> None:
        """Raises UsageError, LinkError."""
        if self._spec.here:
            names = [device.name for device in self._spec.here]
            hosts = many_hosts(self.fleet)
            tls = hosts.tls_listener() if hosts else None
            broker = open_broker(addresses, own, fleet=self._fleet_id, devices=names, tls=tls)
            self.broker = await stack.enter_async_context(broker)
            return
        if own is not None:
            raise UsageError(
                f"all devices of {self._spec.name} are boards, which use the broker of the boards service",
                hint="leave --broker away",
            )
        assert self._boards is not None
        self.broker = self._boards

    def link(self, purpose: str) -> Link:
        """The orchestrator's connection to all devices, not open yet. `purpose`: control or data."""
        # nobody can guess the client id and take the connection's place
        client = f"{self._fleet_id}-{ORCHESTRATOR}-{uuid.uuid4().hex}-{purpose}"
        if self._boards is None:
            return MqttLink(self.broker.address, client)
        here = MqttLink(self.broker.address, client) if self._spec.here else None
        return SplitLink(here, MqttLink(self._boards.find, client), self._ids)
