"""Two backends as one: that of this host's devices, and that of others, such as boards. Each device has one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from edgebed.link.connection import Address
from orchestrator.fleet.base import Backend, Held
from orchestrator.fleet.many_hosts import ManyHosts
from orchestrator.fleet.spec.profile import Limits


class MixedBackend:
    """Passes each call to the backend that has the device.

    Args:
        here: has all other devices; name and enforcement are its.
        there: has the devices `names`.
    """

    def __init__(self, here: Backend, there: Backend, names: Collection[str]) -> None:
        self.here, self._there, self._names = here, there, frozenset(names)
        self.enforcement, self.name = here.enforcement, here.name

    def of(self, device: str) -> Backend:
        """The backend that has this device."""
        return self._there if device in self._names else self.here

    async def prepare(self) -> list[str]:
        there = await self._there.prepare()  # first: it refuses what is not there before anything is made
        return [*await self.here.prepare(), *there]

    def host_of(self, device: str) -> str:
        return self.of(device).host_of(device)

    def pins(self, device: str) -> bool:
        return self.of(device).pins(device)

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        for backend, ours in ((self._there, True), (self.here, False)):
            mine = [name for name in shards if (name in self._names) == ours]
            await backend.start({n: access[n] for n in mine if n in access}, {n: shards[n] for n in mine})

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


def many_hosts(backend: Backend) -> ManyHosts | None:
    """The backend that is on other hosts; None if there is none."""
    here = backend.here if isinstance(backend, MixedBackend) else backend
    return here if isinstance(here, ManyHosts) else None


def backend_of(backend: Backend, device: str) -> Backend:
    """The backend that has this device."""
    return backend.of(device) if isinstance(backend, MixedBackend) else backend
