"""Attacks on a running boards service and its broker: each is tried, and a right board still gets in."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import datetime as dt
import gc
import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edge_agent.board.join import join
from edge_agent.board.keystore import Keystore
from edgebed.errors import LinkError, UsageError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import client_context, identity_context
from edgebed.wire.boards import Join, Token
from edgebed.wire.topics import Topics
from orchestrator.boards.authority import Authority
from tests.component._boards import HOST, Lab, Orchestrator, made, status
from tests.component._strangers import are_open, strangers
from tests.waiting import until

pytestmark = pytest.mark.mosquitto

MOST_STRANGERS = 256
MIB = 1 << 20


# ---- attacks: joining ----


async def test_attack_a_server_with_another_fingerprint_never_gets_the_secret(lab: Lab) -> None:
    token = lab.token("pi")
    wrong = Token(bytes(32), token.secret, token.name)
    with pytest.raises(LinkError, match="another fingerprint"):
        await asyncio.to_thread(join, lab.service, str(wrong), lab.keys("pi"), print)
    assert not lab.keys("pi").identity.key.exists()
    assert [each.used_by for each in lab.store.read().invitations] == [""]
    assert not [line for line in lab.said if "refused" in line]


async def test_attack_a_token_is_used_twice_or_has_run_out(lab: Lab) -> None:
    token = str(lab.token("pi"))
    await asyncio.to_thread(join, lab.service, token, lab.keys("pi"), print)
    with pytest.raises(UsageError, match="used already, by another key"):
        await asyncio.to_thread(join, lab.service, token, lab.keys("thief"), print)
    with pytest.raises(UsageError, match="has run out"):
        await asyncio.to_thread(join, lab.service, str(lab.token("late", lasts_s=-1.0)), lab.keys("late"), print)
    assert [board.name for board in lab.store.read().active()] == ["pi"]


async def test_attack_a_csr_with_the_name_of_another_board(lab: Lab) -> None:
    victim = (await lab.board("victim")).service().board
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, victim)])
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    wanted = Join(lab.token("thief").secret, csr.public_bytes(serialization.Encoding.PEM).decode())
    with pytest.raises(UsageError, match="the service gives the name"):
        await asyncio.to_thread(lab.service.join, Authority(lab.place.folder).pem.decode(), wanted)
    assert [board.name for board in lab.store.read().active()] == ["victim"]


async def test_attack_a_hundred_wrong_tokens_do_not_keep_a_right_one_out(lab: Lab) -> None:
    ca = Authority(lab.place.folder).pem.decode()
    wrong = Join("x" * 22, lab.keys("stranger").request())
    with ThreadPoolExecutor(40) as strangers:
        loop = asyncio.get_running_loop()
        attacks = [loop.run_in_executor(strangers, lab.service.join, ca, wrong) for _ in range(100)]
        attacking = asyncio.gather(*attacks, return_exceptions=True)
        begin = time.monotonic()
        await lab.board("pi")
        took_s = time.monotonic() - begin
        answers = await attacking
    assert all("this token is not known here" in str(each) for each in answers)
    assert took_s < 10
    assert len([line for line in lab.said if "wrong token" in line]) == 2  # not a line each


async def test_attack_connections_that_are_held_open_keep_nobody_out(lab: Lab) -> None:
    context = client_context(Authority(lab.place.folder).pem.decode())
    held = [await asyncio.open_connection(HOST, lab.port, ssl=context) for _ in range(MOST_STRANGERS + 20)]
    await lab.board("pi")
    ended = [reader.at_eof() or reader.exception() is not None for reader, _ in held]
    assert 20 <= sum(ended) <= 40
    assert all(ended[:20])  # the oldest ones
    for _, writer in held:
        writer.close()


async def test_attack_connections_that_send_nothing_or_a_byte_use_no_memory_and_end_soon(lab: Lab) -> None:
    await lab.board("first")  # what is imported and allocated once is there now
    before = psutil.Process().memory_info().rss
    async with strangers(lab.port, 20, "127.0.0.4") as dripping, strangers(lab.port, 600) as silent:
        for sock in dripping:
            sock.send(b"\x16")
        begin = time.monotonic()
        await until(lambda: are_open(silent) + are_open(dripping) <= MOST_STRANGERS, 3)
        assert are_open(silent[: 600 - MOST_STRANGERS]) == 0  # the oldest ones
        assert are_open(dripping) == len(dripping)  # another address
        await lab.board("meanwhile")
        assert psutil.Process().memory_info().rss - before < 20 * MIB  # 175 MiB when each had a buffer of TLS
        await until(lambda: are_open(silent) + are_open(dripping) == 0, 10)
        assert 3 < time.monotonic() - begin < 8


async def test_attack_a_record_of_a_hello_and_nothing_more(lab: Lab) -> None:
    async with strangers(lab.port, 300) as begun:
        for sock in begun:
            with contextlib.suppress(OSError):  # it may be closed already
                sock.send(bytes.fromhex("160301020001"))
        await until(lambda: are_open(begun) <= MOST_STRANGERS, 3)
        await lab.board("meanwhile")
        await until(lambda: are_open(begun) == 0, 12)


async def test_attack_what_is_not_tls_is_closed_at_once(lab: Lab) -> None:
    sent = (b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("160201020001"), bytes.fromhex("160301020002"))
    async with strangers(lab.port, len(sent)) as wrong:
        for sock, data in zip(wrong, sent, strict=True):
            sock.send(data)
        await until(lambda: are_open(wrong) == 0, 2)


async def test_attack_many_connections_of_one_address_push_out_no_other(lab: Lab) -> None:
    context = client_context(Authority(lab.place.folder).pem.decode())
    reader, writer = await asyncio.open_connection(HOST, lab.port, ssl=context, local_addr=("127.0.0.3", 0))
    writer.write(b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
    flood = [
        await asyncio.open_connection(HOST, lab.port, ssl=context, local_addr=("127.0.0.2", 0)) for _ in range(400)
    ]
    async with strangers(lab.port, 400, "127.0.0.2") as silent:
        await until(lambda: are_open(silent) < MOST_STRANGERS, 3)
        writer.write(b"}")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    for _, each in [(reader, writer), *flood]:
        each.close()


async def test_attack_the_end_of_many_handshakes_is_silent_and_leaves_no_socket(lab: Lab) -> None:
    """Nothing for the loop's handler of errors, and every file is closed."""
    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        async with strangers(lab.port, 300) as begun:
            for sock in begun[::2]:
                with contextlib.suppress(OSError):
                    sock.send(bytes.fromhex("160301020001"))
            await until(lambda: are_open(begun) <= MOST_STRANGERS, 3)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= files, 3)
    assert said == []


async def test_attack_answers_that_nobody_reads_keep_no_memory(lab: Lab) -> None:
    """Each connection sends a whole request and is closed at once."""
    context = client_context(Authority(lab.place.folder).pem.decode())

    def kept() -> int:
        return sum(type(each) is asyncio.sslproto.SSLProtocol for each in gc.get_objects())

    def connected() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection((HOST, lab.port)), server_hostname=HOST)

    def ask() -> None:
        with connected():
            assert kept() > 0  # or what is counted is not what the service keeps
        for _ in range(100):
            with connected() as sock:
                sock.sendall(b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")

    await asyncio.to_thread(ask)
    await until(lambda: kept() < 5, 3)


async def test_attack_bodies_that_are_too_large_or_nonsense(lab: Lab) -> None:
    context = client_context(Authority(lab.place.folder).pem.decode())
    for path, body, wanted in (
        ("/join", b"x" * (17 << 10), 413),
        ("/join", b"[" * 9000, 400),
        ("/join", b'{"secret": 1}', 400),
        ("/renew", b"{}", 400),
        ("/leave", b"{}", 403),
        ("/", b"", 404),
    ):
        assert await asyncio.to_thread(status, lab, context, "POST", path, body) == wanted, path
    await lab.board("pi")


# ---- attacks: the broker ----


async def test_attack_a_board_on_the_topics_of_another(lab: Lab) -> None:
    a, b = await lab.board("a"), await lab.board("b")
    other, fleet = b.service().board, Topics("f1")
    stolen: list[str] = []
    will = (fleet.state(other), b"dead", True)
    thief = lab.link(a, "thief", will=will)
    for wanted in ("#", "$SYS/#", "edgebed/+/to/#", fleet.control_to(other), fleet.data_from(other), fleet.state("+")):
        thief.subscribe(wanted, lambda topic, payload: stolen.append(topic))
    own: list[str] = []
    thief.subscribe(fleet.control_to(a.service().board), lambda topic, payload: own.append(topic))
    async with lab.working("f1", a, b), Orchestrator(lab) as orchestrator:
        await thief.open()
        for topic in (fleet.control_from(other), fleet.state(other), fleet.control_to(other), "edgebed/x", "other"):
            thief.publish(topic, b"forged")
        thief.publish(fleet.control_from(a.service().board), b"mine")
        for topic in (fleet.control_to(other), fleet.data_from(other), fleet.state(other)):
            orchestrator.link.publish(topic, b"secret")
        orchestrator.link.publish(fleet.control_to(a.service().board), b"yours")
        await until(lambda: b"mine" in orchestrator.heard.values() and bool(own))
        twin = lab.link(a, "thief")  # takes the connection over, so the broker deals with the last will
        await twin.open()
        twin.publish(fleet.control_from(a.service().board), b"after the will")
        await until(lambda: b"after the will" in orchestrator.heard.values())
        assert set(orchestrator.heard.values()) == {b"after the will", b"secret", b"yours"}
        await thief.close()
        await twin.close()
    assert set(stolen) <= set(own)  # by its filter `edgebed/+/to/#`


async def test_attack_connections_without_tls_or_a_certificate_of_this_ca(lab: Lab, tmp_path: Path) -> None:
    keys = await lab.board("pi")
    with pytest.raises(LinkError):
        await MqttLink(Address(HOST, lab.mqtt_port, "orchestrator", lab.live.broker.password), "plain").open()
    forged = Keystore(tmp_path / "forged")
    other = Authority(made(tmp_path / "ca"))
    request = x509.load_pem_x509_csr(forged.request().encode())
    key = request.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    certificate = other.board_certificate(key, keys.service().board, dt.datetime.now(dt.UTC))
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    forged.keep(keys.service(), keys.identity.ca.read_text(), pem)
    with pytest.raises(LinkError):
        await lab.link(forged, "forged").open()
    with pytest.raises(LinkError):
        await asyncio.to_thread(lab.service.check, forged.identity)
    without = ssl.create_default_context(cadata=keys.identity.ca.read_text())
    assert await asyncio.to_thread(_first_answer, lab, without) == b""
    link = lab.link(keys, "right")
    await link.open()
    await link.close()


CONNECT = bytes.fromhex("101100044d5154540402003c00056c6f67696e")
"""An MQTT packet CONNECT of the client `login`."""


def _first_answer(lab: Lab, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> bytes:
    """What the broker answers to a CONNECT; nothing where it closes the connection."""
    try:
        with (
            socket.create_connection((HOST, lab.mqtt_port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=HOST, session=session) as secure,
        ):
            secure.sendall(CONNECT)
            return secure.recv(4)
    except (OSError, ssl.SSLError):
        return b""


async def test_attack_a_revoked_board_loses_its_session_within_2_s_and_does_not_come_back(lab: Lab) -> None:
    a, b = await lab.board("a"), await lab.board("b")
    context = identity_context(a.identity)
    session, answer = await asyncio.to_thread(_session, lab, context)
    assert answer == bytes.fromhex("20020000")
    links = [lab.link(a, "one"), lab.link(a, "two", keepalive_s=0), lab.link(b, "other")]
    for link in links:
        await link.open()
    await until(lambda: len(lab.live.sessions) == 3)
    begin = time.monotonic()
    version = lab.revoke("a")
    await until(lambda: not links[0].connected and not links[1].connected)
    assert time.monotonic() - begin < 2
    await until(lambda: lab.live.applied == version)
    assert links[2].connected
    with pytest.raises(LinkError):
        await lab.link(a, "again").open()
    assert await asyncio.to_thread(_first_answer, lab, context, session) == b""  # nor by resuming a TLS session
    with pytest.raises(UsageError, match="it is revoked"):
        await asyncio.to_thread(lab.service.check, a.identity)
    assert not links[0].connected
    for link in links:
        await link.close()


def _session(lab: Lab, context: ssl.SSLContext) -> tuple[ssl.SSLSession | None, bytes]:
    """A TLS session that can be resumed."""
    with (
        socket.create_connection((HOST, lab.mqtt_port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secure,
    ):
        secure.sendall(CONNECT)
        return secure.session, secure.recv(4)


async def test_attack_a_revoked_board_that_hides_its_client_id_is_cut_off_too(lab: Lab) -> None:
    """The broker's log cuts long lines, so the name of this session cannot be read there."""
    keys = await lab.board("a")
    link = lab.link(keys, "x" * 3000)
    await link.open()
    begin = time.monotonic()
    lab.revoke("a")
    await until(lambda: not link.connected)
    assert time.monotonic() - begin < 2
    await link.close()
    await lab.board("b")
    other = lab.link(lab.keys("b"), "b")
    await other.open()
    await other.close()
