"""An MQTT broker in pure Python (amqtt), run as a child process where there is no Mosquitto: `python -m` this file.

The listeners and the one user come as JSON on standard input, so that the password is in no process list.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import resource
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

from amqtt import broker
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session


class OneUser(BaseAuthPlugin):  # type: ignore[misc]
    """Lets in whoever knows the name and password of the configuration."""

    @dataclass
    class Config:
        username: str
        password: str

    async def authenticate(self, *, session: Session) -> bool:
        given = f"{session.username}\n{session.password}"
        wanted = f"{self.config.username}\n{self.config.password}"
        return hmac.compare_digest(given.encode(), wanted.encode())


class Broker(broker.Broker):  # type: ignore[misc]
    """amqtt's broker (version 0.12.1), mended where it fails a fleet of a hundred devices that join at once."""

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Only to who has subscribed. amqtt sends a new client what is retained for the subscriptions of all others,
        and its connection breaks when another one subscribes meanwhile: 54 of 140 agents were let go at once
        (`tests/benchmarks/embedded_join.py`)."""
        if any(one is session for one, _ in self._subscriptions.get(subscription[0], ())):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def _run_broadcast(self, running_tasks: deque[asyncio.Task[Any]]) -> None:
        """One message to its subscribers, found by their filter. amqtt compares it with every filter of every client
        and may lose it when one subscribes meanwhile. No session of our clients outlives its connection."""
        message = await self._broadcast_queue.get()
        topic, data = message["topic"], message["data"]
        filters = [name for name in self._subscriptions if ("+" in name or "#" in name) and self._matches(topic, name)]
        for name in (topic, *filters):
            for session, granted in self._subscriptions.get(name, ()):
                handler = self._get_handler(session)
                if handler is not None and session.transitions.state == "connected":
                    qos = message.get("qos", granted)
                    running_tasks.append(asyncio.ensure_future(handler.mqtt_publish(topic, data, qos, retain=False)))


async def serve(addresses: list[str], port: int, username: str, password: str) -> None:
    """Listen on every address until the process ends."""
    names = ["default", *(f"address {n}" for n in range(1, len(addresses)))]  # amqtt insists on a default
    plugin = f"{OneUser.__module__}.{OneUser.__qualname__}"
    config = {
        "listeners": {n: {"type": "tcp", "bind": f"{a}:{port}"} for n, a in zip(names, addresses, strict=True)},
        "plugins": {plugin: {"username": username, "password": password}},
    }
    await Broker(config).start()
    await asyncio.Event().wait()


def allow_connections() -> None:
    """Two per device and their files: a shell's usual limit of 1024 would end at 500 devices."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    allow_connections()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sys.modules["orchestrator.broker.amqtt_server"] = sys.modules["__main__"]  # amqtt imports the plugin by its name
    OneUser.__module__ = "orchestrator.broker.amqtt_server"
    asyncio.run(serve(**json.load(sys.stdin)))
