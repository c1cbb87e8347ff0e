"""One link over two brokers: that of this host's devices, and that of the boards, where a board's id stands in its
topics for the name of the device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from edgebed.link.base import Handler, Link


class SplitLink:
    """A link that sends each message over the broker of its device.

    Args:
        here: to the broker of this host's devices; None where there are none.
        boards: to the broker of the boards service.
        ids: the boards' ids, by device.
    """

    def __init__(self, here: Link | None, boards: Link, ids: Mapping[str, str]) -> None:
        self._here, self._boards, self._ids = here, boards, dict(ids)
        self._names = {board: name for name, board in ids.items()}

    @property
    def connected(self) -> bool:
        return all(link.connected for link in self._links)

    @property
    def _links(self) -> list[Link]:
        return [link for link in (self._here, self._boards) if link is not None]

    async def open(self) -> None:
        for link in self._links:
            await link.open()

    async def close(self) -> None:
        await asyncio.gather(*[link.close() for link in self._links])

    def subscribe(self, topic: str, handler: Handler) -> None:
        """`topic` ends in `+`. A board is heard by its own broker only."""

        def from_here(topic: str, payload: bytes) -> None:
            if _last(topic) not in self._ids:
                handler(topic, payload)

        def from_board(topic: str, payload: bytes) -> None:
            board = _last(topic)
            if board in self._names:
                handler(_with_last(topic, self._names[board]), payload)

        if self._here is not None:
            self._here.subscribe(topic, from_here)
        self._boards.subscribe(topic, from_board)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        board = self._ids.get(_last(topic))
        if board is not None:
            self._boards.publish(_with_last(topic, board), payload, retain=retain)
        elif self._here is not None:
            self._here.publish(topic, payload, retain=retain)

    def on_connect(self, callback: Callable[[], None]) -> None:
        for link in self._links:
            link.on_connect(callback)


def _last(topic: str) -> str:
    return topic.rsplit("/", 1)[-1]


def _with_last(topic: str, last: str) -> str:
    return f"{topic.rsplit('/', 1)[0]}/{last}"
