"""The interface of a connection to a broker, as all modules above use it.

`edgebed.link.mqtt.MqttLink` is the real one; `tests.memory_link.MemoryLink` joins peers within one process for unit
tests and simulation. Handlers are called in the event loop, in order of arrival, and must not block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Handler = Callable[[str, bytes], None]
"""Called with topic and payload."""


class Link(Protocol):
    """One connection. Survives the broker's absence: it reconnects with backoff until `close`."""

    @property
    def connected(self) -> bool: ...

    async def open(self) -> None:
        """Connect for the first time. Raises LinkError with cause and hint when that is not possible."""

    async def close(self) -> None: ...

    def subscribe(self, topic: str, handler: Handler) -> None:
        """Deliver messages on `topic` (MQTT filter) to `handler`; renewed after every reconnect."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Hand a message over; returns at once. A message that is published while disconnected may be lost; the
        protocols above repeat what matters."""

    def on_connect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every reconnect (not after the first `open`)."""
