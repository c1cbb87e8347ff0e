"""Single measurements by a device: of its CPU, and of its link to this host."""

from __future__ import annotations

import asyncio
import uuid
from typing import Protocol

import msgspec

from edgebed.errors import EdgebedError
from edgebed.wire.messages import Probe, ProbeResult
from orchestrator.fleet.many_hosts import ProbePeer

PATIENCE_S = 60.0
"""Extra seconds that a probe may take beyond its own length: a device with 0.02 CPU answers slowly."""


class Prober(Protocol):
    """Asks a device to measure something."""

    async def probe(self, device: str, probe: Probe) -> ProbeResult: ...


class Moved(msgspec.Struct, frozen=True):
    """Bytes of payload that a link carried in these seconds, after the first arrival; or an error."""

    seconds: float
    payload: int
    error: str = ""


async def ask(prober: Prober, device: str, probe: Probe, seconds: float) -> ProbeResult:
    """The device's answer to a probe of that length. Without an answer, a result with an error."""
    try:
        async with asyncio.timeout(seconds + PATIENCE_S):
            return await prober.probe(device, probe)
    except TimeoutError:
        return ProbeResult(device, probe.id, error=f"no answer within {seconds + PATIENCE_S:.0f} s")
    except EdgebedError as error:
        return ProbeResult(device, probe.id, error=str(error))


async def move(
    prober: Prober,
    peer: ProbePeer,
    device: str,
    host: str,
    kind: str,
    size: int,
    connections: int,
    seconds: float,
) -> Moved:
    """Have `size` bytes sent between a device and this host, timed by the receiver.

    Args:
        host: the address at which the device reaches `peer`.
        kind: upload or download.
        seconds: how long it will take, about.
    """
    probe = Probe(id=uuid.uuid4().hex, kind=kind, host=host, port=peer.port(host), size=size, connections=connections)
    received = await peer.expect(probe.id)
    try:
        result = await ask(prober, device, probe, seconds)
        if kind == "download" or result.error:
            return Moved(result.wall_s, result.bytes, result.error)
        async with asyncio.timeout(PATIENCE_S):  # the receiver's clock counts
            outcome = await received
        return Moved(outcome.wall_s, outcome.bytes)
    except (EdgebedError, TimeoutError) as problem:
        return Moved(0.0, 0, str(problem) or "the orchestrator received nothing")
    finally:
        await peer.forget(probe.id)
        received.cancel()
