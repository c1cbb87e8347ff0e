"""The embedded broker, amqtt (pure Python), as a child process: `amqtt_server`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from edgebed.module_process import module_command
from orchestrator.broker.child import Child
from orchestrator.broker.runner import Listen, Runner


def find() -> Runner | None:
    """A runner if amqtt is installed."""
    return Child("embedded broker (amqtt)", _prepare) if find_spec("amqtt") is not None else None


def _prepare(listen: Listen, folder: Path) -> tuple[list[str], bytes]:
    """It has no TLS: `open_broker` does not take it where that is wanted."""
    wanted = {"sockets": listen.sockets, "users": listen.users, "fleet": listen.fleet}
    return module_command("orchestrator.broker.amqtt_server"), json.dumps(wanted).encode()
