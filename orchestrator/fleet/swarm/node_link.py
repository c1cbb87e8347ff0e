"""The orchestrator's connections to one node helper: its commands, and the node's engine, both over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.tls
import msgspec

from edgebed.errors import FleetError
from edgebed.link import stream_probe
from orchestrator.fleet.swarm.clocks import Clock, clock_of
from orchestrator.fleet.swarm.placement import Node

ANY_VERSION = "1.41"
"""For the first question, which has no version in its path."""

ANSWER_S, ENGINE_S = 10.0, 120
READY_S, LOOK_S = 20.0, 0.1

CLOCK_TIMES = 5
"""Questions for a node's clock, of which the quickest counts."""


Times = tuple[float, float]
"""On this host's clock (UTC), and on its steady clock."""


class Told(msgspec.Struct, frozen=True):
    """What a helper told of its node in one answer, and what the answer tells of its clocks: the one that people set
    (UTC), and the steady one."""

    facts: dict[str, Any]
    clock: Clock
    steady: Clock


class Credentials:
    """The files with which the orchestrator shows itself to node helpers. `folder`: that holds `ca.pem`,
    `certificate.pem` and `key.pem`."""

    def __init__(self, folder: Path) -> None:
        self._ca, self._pair = str(folder / "ca.pem"), (str(folder / "certificate.pem"), str(folder / "key.pem"))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_verify_locations(self._ca)
        self.context.load_cert_chain(*self._pair)

    def engine(self, address: str, port: int) -> Any:
        """A client that speaks the engine's version. Raises DockerException, OSError."""
        with contextlib.closing(self._client(address, port, ANY_VERSION)) as first:
            version = first.api.version(api_version=False)["ApiVersion"]
        return self._client(address, port, version)

    def _client(self, address: str, port: int, version: str) -> Any:
        tls = docker.tls.TLSConfig(client_cert=self._pair, ca_cert=self._ca, verify=True)
        url = f"https://{address}:{port}"
        client = docker.DockerClient(url, version=version, tls=tls, timeout=ENGINE_S, max_pool_size=64)
        client.api.trust_env = False  # REQUESTS_CA_BUNDLE would replace our CA, and a proxy has no business here
        return client


class NodeLink:
    """`engine` is the client of the node's engine."""

    def __init__(self, node: Node, credentials: Credentials, port: int) -> None:
        self.node = node
        self._credentials, self._port = credentials, port
        self.engine: Any = None

    async def open(self) -> None:
        """Wait until the helper answers. Raises FleetError."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            try:
                await self.call("facts")
                break
            except FleetError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(LOOK_S)
        self.engine = await asyncio.to_thread(self.new_engine)

    def new_engine(self) -> Any:
        """Another client of the node's engine."""
        try:
            return self._credentials.engine(self.node.address, self._port + 1)
        except (docker.errors.DockerException, OSError) as error:
            raise FleetError(f"{self.node.name}: the engine does not answer through its helper: {error}") from None

    async def call(self, command: str, timeout_s: float = ANSWER_S, **arguments: Any) -> Any:
        """The result of a command. Raises FleetError: no answer, or the helper's error."""
        return (await self._timed(command, timeout_s, arguments))[0]

    async def facts(self, timeout_s: float = ANSWER_S) -> Told:
        """Raises FleetError: no answer."""
        facts, (asked_s, asked_at_s), (heard_s, heard_at_s) = await self._timed("facts", timeout_s, {})
        clock = clock_of(self.node.name, asked_s, facts["utc_s"], heard_s)
        return Told(facts, clock, clock_of(self.node.name, asked_at_s, facts["at_s"], heard_at_s))

    async def quickest_facts(self) -> Told:
        """The quickest of several answers: its clocks are known best. Raises FleetError: no answer."""
        told = [await self.facts() for _ in range(CLOCK_TIMES)]
        return min(told, key=lambda each: each.steady.error_s)

    async def _timed(self, command: str, timeout_s: float, arguments: dict[str, Any]) -> tuple[Any, Times, Times]:
        """The result of a command, when it was sent, and when the answer came."""
        try:
            async with asyncio.timeout(timeout_s), self._connection() as (reader, writer):
                sent = time.time(), time.monotonic()
                writer.write(json.dumps({"call": command, **arguments}).encode() + b"\n")
                line = await reader.readline()
                heard = time.time(), time.monotonic()
            answer = json.loads(line)
        except TimeoutError:
            raise self._unreached(f"no answer to {command!r} within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            raise self._unreached(str(error) or type(error).__name__) from None
        if "error" in answer:
            raise FleetError(f"{self.node.name}: {answer['error']}")
        return answer["result"], sent, heard

    async def carried(self, bit_s: float, up: bool) -> float:
        """Bits per second that arrive of so many that are sent, from the node (`up`) or to it. Raises FleetError."""
        request = json.dumps({"call": "send", "bit_s": bit_s} if up else {"call": "receive"}).encode() + b"\n"
        try:
            async with asyncio.timeout(ANSWER_S):
                return await (self._received(request) if up else self._delivered(request, bit_s))
        except TimeoutError:
            raise self._unreached(f"no stream within {ANSWER_S:g} s") from None
        except (OSError, ValueError, KeyError) as error:
            raise self._unreached(str(error) or type(error).__name__) from None

    async def _received(self, request: bytes) -> float:
        async with self._connection() as (reader, writer):
            writer.write(request)
            return await stream_probe.receive(reader)

    async def _delivered(self, request: bytes, bit_s: float) -> float:
        async with self._connection() as (reader, writer):
            writer.write(request)
            sending = asyncio.create_task(stream_probe.send(writer, bit_s))
            try:
                return float(json.loads(await reader.readline())["result"])
            finally:
                sending.cancel()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        address = self.node.address
        reader, writer = await asyncio.open_connection(address, self._port, ssl=self._credentials.context)
        try:
            yield reader, writer
        finally:
            writer.close()

    def _unreached(self, why: str) -> FleetError:
        where = f"{self.node.address}:{self._port}"
        return FleetError(
            f"{self.node.name}: its helper cannot be reached at {where}: {why}",
            hint=f"this host must reach TCP {self._port} and {self._port + 1} of the node (helper_port names them)",
        )

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
