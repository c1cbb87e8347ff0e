"""An MQTT broker in pure Python (amqtt), run as a child process where there is no Mosquitto: `python -m` this file.

The listeners and the one user come as JSON on standard input, so that the password is in no process list.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import sys
from dataclasses import dataclass

from amqtt.broker import Broker
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


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sys.modules["orchestrator.embedded_broker"] = sys.modules["__main__"]  # amqtt imports the plugin by its name
    OneUser.__module__ = "orchestrator.embedded_broker"
    asyncio.run(serve(**json.load(sys.stdin)))
