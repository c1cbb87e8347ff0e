"""An MQTT broker in pure Python (amqtt), run as a child process where there is no Mosquitto: `python -m` this file.

The listeners and the users come as JSON on standard input, so that no password is in a process list.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import resource
import sys
from dataclasses import dataclass

from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

from orchestrator.broker.amqtt_broker import Broker


class Users(BaseAuthPlugin):  # type: ignore[misc]
    """Lets in whoever knows the name and password of a user."""

    @dataclass
    class Config:
        passwords: dict[str, str]

    async def authenticate(self, *, session: Session) -> bool:
        wanted = self.config.passwords.get(session.username or "")
        return wanted is not None and hmac.compare_digest((session.password or "").encode(), wanted.encode())


async def serve(addresses: list[str], port: int, users: dict[str, str], fleet: str) -> None:
    """Listen on every address until the process ends."""
    names = ["default", *(f"address {n}" for n in range(1, len(addresses)))]  # amqtt insists on a default
    plugin = f"{Users.__module__}.{Users.__qualname__}"
    config = {
        "listeners": {n: {"type": "tcp", "bind": f"{a}:{port}"} for n, a in zip(names, addresses, strict=True)},
        "plugins": {plugin: {"passwords": users}},
    }
    broker = Broker(config)
    broker.fleet = fleet
    await broker.start()
    await asyncio.Event().wait()


def allow_connections() -> None:
    """Two per device and their files: a shell's usual limit of 1024 would end at 500 devices."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    allow_connections()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sys.modules["orchestrator.broker.amqtt_server"] = sys.modules["__main__"]  # amqtt imports the plugin by its name
    Users.__module__ = "orchestrator.broker.amqtt_server"
    asyncio.run(serve(**json.load(sys.stdin)))
