"""Opens the data connection of a device again when it is silently dead (`edgebed.link.deafness`)."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from edgebed.link.deafness import Deafness, Signs
from edgebed.link.endpoint import TransferEndpoint
from edgebed.link.mqtt import MqttLink

LIMIT_S = 10.0


def limit_s(heartbeat_s: float) -> float:
    """Seconds that a sign must last. Heartbeats are rarer under dilation, and so are all waits."""
    return max(LIMIT_S, 2 * heartbeat_s)


async def watch_data(endpoint: TransferEndpoint, data: MqttLink, limit_s: Callable[[], float]) -> None:
    """Look several times within the limit. Never returns."""
    deafness = Deafness()
    while True:
        await asyncio.sleep(limit_s() / 8)
        state = data.state()
        if state is None:
            continue
        now = time.monotonic()
        signs = Signs(endpoint.asked, endpoint.marked, endpoint.heard, now - state.idle_s, state.drained)
        if why := deafness.verdict(signs, now, limit_s()):
            print(f"edgebed-agent: the data connection is opened again: {why}", file=sys.stderr, flush=True)
            data.reopen()
