"""The helper of a node, on loopback, with a stand-in for the engine: who may command it, and what it forwards."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from edge_agent.node import facts as node_facts
from edge_agent.node import helper as node_helper
from edge_agent.node.helper import Helper
from edge_agent.node.settings import HelperSettings, read_settings
from edgebed.errors import FleetError
from orchestrator.boards.authority import Authority
from orchestrator.fleet.swarm.helpers import settings, write_credentials
from orchestrator.fleet.swarm.kernel_clock import ask_clocks
from orchestrator.fleet.swarm.node_link import Credentials, NodeLink
from orchestrator.fleet.swarm.nodes import compare_clocks
from orchestrator.fleet.swarm.placement import Node
from tests.broker_address import free_port
from tests.component._strangers import are_open, strangers
from tests.waiting import until

HOST = "127.0.0.1"
MOST_STRANGERS = 256
OK = b"HTTP/1.0 200 OK\r\n\r\nOK"


class Up:
    """A helper that runs, its node, and the credentials of the orchestrator."""

    def __init__(self, ca: Authority, folder: Path) -> None:
        self.ca, self.folder = ca, folder
        self.port = free_port()
        (folder / "node.json").write_bytes(settings(ca, HOST, self.port))
        read = read_settings(folder / "node.json")
        self.settings = msgspec.structs.replace(read, socket=str(folder / "engine.sock"))
        self.credentials = write_credentials(folder, ca)
        self.engine: asyncio.Server | None = None
        self.run: asyncio.Task[str]

    def link(self, credentials: Credentials | None = None) -> NodeLink:
        return NodeLink(Node("n1", "n1", HOST, 1.0, 0.1), credentials or self.credentials, self.port)


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request alike."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    writer.close()


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Up]:
    made = Up(Authority(tmp_path), tmp_path)
    made.engine = await asyncio.start_unix_server(engine, made.settings.socket)
    made.run = asyncio.create_task(Helper(made.settings).run())
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(FleetError):
                await made.link().call("facts")
                break
            await asyncio.sleep(0.02)
    yield made
    made.run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await made.run


def pair_in(folder: Path, ca: Authority, signer: Authority, name: str) -> Credentials:
    """Credentials that believe `ca`, with a certificate of `signer`."""
    folder.mkdir()
    key, certificate = signer.client_pair(name, dt.datetime.now(dt.UTC))
    for file, data in (("ca.pem", ca.pem), ("certificate.pem", certificate), ("key.pem", key)):
        (folder / file).write_bytes(data)
    return Credentials(folder)


async def test_the_orchestrator_hears_what_the_node_is_like(up: Up) -> None:
    facts = await up.link().call("facts")
    assert facts["cores"] >= 1
    assert facts["engine"] is True
    busy = await up.link().call("busy", cpus=0.2, seconds=0.5)
    assert 0.02 < busy["cpu_s"] < 0.2


async def test_the_clock_of_a_node_is_compared(up: Up) -> None:
    """It is that of this machine."""
    said: list[str] = []
    told = (await compare_clocks({"id": up.link()}, said.append))["id"]
    assert told.clock.wrong_s < 0.001
    assert told.steady.wrong_s == 0
    assert said == []


async def test_a_node_whose_clock_is_wrong_is_named(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    real, behind_s, said = node_facts.facts, 90.0, list[str]()
    monkeypatch.setattr(node_facts, "facts", lambda: {**real(), "utc_s": time.time() - behind_s})
    await compare_clocks({"id": up.link()}, said.append)
    assert said[0].startswith("the clock of n1 is 90 s behind this host")
    behind_s = 3 * 3600.0
    with pytest.raises(FleetError, match="n1 is 3 hours behind this host"):
        await compare_clocks({"id": up.link()}, said.append)


@pytest.mark.root
def test_a_kernel_tells_its_clock() -> None:
    """Of IPv4 addresses only."""
    (found,) = ask_clocks({"here": HOST, "other": "fd00::1"})
    assert found.node == "here"
    assert found.wrong_s <= 0.002


async def test_a_node_may_not_command_another_and_a_stranger_reaches_nothing(up: Up, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    for name, signer in (("node", up.ca), ("orchestrator", other)):
        credentials = pair_in(tmp_path / f"as-{name}", up.ca, signer, name)
        with pytest.raises(FleetError, match="cannot be reached"):
            await up.link(credentials).call("facts", 5.0)
        assert await through_engine(up, credentials) == b""
    assert await through_engine(up, up.credentials) == OK


async def test_strangers_who_send_nothing_are_few_and_end_soon(up: Up) -> None:
    """At both ports. The orchestrator's commands are carried out meanwhile."""
    async with strangers(up.port, 300) as at_commands, strangers(up.port + 1, 300) as at_engine:
        for silent in (at_commands, at_engine):
            await until(lambda silent=silent: are_open(silent) <= MOST_STRANGERS, 3)  # type: ignore[misc]
        assert (await up.link().call("facts"))["engine"] is True
        assert await through_engine(up, up.credentials) == OK
        await until(lambda: are_open(at_commands) + are_open(at_engine) == 0, 8)


async def through_engine(up: Up, credentials: Credentials) -> bytes:
    """What the engine answers through the helper; nothing if the helper refuses."""
    try:
        reader, writer = await asyncio.open_connection(HOST, up.port + 1, ssl=credentials.context)
        writer.write(b"GET /_ping HTTP/1.0\r\n\r\n")
        return await asyncio.wait_for(reader.read(), 5.0)
    except (OSError, ssl.SSLError):
        return b""


async def test_a_stream_arrives_at_the_rate_at_which_it_is_sent(up: Up) -> None:
    for rate, upwards in ((16_000_000, True), (400_000, False)):
        assert await up.link().carried(rate, upwards) == pytest.approx(rate, rel=0.3)


async def test_a_wrong_command_is_answered_with_its_error(up: Up) -> None:
    with pytest.raises(FleetError, match="no command 'format'"):
        await up.link().call("format")
    with pytest.raises(FleetError, match="unexpected keyword"):
        await up.link().call("facts", disk=1)
    with pytest.raises(FleetError, match="no probes are open"):
        await up.link().call("expect", probe="p")


async def test_what_an_agent_sends_reaches_the_broker_over_mtls(up: Up) -> None:
    """The broker's end sees the node's certificate; bytes go both ways."""
    key, certificate = up.ca.server_pair([HOST], dt.datetime.now(dt.UTC))
    (up.folder / "server.pem").write_bytes(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=up.ca.pem.decode())
    context.load_cert_chain(up.folder / "server.pem")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    broker = await asyncio.start_server(echo, HOST, 0, ssl=context)
    broker_port, port = broker.sockets[0].getsockname()[1], free_port()
    await up.link().call("forward", address=HOST, port=port, broker=HOST, broker_port=broker_port)
    reader, writer = await asyncio.open_connection(HOST, port)
    sent = bytes(range(256)) * 4096
    writer.write(sent)
    assert await asyncio.wait_for(reader.readexactly(len(sent)), 20) == sent
    writer.close()
    broker.close()


async def test_a_helper_whose_engine_is_gone_ends(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_helper, "PING_EVERY_S", 0.05)
    assert up.engine is not None
    up.engine.close()
    assert "the engine did not answer" in await asyncio.wait_for(up.run, 20)


async def test_a_helper_that_nobody_commands_ends(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_helper, "PING_EVERY_S", 0.05)
    port = free_port()
    alone: HelperSettings = msgspec.structs.replace(up.settings, port=port, alone_s=0.1)
    assert "no orchestrator" in await asyncio.wait_for(Helper(alone).run(), 20)
