"""The far ends of a fleet's link probes: in this process, or where its backend has them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping

from edgebed.link.probe_server import ProbeServer
from orchestrator.fleet.base import Backend
from orchestrator.fleet.many_hosts import ManyHosts, ProbePeer
from orchestrator.fleet.mixed import MixedBackend


@contextlib.asynccontextmanager
async def far_ends(backend: Backend, devices: Collection[str]) -> AsyncIterator[Mapping[str, ProbePeer]]:
    """By device. In this process they listen on this host's ends of the devices' links."""
    if isinstance(backend, MixedBackend):
        ends: dict[str, ProbePeer] = {}
        async with contextlib.AsyncExitStack() as stack:
            for each in dict.fromkeys(map(backend.of, devices)):
                names = [device for device in devices if backend.of(device) is each]
                ends |= await stack.enter_async_context(far_ends(each, names))
            yield ends
    elif isinstance(backend, ManyHosts):
        async with backend.far_ends() as theirs:
            yield theirs
    else:
        outside = {backend.host_of(device) for device in devices if not backend.pins(device)}
        async with ProbeServer((backend.host_of(device) for device in devices), outside) as server:
            yield dict.fromkeys(devices, server)
