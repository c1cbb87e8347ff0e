"""A fleet of two backends: devices of this host, and others, such as boards. Each device belongs to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from orchestrator.fleet.base import Access, Fleet, Held, ManyHosts
from orchestrator.fleet.spec.profile import Limits


class MixedFleet:
    """Passes each call to the backend that has the device.

    Args:
        here: has all other devices; backend and enforcement are its.
        there: has the devices `names`.
    """

    def __init__(self, here: Fleet, there: Fleet, names: Collection[str]) -> None:
        self.here, self._there, self._names = here, there, frozenset(names)
        self.enforcement, self.backend = here.enforcement, here.backend

    def of(self, device: str) -> Fleet:
        """The backend that has this device."""
        return self._there if device in self._names else self.here

    async def prepare(self) -> list[str]:
        there = await self._there.prepare()  # first: it refuses what is not there before anything is made
        return [*await self.here.prepare(), *there]

    def host_of(self, device: str) -> str:
        return self.of(device).host_of(device)

    def pins(self, device: str) -> bool:
        return self.of(device).pins(device)

    async def start(self, access: Mapping[str, Access], shards: Mapping[str, Path]) -> None:
        for fleet, ours in ((self._there, True), (self.here, False)):
            mine = [name for name in shards if (name in self._names) == ours]
            await fleet.start({n: access[n] for n in mine if n in access}, {n: shards[n] for n in mine})

    async def limit(self, device: str, limits: Limits) -> Held:
        return await self.of(device).limit(device, limits)

    async def held(self, device: str) -> Held:
        return await self.of(device).held(device)

    async def set_rates(self, device: str, limits: Limits) -> tuple[int, int]:
        return await self.of(device).set_rates(device, limits)

    async def set_link(self, device: str, up: bool) -> str:
        return await self.of(device).set_link(device, up)

    async def set_frozen(self, device: str, frozen: bool) -> str:
        return await self.of(device).set_frozen(device, frozen)

    async def set_rival(self, device: str, cpus: float) -> str:
        return await self.of(device).set_rival(device, cpus)

    async def stop(self, device: str) -> None:
        await self.of(device).stop(device)

    async def restart(self, device: str) -> None:
        await self.of(device).restart(device)

    def on_exit(self, callback: Callable[[str, str], None]) -> None:
        self.here.on_exit(callback)
        self._there.on_exit(callback)

    async def close(self) -> None:
        await asyncio.gather(self.here.close(), self._there.close())


def many_hosts(fleet: Fleet) -> ManyHosts | None:
    """The backend of this fleet that is on other hosts; None if there is none."""
    here = fleet.here if isinstance(fleet, MixedFleet) else fleet
    return here if isinstance(here, ManyHosts) else None


def backend_of(fleet: Fleet, device: str) -> Fleet:
    """The backend that has this device."""
    return fleet.of(device) if isinstance(fleet, MixedFleet) else fleet
