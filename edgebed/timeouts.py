"""`asyncio.timeout`, also for Python 3.10, which has none (JetPack 6 comes with it).

`asyncio.wait_for` is not used: up to Python 3.11 it loses a cancellation that comes together with its result. A loop
with it then goes on, and who waits for the end of its task waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def timeout_by_cancelling(seconds: float) -> AsyncIterator[None]:
    """Cancels what the block waits for after so long, and raises TimeoutError in its place."""
    task, expired = asyncio.current_task(), False
    assert task is not None

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, expire)
    try:
        yield
    except asyncio.CancelledError:
        if expired:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


if sys.version_info >= (3, 11):
    timeout = asyncio.timeout
else:
    timeout = timeout_by_cancelling
