"""A broker within one process, for tests: the same Link, no sockets.

Messages are handed over in the event loop, later than `publish` returns, as over a socket. A hub can be told to lose,
repeat or swap messages, and to disconnect a link as a broker's restart would.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from edgebed.errors import LinkError
from edgebed.link.base import Handler


def matches(topic_filter: str, topic: str) -> bool:
    """Whether an MQTT topic filter (with `+` and a last `#`) covers a topic."""
    want, have = topic_filter.split("/"), topic.split("/")
    if want[-1] == "#":
        want, have = want[:-1], have[: len(want) - 1]
    return len(want) == len(have) and all(w in ("+", h) for w, h in zip(want, have, strict=True))


class MemoryHub:
    """The broker: retained messages, last wills, and faults on demand.

    `lose`, `repeat` and `swap` are probabilities per message; `seed` makes the faults repeatable.
    """

    def __init__(self, *, lose: float = 0.0, repeat: float = 0.0, swap: float = 0.0, seed: int = 0) -> None:
        self.lose, self.repeat, self.swap = lose, repeat, swap
        self.retained: dict[str, bytes] = {}
        self.links: list[MemoryLink] = []
        self._random = random.Random(seed)

    def route(self, topic: str, payload: bytes, retain: bool) -> None:
        if retain:
            self.retained[topic] = payload
            if not payload:
                del self.retained[topic]
        chance = self._random.random
        for link in self.links:
            if not link.wants(topic) or chance() < self.lose:
                continue
            for _ in range(2 if chance() < self.repeat else 1):
                link.receive(topic, payload, early=chance() < self.swap)


class MemoryLink:
    """One peer's connection to a MemoryHub.

    Args:
        will: topic, payload and retain flag of the message the hub sends when the link is dropped.
    """

    def __init__(self, hub: MemoryHub, *, will: tuple[str, bytes, bool] | None = None) -> None:
        self._hub, self._will = hub, will
        self._subscriptions: list[tuple[str, Handler]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._inbox: list[tuple[str, bytes]] = []

    @property
    def connected(self) -> bool:
        return self in self._hub.links

    async def open(self) -> None:
        if self.connected:
            raise LinkError("this link is open already")
        self._hub.links.append(self)
        self._renew()

    async def close(self) -> None:
        if self.connected:
            self._hub.links.remove(self)
        self._inbox.clear()

    def drop(self) -> None:
        """The connection breaks: what is on the way is lost, the last will is sent."""
        if self.connected:
            self._hub.links.remove(self)
            self._inbox.clear()
            if self._will is not None:
                self._hub.route(*self._will)

    def restore(self) -> None:
        """The connection comes back, as after the reconnect of a real link."""
        if not self.connected:
            self._hub.links.append(self)
            self._renew()
            for callback in self._callbacks:
                callback()

    def subscribe(self, topic: str, handler: Handler) -> None:
        self._subscriptions.append((topic, handler))
        if self.connected:
            self._replay(topic)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if self.connected:
            self._hub.route(topic, bytes(payload), retain)

    def on_connect(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def wants(self, topic: str) -> bool:
        return any(matches(wanted, topic) for wanted, _ in self._subscriptions)

    def receive(self, topic: str, payload: bytes, *, early: bool = False) -> None:
        """Queue a message for this link's handlers; an `early` one overtakes the message before it."""
        self._inbox.insert(len(self._inbox) - 1 if early and self._inbox else len(self._inbox), (topic, payload))
        asyncio.get_running_loop().call_soon(self._handle_one)

    def _handle_one(self) -> None:
        if self._inbox:
            topic, payload = self._inbox.pop(0)
            for wanted, handler in list(self._subscriptions):
                if matches(wanted, topic):
                    handler(topic, payload)

    def _renew(self) -> None:
        for topic, _ in self._subscriptions:
            self._replay(topic)

    def _replay(self, topic_filter: str) -> None:
        for topic, payload in self._hub.retained.items():
            if matches(topic_filter, topic):
                self.receive(topic, payload)
