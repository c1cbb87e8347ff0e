"""Attacks of a board that has joined, or has been revoked, on a running service, its broker and the other boards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from edge_agent.board.keystore import Keystore
from edgebed.errors import LinkError, UsageError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import identity_context
from edgebed.wire.boards import Join, Renew
from edgebed.wire.topics import Topics
from orchestrator.boards import https, service
from orchestrator.boards.authority import SERVER_LIFE, Authority
from orchestrator.boards.enrolment import RENEW_PAUSE_S
from orchestrator.broker.child import KNOWN
from tests.component._boards import HOST, Lab, Orchestrator, status
from tests.waiting import until

pytestmark = pytest.mark.mosquitto

MIB = 1 << 20
HOSTILE_IDS = ("a b", "mine closed its connection.", "x" * 3000, "y" * 935 + " (p2, c1, k60, u'b0').")


def connect(client: str, *, clean: bool = True) -> bytes:
    """An MQTT packet CONNECT (3.1.1)."""
    name = client.encode()
    body = b"\x00\x04MQTT\x04" + bytes([2 * clean]) + b"\x00\x3c" + len(name).to_bytes(2, "big") + name
    return b"\x10" + length(len(body)) + body


def publish(topic: str, data: bytes) -> bytes:
    """An MQTT packet PUBLISH, retained."""
    body = len(topic).to_bytes(2, "big") + topic.encode() + data
    return b"\x31" + length(len(body)) + body


def length(number: int) -> bytes:
    done = bytearray()
    while True:
        number, low = divmod(number, 128)
        done.append(low | (128 if number else 0))
        if not number:
            return bytes(done)


class Raw:
    """A TLS connection of a board to the broker that speaks what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, lab: Lab, keys: Keystore) -> AsyncIterator[Raw]:
        context = identity_context(keys.identity)
        reader, writer = await asyncio.open_connection(HOST, lab.mqtt_port, ssl=context)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def ask(self, packet: bytes) -> bytes:
        await self.send(packet)
        return await self._reader.read(4)

    async def send(self, packet: bytes) -> None:
        self._writer.write(packet)
        await self._writer.drain()

    async def ended(self) -> bool:
        """Waits for its end, 5 s at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                with contextlib.suppress(OSError):
                    while await self._reader.read(1 << 16):
                        pass
                return True
        return False


# ---- joining and renewing ----


async def test_attack_a_join_that_is_repeated_fills_nothing_and_restarts_nothing(lab: Lab) -> None:
    honest = lab.link(await lab.board("honest"), "honest")
    await honest.open()
    ca, wanted = Authority(lab.place.folder).pem.decode(), Join(lab.token("pi").secret, lab.keys("pi").request())
    first = await asyncio.to_thread(lab.service.join, ca, wanted)
    broker, before = lab.broker().pid, lab.place.registry.read_bytes()
    for _ in range(30):
        again = Join(wanted.secret, lab.keys("pi").request())
        assert await asyncio.to_thread(lab.service.join, ca, again) == first
    assert lab.place.registry.read_bytes() == before
    assert len([line for line in lab.said if "pi joined" in line]) == 1
    assert (lab.broker().pid, honest.connected) == (broker, True)
    await honest.close()


async def test_attack_a_hostile_client_id_restarts_no_broker_and_closes_no_other(lab: Lab) -> None:
    bad, honest = await lab.board("bad"), lab.link(await lab.board("honest"), "honest")
    await honest.open()
    broker = lab.broker().pid
    async with contextlib.AsyncExitStack() as stack:
        hidden = [await stack.enter_async_context(Raw.open(lab, bad)) for _ in HOSTILE_IDS]
        answers = [await each.ask(connect(client)) for each, client in zip(hidden, HOSTILE_IDS, strict=True)]
        assert set(answers) == {bytes.fromhex("20020000")}
        for number in range(4):
            await lab.board(f"new{number}")
            with lab.store.change() as registry:  # an hour has passed
                registry.find("bad").renewed_s -= RENEW_PAUSE_S
            await asyncio.to_thread(lab.service.renew, bad.identity.authority(), Renew(bad.request()))
        assert [await each.ended() for each in hidden[:2]] == [True, True]  # their ids are no names of ours
    assert (lab.broker().pid, honest.connected) == (broker, True)
    await until(lambda: [each.client for each in lab.live.sessions] == ["honest"])
    lab.revoke("bad")
    await until(lambda: honest.connected and [each.client for each in lab.live.sessions] == ["honest"])
    await honest.close()


async def test_attack_a_board_that_hides_is_cut_off_when_it_is_revoked_and_not_when_others_join(lab: Lab) -> None:
    bad = await lab.board("bad")
    async with Raw.open(lab, bad) as hidden:
        await hidden.ask(connect("x" * 3000))
        broker = lab.broker().pid
        await lab.board("other")
        assert lab.broker().pid == broker
        lab.revoke("bad")
        assert await hidden.ended()


async def test_attack_unknown_keys_that_renew_are_counted_as_wrong_tokens_are(lab: Lab) -> None:
    ca, wanted = Authority(lab.place.folder).pem.decode(), Renew(lab.keys("stranger").request())
    for _ in range(21):
        with pytest.raises(UsageError, match="not known here"):
            await asyncio.to_thread(lab.service.renew, ca, wanted)
    assert len([line for line in lab.said if "unknown key" in line]) == 2


# ---- revocation ----


async def test_attack_a_connection_that_speaks_after_its_revocation_is_closed_and_tells_nothing(lab: Lab) -> None:
    keys = await lab.board("pi")
    async with Raw.open(lab, keys) as late:
        version = lab.revoke("pi")
        await until(lambda: lab.live.applied == version)
        await late.ask(connect("late"))
        assert await late.ended()
    await until(lambda: lab.live.sessions == ())


async def test_attack_a_registry_from_a_backup_lets_no_unknown_board_in(lab: Lab) -> None:
    await lab.board("known")
    backup = lab.place.registry.read_bytes()
    keys = await lab.board("pi")
    lab.revoke("pi")
    lab.place.registry.write_bytes(backup)
    await until(lambda: lab.live.applied == lab.store.read().version)
    async with lab.working("f1", lab.keys("known")), Orchestrator(lab) as orchestrator:
        with contextlib.suppress(LinkError, OSError):
            async with Raw.open(lab, keys) as back:
                await back.ask(connect("back"))
                await back.send(publish(Topics("boards").state(keys.service().board), b"back"))
                assert await back.ended()
        assert b"back" not in orchestrator.heard.values()


async def test_attack_an_https_connection_is_closed_by_the_revocation_of_its_board(lab: Lab) -> None:
    keys = await lab.board("pi")
    sha256, context = lab.offer(os.urandom(32 * MIB)), identity_context(keys.identity)
    reader, writer = await asyncio.open_connection(HOST, lab.port, ssl=context, limit=1 << 10)
    writer.write(f"GET /shards/{sha256} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    lab.revoke("pi")
    got, begin = 0, time.monotonic()
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            got += len(piece)
            await asyncio.sleep(0.005)  # it reads slower than the service sends: 32 MiB would take 2.5 s
    assert got < 32 * MIB
    assert time.monotonic() - begin < 2
    writer.close()


# ---- what a board makes the service keep ----


async def test_attack_messages_that_a_board_has_the_broker_keep(lab: Lab) -> None:
    """On topics of invented fleets nothing is kept; on its own ones until it is revoked."""
    keys = await lab.board("pi")
    board, big = keys.service().board, secrets.token_bytes(4 * MIB)
    invented = [Topics(f"fleet{number}").data_from(board) for number in range(40)]
    own = [Topics("f1").data_from(board), Topics("f1").control_from(board)]
    memory = lab.broker().memory_info
    before = memory().rss
    async with lab.working("f1", keys), Raw.open(lab, keys) as flood:
        await flood.ask(connect("flood"))
        for topic in (*invented, *own):
            await flood.send(publish(topic, big))
        await flood.ask(b"\xc0\x00")
        async with Orchestrator(lab) as orchestrator:
            await until(lambda: set(own) <= set(orchestrator.heard))
            assert not set(invented) & set(orchestrator.heard)
        assert memory().rss - before < 40 * MIB  # 160 MiB were kept
        version = lab.revoke("pi")
        await until(lambda: lab.live.applied == version)
        async with Orchestrator(lab) as orchestrator:
            await until(lambda: Topics("boards").state(board) in orchestrator.heard)
            await until(lambda: not any(orchestrator.heard.get(topic) for topic in own), 5)
    assert memory().rss - before < 40 * MIB


async def test_attack_more_than_eight_sessions_of_one_board(lab: Lab) -> None:
    bad, honest = await lab.board("bad"), lab.link(await lab.board("honest"), "honest")
    await honest.open()
    async with contextlib.AsyncExitStack() as stack:
        many = [await stack.enter_async_context(Raw.open(lab, bad)) for _ in range(20)]
        for number, each in enumerate(many):
            await each.ask(connect(f"c{number:02}"))
        newest = [f"c{number:02}" for number in range(12, 20)]
        await until(lambda: [each.client for each in lab.live.sessions if each.client != "honest"] == newest)
        assert await many[0].ended()
    assert honest.connected
    await honest.close()


async def test_attack_https_connections_that_show_a_certificate(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "REQUEST_S", 1.0)
    keys = await lab.board("pi")
    context = identity_context(keys.identity)
    half = [await asyncio.open_connection(HOST, lab.port, ssl=context) for _ in range(60)]
    for _, writer in half:
        writer.write(b"GET /me HTTP/1.1\r\n")
    closed = [asyncio.create_task(_ended(reader)) for reader, _ in half]
    await until(lambda: sum(each.done() for each in closed) >= 52, 3)
    assert not any(each.done() for each in closed[-8:])
    assert await asyncio.to_thread(status, lab, context, "GET", "/me") == 200
    await until(lambda: all(each.done() for each in closed), 5)
    for _, writer in half:
        writer.close()


async def _ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while await reader.read(100):
            pass


# ---- what others of the host, and thieves of keys, get ----


async def test_the_servers_certificate_lasts_for_days_and_is_renewed_without_a_break(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await lab.board("pi")
    link = lab.link(keys, "pi")
    await link.open()
    context = identity_context(keys.identity)

    def shown(port: int) -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection((HOST, port), timeout=5), server_hostname=HOST)

    def certificate(port: int) -> dict[str, object]:
        with shown(port) as secure:
            return dict(secure.getpeercert() or {})

    ports = (lab.port, lab.mqtt_port)
    before = [await asyncio.to_thread(certificate, port) for port in ports]
    for each in before:
        assert ssl.cert_time_to_seconds(str(each["notAfter"])) <= time.time() + SERVER_LIFE.total_seconds() + 1
    monkeypatch.setattr(service, "ADDRESSES_S", 0.0)
    monkeypatch.setattr(service, "CERTIFY_S", 3.0)
    for port, old in zip(ports, before, strict=True):
        async with asyncio.timeout(15):
            while (await asyncio.to_thread(certificate, port))["serialNumber"] == old["serialNumber"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert link.connected
    await link.close()


async def test_the_audit_file_tells_who_came_and_went(lab: Lab) -> None:
    keys = await lab.board("pi")
    with lab.store.change() as registry:
        registry.rename(registry.find("pi"), "kitchen", time.time())
        registry.boards[0].renewed_s -= RENEW_PAUSE_S
    await asyncio.to_thread(lab.service.renew, keys.identity.authority(), Renew(keys.request()))
    lab.token("kitchen", replace=True)
    with lab.store.change() as registry:
        registry.expel(keys.service().board[:8], time.time())
    lines = [msgspec.json.decode(line) for line in lab.place.audit.read_bytes().splitlines()]
    assert [(line["what"], line["name"], line["by"] == HOST) for line in lines] == [
        ("invited", "pi", False),
        ("joined", "pi", True),
        ("renamed", "kitchen", False),
        ("renewed", "kitchen", True),
        ("invited", "kitchen", False),
        ("withdrawn", "kitchen", False),
        ("revoked", "kitchen", False),
    ]
    assert {line["board"] for line in lines if line["board"]} == {keys.service().board}
    assert lab.place.audit.stat().st_mode & 0o777 == 0o600


def test_secrets_are_never_readable_by_others_whatever_other_threads_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The umask is one for all threads: another one may set it at any time."""
    set_umask, before = os.umask, os.umask(0)
    monkeypatch.setattr(os, "umask", lambda mask: 0)
    try:
        service.write_secret(tmp_path / "x", b"secret")
    finally:
        set_umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


async def test_the_broker_sees_no_variable_of_the_services_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEBED_BROKER_PASSWORD", "the password of another broker")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a key")
    lab = Lab(tmp_path)
    await lab.start()
    seen = set(lab.broker().environ())
    await lab.stop()
    assert seen <= {*KNOWN, "LC_CTYPE", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}


@pytest.mark.root
async def test_no_other_program_has_the_user_of_the_broker(lab: Lab) -> None:
    """Debian's own Mosquitto runs as `mosquitto`, and may be open to the network."""
    import pwd

    with pytest.raises(KeyError):
        pwd.getpwuid(lab.broker().uids().real)
    link = MqttLink(Address(lab.live.broker.host, 0, "orchestrator", "wrong"), "x")
    with pytest.raises(LinkError):
        await link.open()
