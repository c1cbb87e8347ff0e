"""Sleep that ends early when the device changes."""

from __future__ import annotations

import asyncio


class Pace:
    """Lets virtual time pass for work whose speed may change meanwhile."""

    def __init__(self) -> None:
        self._sleepers: dict[asyncio.Future[bool], None] = {}  # in the order in which they began

    async def sleep(self, seconds: float | None) -> bool:
        """Sleep so long, or without an end. True: `changed` has ended it."""
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
            return False
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[bool] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _end, sleeper, False)
        self._sleepers[sleeper] = None
        try:
            return await sleeper
        finally:
            del self._sleepers[sleeper]
            if timer is not None:
                timer.cancel()

    def changed(self) -> None:
        """End every sleep."""
        for sleeper in tuple(self._sleepers):
            _end(sleeper, True)


def _end(sleeper: asyncio.Future[bool], changed: bool) -> None:
    if not sleeper.done():
        sleeper.set_result(changed)
