"""`asyncio.timeout`, also for Python 3.10, which has none (JetPack 6 comes with it); the end of a process in time.

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

KILLED_S = 30.0


async def end_in_time(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Wait for the end of a process that was asked to end; kill it after so many seconds.

    Returns as well where it has not ended KILLED_S seconds later: then the kernel holds it, or another process holds
    its pipes, and nobody can end it.
    """
    with contextlib.suppress(TimeoutError):
        async with timeout(seconds):
            await process.wait()
            return
    with contextlib.suppress(ProcessLookupError):  # it has ended just now
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with timeout(KILLED_S):
            await process.wait()


async def end(process: asyncio.subprocess.Process | None, seconds: float) -> None:
    """Ask a process to end, and wait for it as `end_in_time` does. Nothing where it has ended, or there is none."""
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it has ended just now
        process.terminate()
    await end_in_time(process, seconds)
