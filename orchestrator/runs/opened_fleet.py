"""Opens the backends of a fleet: that of this host's devices, that of its boards, or both."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from edgebed.errors import UsageError
from edgebed.link.base import Link
from edgebed.link.mqtt import MqttLink
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.boards.backend import BoardsBackend
from orchestrator.boards.boards_broker import BoardsBroker, boards_broker
from orchestrator.boards.members import Taken, board_ids, claimed
from orchestrator.boards.registry import Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.boards.split_link import SplitLink
from orchestrator.broker.open_broker import Broker, open_broker
from orchestrator.broker.own import OwnBroker
from orchestrator.fleet.base import Backend
from orchestrator.fleet.mixed import MixedBackend, many_hosts
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.runs.request import Notify


def claim_boards(stack: AsyncExitStack, spec: FleetSpec, fleet_id: str) -> dict[str, str]:
    """Returns the ids of the fleet's boards, by device; `stack` gives them back. Raises FleetError where another fleet
    has them."""
    if not spec.boards:
        return {}
    place = ServiceFolder.of_user()
    ids = board_ids(spec, Store(place).read())
    taken = Taken(spec.name, fleet_id, os.getpid())
    stack.enter_context(claimed(place, {each.board: ids[each.name] for each in spec.boards}, taken))
    return ids


class OpenedFleet:
    """The backends of a fleet, and the way to its devices.

    Args:
        boards: the broker of its boards; None where it has none.
        ids: of the boards, by device.

    Attributes:
        backend: of all devices.
    """

    def __init__(
        self, spec: FleetSpec, fleet_id: str, backend: Backend, boards: BoardsBroker | None, ids: Mapping[str, str]
    ) -> None:
        self.fleet_id, self.backend = fleet_id, backend
        self.spec, self._boards, self._ids = spec, boards, ids

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        spec: FleetSpec,
        fleet_id: str,
        ids: Mapping[str, str],
        notify: Notify,
        open_here: Callable[[FleetSpec], Backend],
        plugins: Path | None = None,
    ) -> OpenedFleet:
        """Nothing is prepared yet; `stack` closes it. `open_here` opens the backend of the devices that are no boards;
        `plugins`: folder of those that boards use. Raises FleetError."""
        if not spec.boards:
            return cls(spec, fleet_id, open_here(spec), None, ids)
        place = ServiceFolder.of_user()
        boards = await stack.enter_async_context(boards_broker(place, notify))
        backend: Backend = BoardsBackend(spec, fleet_id, ids, place, boards, notify, plugins)
        if spec.here:
            backend = MixedBackend(open_here(msgspec.structs.replace(spec, devices=spec.here)), backend, ids)
        return cls(spec, fleet_id, backend, boards, ids)

    async def open_broker(
        self, stack: AsyncExitStack, addresses: list[str], own: OwnBroker | None
    ) -> Broker | BoardsBroker:
        """The broker of this host's devices, else of the boards. Raises UsageError, LinkError."""
        if self.spec.here:
            names = [device.name for device in self.spec.here]
            hosts = many_hosts(self.backend)
            tls = hosts.tls_listener() if hosts else None
            broker = open_broker(addresses, own, fleet=self.fleet_id, devices=names, tls=tls)
            return await stack.enter_async_context(broker)
        if own is not None:
            raise UsageError(
                f"all devices of {self.spec.name} are boards, which use the broker of the boards service",
                hint="leave --broker away",
            )
        assert self._boards is not None
        return self._boards

    def link(self, broker: Broker | BoardsBroker, purpose: str) -> Link:
        """The orchestrator's connection to all devices, not open yet.

        Args:
            broker: as `open_broker` returned it.
            purpose: control or data.
        """
        # nobody can guess the client id and take the connection's place
        client = f"{self.fleet_id}-{ORCHESTRATOR}-{uuid.uuid4().hex}-{purpose}"
        if self._boards is None:
            return MqttLink(broker.address, client)
        here = MqttLink(broker.address, client) if self.spec.here else None
        return SplitLink(here, MqttLink(self._boards.find, client), self._ids)
