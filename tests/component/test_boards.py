"""Boards: joining, waiting for work, renewing, and attacks, against a running service with a real broker."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import http.client
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edge_agent.board.cipher import cipher_environment
from edge_agent.board.client import ClockError, Service
from edge_agent.board.join import join, leave
from edge_agent.board.keystore import Keystore, Membership
from edge_agent.board.standby import Standby
from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import FleetError, LinkError, UsageError, WireError
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.link.mqtt import Address, MqttLink
from edgebed.link.tls import client_context, identity_context
from edgebed.wire.boards import WAITING, Assignment, BoardState, Join, Token
from edgebed.wire.messages import Presence, Upload, decode_control
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.boards.authority import Authority
from orchestrator.boards.enrolment import Enrolment
from orchestrator.boards.https import MOST_STRANGERS
from orchestrator.boards.place import Place
from tests.component._boards import HOST, Lab, running, until

pytestmark = pytest.mark.mosquitto


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with running(tmp_path) as lab:
        yield lab


class Orchestrator:
    """Hears everything on the broker."""

    def __init__(self, lab: Lab) -> None:
        self.heard: dict[str, bytes] = {}
        self.link = MqttLink(lab.orchestrator, f"orchestrator-{time.monotonic_ns()}")
        self.link.subscribe("#", self.heard.__setitem__)

    async def __aenter__(self) -> Orchestrator:
        await self.link.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()


# ---- joining ----


async def test_a_board_joins_connects_and_leaves(lab: Lab) -> None:
    keys = await lab.board("pi")
    about = keys.membership()
    assert (about.name, about.host, about.port, about.mqtt_port) == ("pi", HOST, lab.port, lab.mqtt_port)
    link = lab.link(keys, "a")
    await link.open()
    await until(lambda: [each.board for each in lab.live.sessions] == [about.board])
    await link.close()
    await until(lambda: not lab.live.sessions)
    with pytest.raises(UsageError, match="this board has joined"):
        await asyncio.to_thread(join, lab.service, str(lab.token("other")), keys, print)
    await asyncio.to_thread(leave, keys, lab.said.append)
    assert not keys.folder.exists()
    assert [board.revoked_why for board in lab.store.read().boards] == ["it left"]


async def test_a_wrong_clock_is_named_before_the_secret_is_sent(lab: Lab) -> None:
    slow = Service(HOST, lab.port, lambda: dt.datetime(1970, 1, 1, 0, 5, tzinfo=dt.UTC))
    token = str(lab.token("pi"))
    with pytest.raises(ClockError, match="1970-01-01 00:05 UTC"):
        await asyncio.to_thread(join, slow, token, lab.keys("pi"), print)
    await asyncio.to_thread(join, lab.service, token, lab.keys("pi"), print)


async def test_a_second_service_for_the_same_boards_is_refused(lab: Lab) -> None:
    with pytest.raises(FleetError, match="already running"):
        await asyncio.to_thread(Place(lab.place.folder).hold)


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
    victim = (await lab.board("victim")).membership().board
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
    assert 20 <= sum(ended) <= 40  # the oldest ones
    for _, writer in held:
        writer.close()


async def test_attack_bodies_that_are_too_large_or_nonsense(lab: Lab) -> None:
    context = client_context(Authority(lab.place.folder).pem.decode())
    for path, body, status in (
        ("/join", b"x" * (17 << 10), 413),
        ("/join", b"[" * 9000, 400),
        ("/join", b'{"secret": 1}', 400),
        ("/renew", b"{}", 400),
        ("/leave", b"{}", 403),
        ("/", b"", 404),
    ):
        assert await asyncio.to_thread(_status, lab, context, "POST", path, body) == status, path
    await lab.board("pi")


def _status(lab: Lab, context: ssl.SSLContext, method: str, path: str, body: bytes = b"") -> int:
    connection = http.client.HTTPSConnection(HOST, lab.port, timeout=10, context=context)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


# ---- attacks: the broker ----


async def test_attack_a_board_on_the_topics_of_another(lab: Lab) -> None:
    a, b = await lab.board("a"), await lab.board("b")
    other, fleet = b.membership().board, Topics("f1")
    stolen: list[str] = []
    will = (fleet.state(other), b"dead", True)
    thief = lab.link(a, "thief", will=will)
    for wanted in ("#", "$SYS/#", "edgebed/+/to/#", fleet.control_to(other), fleet.data_from(other), fleet.state("+")):
        thief.subscribe(wanted, lambda topic, payload: stolen.append(topic))
    own: list[str] = []
    thief.subscribe(fleet.control_to(a.membership().board), lambda topic, payload: own.append(topic))
    async with Orchestrator(lab) as orchestrator:
        await thief.open()
        for topic in (fleet.control_from(other), fleet.state(other), fleet.control_to(other), "edgebed/x", "other"):
            thief.publish(topic, b"forged")
        thief.publish(fleet.control_from(a.membership().board), b"mine")
        for topic in (fleet.control_to(other), fleet.data_from(other), fleet.state(other)):
            orchestrator.link.publish(topic, b"secret")
        orchestrator.link.publish(fleet.control_to(a.membership().board), b"yours")
        await until(lambda: b"mine" in orchestrator.heard.values() and bool(own))
        twin = lab.link(a, "thief")  # takes the connection over, so the broker deals with the last will
        await twin.open()
        twin.publish(fleet.control_from(a.membership().board), b"after the will")
        await until(lambda: b"after the will" in orchestrator.heard.values())
        assert set(orchestrator.heard.values()) == {b"after the will", b"secret", b"yours"}
        await thief.close()
        await twin.close()
    assert set(stolen) <= set(own)  # by its filter `edgebed/+/to/#`


async def test_attack_connections_without_tls_or_a_certificate_of_this_ca(lab: Lab, tmp_path: Path) -> None:
    keys = await lab.board("pi")
    with pytest.raises(LinkError):
        await MqttLink(Address(HOST, lab.mqtt_port, "orchestrator", lab.live.password), "plain").open()
    forged = Keystore(tmp_path / "forged")
    other = Authority(_made(tmp_path / "ca"))
    request = x509.load_pem_x509_csr(forged.request().encode())
    key = request.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    certificate = other.board_certificate(key, keys.membership().board, dt.datetime.now(dt.UTC))
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    forged.keep(keys.membership(), keys.identity.ca.read_text(), pem)
    with pytest.raises(LinkError):
        await lab.link(forged, "forged").open()
    with pytest.raises(LinkError):
        await asyncio.to_thread(lab.service.check, forged.identity)
    without = ssl.create_default_context(cadata=keys.identity.ca.read_text())
    assert await asyncio.to_thread(_first_answer, lab, without) == b""
    link = lab.link(keys, "right")
    await link.open()
    await link.close()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


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


# ---- shards ----


async def test_shards_are_handed_to_boards_only_and_continued(lab: Lab, tmp_path: Path) -> None:
    keys, data = await lab.board("pi"), os.urandom(3_000_000)
    sha256 = hashlib.sha256(data).hexdigest()
    (lab.place.shards / f"{sha256}.safetensors").write_bytes(data)
    folder = _made(tmp_path / "cache")
    (folder / f"{sha256}.part").write_bytes(data[:1_000_000])
    path = await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)
    assert path.read_bytes() == data
    (folder / f"{sha256}.safetensors").rename(folder / f"{sha256}.part")  # all bytes, but not yet named
    assert (await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)).read_bytes() == data
    path.unlink()
    (folder / f"{sha256}.part").write_bytes(b"damaged")
    with pytest.raises(WireError, match="damaged"):
        await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)
    assert (await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)).read_bytes() == data
    with pytest.raises(LinkError, match="there is no such shard"):
        await asyncio.to_thread(lab.service.shard, "0" * 64, folder, keys.identity)
    stranger = client_context(keys.identity.ca.read_text())
    assert await asyncio.to_thread(_status, lab, stranger, "GET", f"/shards/{sha256}") == 403


# ---- MQTT over TLS ----


async def test_transfers_over_tls_arrive_both_ways(lab: Lab) -> None:
    keys = await lab.board("pi")
    device, topics, body = keys.membership().board, Topics("f1"), os.urandom(5_000_000)
    arrived: list[bytes] = []

    async def deliver(inbound: ReceivedTransfer) -> None:
        arrived.append(bytes(inbound.body))

    sides = []
    for name, address in ((ORCHESTRATOR, lab.orchestrator), (device, lab.link(keys, "x")._address)):  # noqa: SLF001
        control = MqttLink(address, f"{name}-control")
        data = MqttLink(address, f"{name}-data", keepalive_s=0, paced=name == device)
        endpoint = TransferEndpoint(name, topics, control, data, deliver=deliver, on_control=lambda *_: None)
        endpoint.start()
        await control.open()
        await data.open()
        sides.append((endpoint, control, data))
    async with asyncio.timeout(30):
        await sides[1][0].send(ORCHESTRATOR, Upload(device, "t", 0, 1), body)
        await sides[0][0].send(device, Upload(device, "t", 1, 1), body)
    assert arrived == [body, body]
    for endpoint, control, data in sides:
        await endpoint.close()
        await data.close()
        await control.close()


CIPHER = """
import socket, ssl, sys
from pathlib import Path
from edgebed.link.tls import Identity, identity_context
host, port, folder = sys.argv[1:]
with socket.create_connection((host, int(port))) as plain:
    with identity_context(Identity.of(Path(folder))).wrap_socket(plain, server_hostname=host) as secure:
        print(secure.cipher()[0])
"""


async def test_a_board_without_aes_instructions_gets_chacha20(lab: Lab) -> None:
    keys = await lab.board("pi")
    arguments = [sys.executable, "-c", CIPHER, HOST, str(lab.mqtt_port), str(keys.folder)]
    (lab.folder / "cpuinfo").write_text("Features\t: fp asimd crc32\n")
    env = {**os.environ, **cipher_environment(keys.folder, lab.folder / "cpuinfo")}
    done = await asyncio.to_thread(subprocess.run, arguments, env=env, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "TLS_CHACHA20_POLY1305_SHA256", done.stderr


# ---- waiting for work ----


async def test_a_board_does_its_assignment_and_waits_for_the_next(lab: Lab) -> None:
    keys, shard = await lab.board("pi"), lab.folder / "idle.safetensors"
    board = keys.membership().board
    write_idle_shard(shard)
    sha256 = hashlib.sha256(shard.read_bytes()).hexdigest()
    shard.rename(lab.place.shards / f"{sha256}.safetensors")
    standby = asyncio.create_task(Standby(keys, lab.said.append).run())
    async with Orchestrator(lab) as orchestrator:

        def state() -> BoardState:
            return msgspec.json.decode(
                orchestrator.heard.get(WAITING.state(board), b'{"online":false}'), type=BoardState
            )

        def presence() -> Presence | None:
            heard = orchestrator.heard.get(Topics("f1").state(board))
            said = decode_control(heard) if heard else None
            return said if isinstance(said, Presence) else None

        await until(lambda: state().online and not state().fleet)
        wrong, right = Assignment("f1", "0" * 64), Assignment("f1", sha256)
        for order, done in (
            (wrong, lambda: "no such shard" in state().error),
            (right, lambda: (said := presence()) is not None and said.online and said.shard == sha256),
        ):
            orchestrator.link.publish(WAITING.control_to(board), msgspec.json.encode(order), retain=True)
            await until(done, 60)
        assert state() == msgspec.structs.replace(state(), fleet="f1", error="")
        orchestrator.link.publish(WAITING.control_to(board), b"", retain=True)
        await until(lambda: (said := presence()) is not None and not said.online)
        await until(lambda: state().online and not state().fleet)
    standby.cancel()
    await asyncio.gather(standby, return_exceptions=True)


async def test_a_board_comes_back_after_the_service_was_away_and_ends_when_it_is_revoked(lab: Lab) -> None:
    keys = await lab.board("pi")
    standby = asyncio.create_task(Standby(keys, lab.said.append, guard_s=0.2).run())
    await until(lambda: bool(lab.live.sessions))
    await lab.stop()
    await until(lambda: any("cannot be reached" in line for line in lab.said))
    await lab.start()
    await until(lambda: bool(lab.live.sessions))
    lab.revoke("pi")
    with pytest.raises(UsageError, match="it is revoked"):
        await asyncio.wait_for(standby, 20)


async def test_a_certificate_that_has_run_out_is_renewed(lab: Lab) -> None:
    keys, long_ago = lab.keys("pi"), time.time() - 91 * 86400
    authority = Authority(lab.place.folder)
    enrolment = Enrolment(lab.store, authority, lab.mqtt_port)
    with lab.store.change() as registry:
        secret = registry.invite("pi", "", 3600.0, False, long_ago)
    old = enrolment.join(Join(secret, keys.request()), long_ago)
    keys.keep(Membership(old.board, "pi", HOST, lab.port, lab.mqtt_port), authority.pem.decode(), old.certificate)
    with pytest.raises(LinkError):
        await lab.link(keys, "old").open()
    standby = asyncio.create_task(Standby(keys, lab.said.append).run())
    await until(lambda: [each.board for each in lab.live.sessions] == [old.board])
    assert any("the certificate is renewed" in line for line in lab.said)
    standby.cancel()
    await asyncio.gather(standby, return_exceptions=True)
