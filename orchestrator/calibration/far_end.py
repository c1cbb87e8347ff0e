"""The far end of a fleet's link probes: in this process, or where its backend has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack

from edgebed.link.probe_server import ProbeServer
from orchestrator.fleet.base import Backend
from orchestrator.fleet.many_hosts import FarEnd, ManyHosts, ProbePeer
from orchestrator.fleet.mixed import MixedBackend


def far_end(backend: Backend, devices: Collection[str]) -> FarEnd:
    if isinstance(backend, MixedBackend):
        of = {device: backend.of(device) for device in devices}
        backends = dict.fromkeys(of.values())
        return _Several({each: far_end(each, [name for name in of if of[name] is each]) for each in backends}, of)
    return backend.far_end() if isinstance(backend, ManyHosts) else _Here(backend, devices)


class _Here:
    """In this process, on this host's ends of the devices' links."""

    def __init__(self, backend: Backend, devices: Collection[str]) -> None:
        outside = {backend.host_of(device) for device in devices if not backend.pins(device)}
        self._server = ProbeServer((backend.host_of(device) for device in devices), outside)

    async def __aenter__(self) -> FarEnd:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    def of(self, device: str) -> ProbePeer:
        return self._server


class _Several:
    """Of a fleet of several backends: that of each backend for its devices."""

    def __init__(self, ends: Mapping[Backend, FarEnd], of: Mapping[str, Backend]) -> None:
        self._ends, self._backend_of = ends, of
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> FarEnd:
        async with AsyncExitStack() as stack:
            for end in self._ends.values():
                await stack.enter_async_context(end)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def of(self, device: str) -> ProbePeer:
        return self._ends[self._backend_of[device]].of(device)
