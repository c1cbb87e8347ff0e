"""An MQTT broker in pure Python (amqtt), run as a child process where there is no Mosquitto: `python -m` this file.

It inherits sockets that listen. Their descriptors and the users come as JSON on standard input, so that no password is
in a process list.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import logging
import socket
import sys
from dataclasses import dataclass

from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

from edgebed.link.sockets import allow_connections
from orchestrator.broker.amqtt_broker import Broker
from orchestrator.broker.runner import BACKLOG

LISTENER = "default"  # the name that amqtt insists on


class Users(BaseAuthPlugin):  # type: ignore[misc]
    """Lets in whoever knows the name and password of a user."""

    @dataclass
    class Config:
        passwords: dict[str, str]

    async def authenticate(self, *, session: Session) -> bool:
        wanted = self.config.passwords.get(session.username or "")
        return wanted is not None and hmac.compare_digest((session.password or "").encode(), wanted.encode())


async def serve(sockets: list[int], users: dict[str, str], fleet: str) -> None:
    """Serve those who connect to these sockets until the process ends."""
    plugin = f"{Users.__module__}.{Users.__qualname__}"
    config = {
        "listeners": {LISTENER: {"type": "external", "bind": "inherited"}},
        "plugins": {plugin: {"passwords": users}},
    }
    broker = Broker(config)
    broker.fleet = fleet
    await broker.start()
    connected = functools.partial(broker.stream_connected, listener_name=LISTENER)
    for each in sockets:
        await asyncio.start_server(connected, sock=socket.socket(fileno=each), backlog=BACKLOG)
    await asyncio.Event().wait()


if __name__ == "__main__":
    allow_connections()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sys.modules["orchestrator.broker.amqtt_server"] = sys.modules["__main__"]  # amqtt imports the plugin by its name
    Users.__module__ = "orchestrator.broker.amqtt_server"
    asyncio.run(serve(**json.load(sys.stdin)))
