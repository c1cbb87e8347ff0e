"""Worker threads of a run, or of a simulation's event loop; work that a cancellation must not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal, TypeVar

T = TypeVar("T")

OwnWork = Literal[
    "plan",
    "dispatch",
    "server_halves",
    "decode",
    "encode",
    "check",
    "merge",
    "evaluation",
    "final_test",
    "checkpoint",
    "profiling",
]
"""What the orchestrator itself does in a run. A simulation charges virtual seconds by these names; `plan`, `merge`,
`evaluation` and `checkpoint` are also the names under which the work is recorded (`OrchestratorPhase`)."""


async def in_thread(work: OwnWork, call: Callable[..., T], /, *args: Any, size: int = 0, **kwargs: Any) -> T:
    """Run `call` on a worker thread and return its result. On a virtual clock it runs at once, and the result comes
    after the seconds that the simulation charges for `work` (`VirtualLoop.run_charged`).

    Args:
        size: bytes that the call works on, where its cost depends on them.
    """
    charged = getattr(asyncio.get_running_loop(), "run_charged", None)
    if charged is None:
        return await asyncio.to_thread(call, *args, **kwargs)
    result: T = await charged(work, size, partial(call, *args, **kwargs))
    return result


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Await `work`; a cancellation waits until it has ended."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
