"""Waits for what happens in another task, thread or process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Polls, for what it waits for is often in another process. Raises TimeoutError: to wait is to assert."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
