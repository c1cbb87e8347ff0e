"""Sends boards back to waiting that work for a fleet whose orchestrator has ended without a word."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import msgspec

from edgebed.errors import WireError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.wire.boards import WAITING, BoardState, decode_json
from orchestrator.broker.acl import writable


class Releasing:
    """Withdraws orders of boards that no living orchestrator has claimed.

    Args:
        broker: for the orchestrator.

    Attributes:
        working: boards that say that they work for a fleet.
    """

    def __init__(self, broker: Address, client: str) -> None:
        self.working, self._told = set[str](), set[str]()
        self._link = MqttLink(broker, client)
        self._link.subscribe(WAITING.state("+"), self._heard)

    async def open(self) -> None:
        """Raises LinkError."""
        await self._link.open()

    async def close(self) -> None:
        await self._link.close()

    def look(self, claimed: AbstractSet[str]) -> None:
        """To be called now and then. A living orchestrator has claimed its boards; the others get no order."""
        left = self.working - claimed
        for board in left - self._told:
            self._link.publish(WAITING.control_to(board), b"", retain=True)
        self._told = left

    def tell_revoked(self, boards: Iterable[str]) -> None:
        """Say for these boards that they are gone: the broker refuses their last wills, for they have no rights."""
        gone = msgspec.json.encode(BoardState(False, error="the board is revoked", final=True))
        for board in boards:
            self._link.publish(WAITING.state(board), gone, retain=True)

    def forget(self, board: str, fleet: str) -> None:
        """Have the broker forget what a board has had it keep for a fleet, whose topics it may no longer use."""
        for topic in writable(fleet, board):
            self._link.publish(topic, b"", retain=True)

    def _heard(self, topic: str, payload: bytes) -> None:
        board = WAITING.device_of(topic)
        try:
            state = decode_json(payload, BoardState)
        except WireError:
            return
        if state.online and state.fleet:
            self.working.add(board)
        else:
            self.working.discard(board)
