"""The node helper: its commands, and what it forwards.

A command is one line of JSON over TLS, `{"call": name, …}`, and so is the answer, `{"result": …}` or `{"error": text}`;
one connection for each. After `send` this end sends a stream and no answer; after `receive` the other end sends one.
The engine's port gives the orchestrator the node's engine. A holder of the orchestrator's certificate is root on this
node, as whoever commands the Swarm's manager is anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from edge_agent.node import facts, pump
from edge_agent.node.settings import HelperSettings, broker_context
from edgebed.errors import EdgebedError, UsageError
from edgebed.link import stream_probe
from edgebed.link.probe_server import ProbeServer
from edgebed.link.tls import server_context
from edgebed.link.tls_acceptor import TlsAcceptor, streams
from edgebed.timeouts import timeout
from edgebed.wire.topics import ORCHESTRATOR

LONGEST_LINE = 1 << 16
PING = b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n"
PING_EVERY_S, PING_S, PINGS = 2.0, 5.0, 3


class Helper:
    """Runs until its engine does not answer, nobody commands it for `alone_s`, or it is cancelled."""

    def __init__(self, settings: HelperSettings) -> None:
        self._settings = settings
        self._heard = time.monotonic()
        self._engine_answers = True
        self._probes: ProbeServer | None = None
        self._outcomes: dict[str, asyncio.Future[Any]] = {}
        self._forwarded: pump.Server | None = None

    async def run(self) -> str:
        """Returns why it ended."""
        settings = self._settings
        context, port = server_context(settings.ca, settings.certificate, settings.key), settings.port
        commands = TlsAcceptor(pump.listener("0.0.0.0", port), context, streams(self._answer, LONGEST_LINE))
        engine = await pump.serve(pump.listener("0.0.0.0", port + 1), self._engine, context, ORCHESTRATOR)
        try:
            return await self._watch()
        finally:
            for server in (commands, engine, self._forwarded):
                if server is not None:
                    server.close()

    async def _engine(self) -> pump.Streams:
        return await asyncio.open_unix_connection(self._settings.socket)

    async def _watch(self) -> str:
        """An agent whose engine is gone cannot be limited or ended, so its connections must end with this process."""
        failed = 0
        while True:
            await asyncio.sleep(PING_EVERY_S)
            self._engine_answers = await self._ping()
            failed = 0 if self._engine_answers else failed + 1
            if failed >= PINGS:
                return f"the engine did not answer {PINGS} times"
            if (alone_s := time.monotonic() - self._heard) > self._settings.alone_s > 0:
                return f"no orchestrator for {alone_s:.0f} s"

    async def _ping(self) -> bool:
        try:
            async with timeout(2 * PING_S):
                reader, writer = await self._engine()
                writer.write(PING)
                answer = await reader.read(64)
                await pump.close(writer)
        except (OSError, TimeoutError):
            return False
        return b" 200 " in answer

    # ---- commands ----

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            if pump.name_of(writer) == ORCHESTRATOR:
                request = json.loads(await reader.readline())
                self._heard = time.monotonic()
                if request.get("call") == "send":
                    await stream_probe.send(writer, float(request.get("bit_s", 0)))
                else:
                    receive = functools.partial(stream_probe.receive, reader)
                    writer.write(json.dumps(await self._do(request, receive)).encode() + b"\n")
                    await writer.drain()
                    await reader.read()  # a stream may still come: closing now could lose the answer
        await pump.close(writer)

    async def _do(self, request: dict[str, Any], receive: Callable[[], Awaitable[float]]) -> dict[str, Any]:
        commands: dict[str, Callable[..., Awaitable[Any]]] = {
            "facts": self._facts,
            "busy": facts.busy,
            "forward": self._forward,
            "open probes": self._open_probes,
            "expect": self._expect,
            "outcome": self._outcome,
            "forget": self._forget,
            "close probes": self._close_probes,
            "receive": receive,
        }
        try:
            name = str(request.pop("call", ""))
            if name not in commands:
                raise UsageError(f"there is no command {name!r}")
            return {"result": await commands[name](**request)}
        except (EdgebedError, OSError, TypeError, ValueError) as error:
            return {"error": str(error) or type(error).__name__}

    async def _facts(self) -> dict[str, Any]:
        return {**facts.facts(), "engine": self._engine_answers}

    async def _forward(self, address: str, port: int, broker: str, broker_port: int) -> None:
        """Forward what comes in at `address` and `port` to the broker over TLS."""
        context = broker_context(self._settings)

        async def connect() -> pump.Streams:
            return await asyncio.open_connection(broker, broker_port, ssl=context, limit=pump.PIECE)

        (await connect())[1].close()  # tells now what no agent could tell
        self._forwarded = await pump.serve(pump.listener(address, port), connect)

    async def _open_probes(self, address: str) -> int:
        await self._close_probes()
        self._probes = await ProbeServer([address]).__aenter__()
        return self._probes.port(address)

    async def _close_probes(self) -> None:
        probes, self._probes = self._probes, None
        if probes is not None:
            await probes.__aexit__()

    async def _expect(self, probe: str) -> None:
        self._outcomes[probe] = await self._open.expect(probe)

    async def _outcome(self, probe: str) -> dict[str, float]:
        received = await self._outcomes[probe]
        return {"wall_s": received.wall_s, "bytes": received.bytes}

    async def _forget(self, probe: str) -> None:
        await self._open.forget(probe)
        self._outcomes.pop(probe).cancel()

    @property
    def _open(self) -> ProbeServer:
        if self._probes is None:
            raise UsageError("no probes are open")
        return self._probes
