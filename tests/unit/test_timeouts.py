"""The timeout that stands in for `asyncio.timeout` on Python 3.10; no cancellation is lost; processes end in time."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from edgebed.timeouts import end_in_time, timeout, timeout_by_cancelling


async def test_what_takes_too_long_ends_with_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with timeout_by_cancelling(0.01):
            await asyncio.Event().wait()


async def test_what_ends_in_time_is_left_alone() -> None:
    async with timeout_by_cancelling(60):
        await asyncio.sleep(0)


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work() -> None:
        async with timeout_by_cancelling(60):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("within", [timeout, timeout_by_cancelling])
async def test_a_cancellation_that_comes_together_with_the_result_ends_a_loop(within: type[asyncio.Timeout]) -> None:
    """`asyncio.wait_for` would go on."""
    wanted, rounds = asyncio.Event(), 0

    async def work() -> None:
        nonlocal rounds
        while rounds < 5:
            rounds += 1
            with contextlib.suppress(TimeoutError):
                async with within(0.01):
                    await wanted.wait()
            wanted.clear()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    wanted.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rounds == 1


async def python(code: str) -> tuple[asyncio.subprocess.Process, bytes]:
    """A process that runs this, and the first line that it prints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    return process, await process.stdout.readline()


async def test_a_process_that_ends_is_not_killed() -> None:
    process, _ = await python("print(flush=True); input()")
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await end_in_time(process, 60)
    assert process.returncode == 0


async def test_a_process_that_does_not_end_is_killed() -> None:
    process, _ = await python("import time; print(flush=True); time.sleep(1000)")
    await end_in_time(process, 0.01)
    assert process.returncode == -9
