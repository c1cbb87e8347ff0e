"""A fleet of two backends: devices of this host, and others, such as boards. Each device belongs to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from orchestrator.fleet.base import Access, Fleet, Held
from orchestrator.fleet.profile import Limits


class MixedFleet:
    """Args:
    here: has all other devices; backend and enforcement are its.
    there: has the devices `names`.
    """

    def __init__(self, here: Fleet, there: Fleet, names: Collection[str]) -> None:
        self._here, self._there, self._names = here, there, frozenset(names)
        self.enforcement, self.backend = here.enforcement, here.backend

    def _of(self, device: str) -> Fleet:
        return self._there if device in self._names else self._here

    async def prepare(self) -> list[str]:
        there = await self._there.prepare()  # first: it refuses what is not there before anything is made
        return [*await self._here.prepare(), *there]

    def host_of(self, device: str) -> str:
        return self._of(device).host_of(device)

    def pins(self, device: str) -> bool:
        return self._of(device).pins(device)

    async def start(self, access: Mapping[str, Access], shards: Mapping[str, Path]) -> None:
        for fleet, ours in ((self._there, True), (self._here, False)):
            mine = [name for name in shards if (name in self._names) == ours]
            await fleet.start({n: access[n] for n in mine if n in access}, {n: shards[n] for n in mine})

    async def limit(self, device: str, limits: Limits) -> Held:
        return await self._of(device).limit(device, limits)

    async def held(self, device: str) -> Held:
        return await self._of(device).held(device)

    async def set_rates(self, device: str, limits: Limits) -> tuple[int, int]:
        return await self._of(device).set_rates(device, limits)

    async def set_link(self, device: str, up: bool) -> str:
        return await self._of(device).set_link(device, up)

    async def set_frozen(self, device: str, frozen: bool) -> str:
        return await self._of(device).set_frozen(device, frozen)

    async def set_rival(self, device: str, cpus: float) -> str:
        return await self._of(device).set_rival(device, cpus)

    async def stop(self, device: str) -> None:
        await self._of(device).stop(device)

    async def restart(self, device: str) -> None:
        await self._of(device).restart(device)

    def on_exit(self, callback: Callable[[str, str], None]) -> None:
        self._here.on_exit(callback)
        self._there.on_exit(callback)

    async def close(self) -> None:
        await asyncio.gather(self._here.close(), self._there.close())
