"""Sends boards back to waiting that work for a fleet whose orchestrator has ended without a word."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edgebed.errors import WireError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.wire.boards import WAITING, BoardState, decode_json
from orchestrator.boards.members import is_claimed
from orchestrator.boards.service_folder import ServiceFolder


class Releasing:
    """Withdraws orders of boards that no living orchestrator has claimed.

    Args:
        broker: on loopback, with the orchestrator's user.
    """

    def __init__(self, place: ServiceFolder, broker: Address, client: str) -> None:
        self._place, self._working = place, set[str]()
        self._link = MqttLink(broker, client)
        self._link.subscribe(WAITING.state("+"), self._heard)

    async def open(self) -> None:
        """Raises LinkError."""
        await self._link.open()

    async def close(self) -> None:
        await self._link.close()

    def look(self) -> None:
        """To be called now and then. A living orchestrator has claimed its boards; the others get no order."""
        for board in [each for each in self._working if not is_claimed(self._place, each)]:
            self._link.publish(WAITING.control_to(board), b"", retain=True)
            self._working.discard(board)

    def tell_revoked(self, boards: Iterable[str]) -> None:
        """Say for these boards that they are gone: the broker refuses their last wills, for they have no rights."""
        gone = msgspec.json.encode(BoardState(False, error="the board is revoked", final=True))
        for board in boards:
            self._link.publish(WAITING.state(board), gone, retain=True)

    def _heard(self, topic: str, payload: bytes) -> None:
        board = WAITING.device_of(topic)
        try:
            state = decode_json(payload, BoardState)
        except WireError:
            return
        if state.online and state.fleet:
            self._working.add(board)
        else:
            self._working.discard(board)
