"""The far ends of link probes, on the nodes of their devices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from edgebed.errors import CalibrationError, FleetError
from edgebed.link.probe_server import Received
from orchestrator.fleet.many_hosts import ProbePeer
from orchestrator.fleet.swarm.node_link import NodeLink

LONGEST_S = 3600.0
"""The caller has a deadline of its own."""


@contextlib.asynccontextmanager
async def nodes_ends(
    links: Mapping[str, NodeLink], node_of: Mapping[str, str], address: str
) -> AsyncIterator[Mapping[str, ProbePeer]]:
    """The far end of each device's link probes, on its node.

    Args:
        links: by node id.
        node_of: node id by device.
        address: at which every node's devices reach its helper.
    """
    peers = {id: _NodePeer(link) for id, link in links.items()}
    for peer in peers.values():
        await peer.open(address)
    try:
        yield {device: peers[node] for device, node in node_of.items() if node in peers}
    finally:
        for peer in peers.values():
            await peer.close()


class _NodePeer:
    def __init__(self, link: NodeLink) -> None:
        self._link, self._port = link, 0

    async def open(self, address: str) -> None:
        self._port = await self._link.call("open probes", address=address)

    async def close(self) -> None:
        with contextlib.suppress(FleetError):  # its node is lost
            await self._link.call("close probes")

    def port(self, address: str) -> int:
        return self._port

    async def expect(self, probe_id: str) -> asyncio.Task[Received]:
        await self._link.call("expect", probe=probe_id)
        return asyncio.create_task(self._outcome(probe_id))

    async def _outcome(self, probe_id: str) -> Received:
        try:
            answer = await self._link.call("outcome", LONGEST_S, probe=probe_id)
        except FleetError as error:
            raise CalibrationError(str(error), hint=error.hint) from None
        return Received(answer["wall_s"], answer["bytes"])

    async def forget(self, probe_id: str) -> None:
        await self._link.call("forget", probe=probe_id)
