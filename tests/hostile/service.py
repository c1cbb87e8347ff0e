"""Attempts against a live boards service and its broker: of strangers, and of a board that has joined."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import time
from collections.abc import Awaitable, Callable

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec

from edge_agent.board.join import join
from edge_agent.board.keystore import Keystore
from edgebed.errors import EdgebedError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import client_context, identity_context
from edgebed.wire.boards import Join, Token
from edgebed.wire.topics import Topics
from orchestrator.boards.authority import Authority
from tests.component._between import Between
from tests.component._boards import HOST, Lab, Orchestrator, made, status
from tests.component._strangers import are_open, strangers
from tests.hostile.attempts import Attempt
from tests.waiting import until

FLEET = Topics("f1")


async def told(work: Callable[[], object]) -> str:
    """What blocking work said: "taken", or why not."""
    try:
        await asyncio.to_thread(work)
    except (EdgebedError, OSError) as error:
        return f"refused: {error}"
    return "taken"


async def logged_in(link: MqttLink) -> str:
    try:
        async with asyncio.timeout(10):
            await link.open()
    except (EdgebedError, TimeoutError) as error:
        return f"refused: {error}"
    await link.close()
    return "logged in"


def ca_of(lab: Lab) -> str:
    return Authority(lab.place.folder).pem.decode()


def answer(method: str, path: str, body: bytes = b"", *, member: bool = False) -> Callable[[Lab], Awaitable[str]]:
    """The status of the answer to one request."""

    async def ask(lab: Lab) -> str:
        context = identity_context(lab.keys("member").identity) if member else client_context(ca_of(lab))
        return str(await asyncio.to_thread(status, lab, context, method, path, body))

    return ask


async def other_fingerprint(lab: Lab) -> str:
    token = lab.token("f")
    return await told(
        lambda: join(lab.service, str(Token(bytes(32), token.secret, "f")), lab.keys("f"), lambda line: None)
    )


async def second_ca(lab: Lab) -> str:
    own = Authority(made(lab.folder / "own"))
    between = Between(own, f"{ca_of(lab)}{own.pem.decode()}")
    with between.listening():
        got = await told(lambda: join(between.service, str(lab.token("k")), lab.keys("k"), lambda line: None))
    return f"{got}; secrets that it was sent: {len(between.posted)}"


async def used_token(lab: Lab) -> str:
    token = str(lab.token("used"))
    await asyncio.to_thread(join, lab.service, token, lab.keys("used"), print)
    return await told(lambda: join(lab.service, token, lab.keys("thief"), print))


async def late_token(lab: Lab) -> str:
    return await told(lambda: join(lab.service, str(lab.token("late", lasts_s=-1.0)), lab.keys("late"), print))


async def wrong_token(lab: Lab) -> str:
    return await told(lambda: lab.service.join(ca_of(lab), Join("x" * 22, lab.keys("x").request())))


async def withdrawn_token(lab: Lab) -> str:
    """A board is revoked; its open invitation still stands."""
    await lab.board("away")
    token = str(lab.token("away", replace=True))
    with lab.store.change() as registry:
        registry.expel("away", time.time())  # as `edgebed boards revoke` does
    return await told(lambda: join(lab.service, token, lab.keys("back"), print))


async def other_name(lab: Lab) -> str:
    victim = lab.keys("member").service().board
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, victim)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name)
    signed = csr.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    wanted = Join(lab.token("n").secret, signed.public_bytes(serialization.Encoding.PEM).decode())
    return await told(lambda: lab.service.join(ca_of(lab), wanted))


async def other_key(lab: Lab) -> str:
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = csr.sign(dsa.generate_private_key(1024), hashes.SHA256())
    wanted = Join(lab.token("d").secret, signed.public_bytes(serialization.Encoding.PEM).decode())
    return await told(lambda: lab.service.join(ca_of(lab), wanted))


async def many_joins(lab: Lab) -> str:
    """The same key joins again and again with its token (A7)."""
    token, keys = lab.token("again"), lab.keys("again")
    wanted, serials = Join(token.secret, keys.request()), set[int]()
    for _ in range(10):
        with contextlib.suppress(EdgebedError):
            answered = await asyncio.to_thread(lab.service.join, ca_of(lab), wanted)
            serials.add(x509.load_pem_x509_certificate(answered.certificate.encode()).serial_number)
    return f"{len(serials)} certificates" if len(serials) != 1 else "1 certificate"


async def silent(lab: Lab) -> str:
    async with strangers(lab.port, 400) as held:
        await until(lambda: are_open(held) <= 256, 5)
        await lab.board("meanwhile")
        await until(lambda: are_open(held) == 0, 12)
    return "256 at most were kept, for seconds; a board joined meanwhile"


async def dripping(lab: Lab) -> str:
    async with strangers(lab.port, 50) as held:
        for each in held:
            each.send(b"\x16")
        await until(lambda: are_open(held) == 0, 12)
    return "all were closed"


async def no_tls(lab: Lab) -> str:
    async with strangers(lab.port, 1) as held:
        held[0].send(b"GET /ca HTTP/1.1\r\n\r\n")
        await until(lambda: are_open(held) == 0, 5)
    return "closed"


def old_tls(version: ssl.TLSVersion, *, broker: bool) -> Callable[[Lab], Awaitable[str]]:
    async def ask(lab: Lab) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        where = (HOST, lab.mqtt_port if broker else lab.port)

        def shake() -> None:
            with socket.create_connection(where, timeout=5) as plain, context.wrap_socket(plain):
                pass

        return await told(shake)

    return ask


# ---- the broker ----


async def password_only(lab: Lab) -> str:
    return await logged_in(MqttLink(Address(HOST, lab.mqtt_port, "orchestrator", "x" * 24), "plain"))


async def other_ca(lab: Lab) -> str:
    """A certificate with the id of a board, of a CA of the attacker's own."""
    keys, forged = lab.keys("member"), Keystore(lab.folder / "forged")
    key = x509.load_pem_x509_csr(forged.request().encode()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    own = Authority(made(lab.folder / "other-ca"))
    certificate = own.board_certificate(key, keys.service().board, dt.datetime.now(dt.UTC))
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    forged.keep(keys.service(), keys.identity.ca.read_text(), pem)
    return await logged_in(lab.link(forged, "forged"))


def hears(*filters: str) -> Callable[[Lab], Awaitable[str]]:
    """What a member hears of others by these filters."""

    async def listen(lab: Lab) -> str:
        member, heard = lab.keys("member"), list[str]()
        own = FLEET.control_to(member.service().board)
        link = lab.link(member, f"ears-{time.monotonic_ns()}")
        for each in (*filters, own):
            link.subscribe(each, lambda topic, payload: heard.append(topic))
        async with lab.working("f1", member), Orchestrator(lab) as orchestrator:
            await link.open()
            for topic in (FLEET.control_to("victim"), FLEET.data_to("victim"), FLEET.state("victim"), "edgebed/x", own):
                orchestrator.link.publish(topic, b"secret")
            await until(lambda: own in heard)
        await link.close()
        return f"{len(set(heard) - {own})} topics of others"

    return listen


def says(topic: str, *, will: bool = False) -> Callable[[Lab], Awaitable[str]]:
    """What others hear of a member that publishes, or leaves a last will, there."""

    async def speak(lab: Lab) -> str:
        member = lab.keys("member")
        name, own = f"mouth-{time.monotonic_ns()}", FLEET.control_from(member.service().board)
        async with lab.working("f1", member), Orchestrator(lab) as orchestrator:
            link = lab.link(member, name, **({"will": (topic, b"forged", True)} if will else {}))
            await link.open()
            if not will:
                link.publish(topic, b"forged", retain=True)
            twin = lab.link(member, name)  # takes the connection over: its last will is dealt with
            await twin.open()
            twin.publish(own, b"after")
            await until(lambda: orchestrator.heard.get(own) == b"after")
            await link.close()
            await twin.close()
            return "heard" if b"forged" in orchestrator.heard.values() else "dropped"

    return speak


async def revoked(lab: Lab) -> str:
    keys = await lab.board("gone")
    link = lab.link(keys, "gone")
    await link.open()
    lab.revoke("gone")
    await until(lambda: not link.connected, 5)
    await link.close()
    back = await logged_in(lab.link(keys, "gone-again"))
    checked = await told(lambda: lab.service.check(keys.identity))
    return f"cut off; {back[:7]}; {checked[:7]}"


async def late_login(lab: Lab) -> str:
    """TLS before the revocation, CONNECT after it (A8)."""
    keys = await lab.board("patient")
    context = identity_context(keys.identity)
    with (
        socket.create_connection((HOST, lab.mqtt_port), timeout=10) as plain,
        await asyncio.to_thread(context.wrap_socket, plain, server_hostname=HOST) as secure,
    ):
        version = lab.revoke("patient")
        await until(lambda: lab.live.applied == version)

        def wait() -> bytes:
            try:
                secure.sendall(bytes.fromhex("101100044d5154540402000000056c6f67696e"))
                secure.settimeout(5)
                return secure.recv(4) and secure.recv(1)
            except TimeoutError:
                return b"still there"
            except OSError:
                return b""

        return "its session stays" if await asyncio.to_thread(wait) else "closed"


def brokers() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True) if each.name() == "mosquitto"}


async def restarts(lab: Lab) -> str:
    """A client id that the broker's log does not show whole; then another board joins (B9)."""
    hidden = lab.link(lab.keys("member"), "hidden id")
    await hidden.open()
    before = brokers()
    await lab.board("newcomer")
    await until(lambda: lab.live.applied == lab.store.read().version)
    got = await logged_in(lab.link(lab.keys("newcomer"), "newcomer"))
    await hidden.close()
    return f"{got}; the broker {'went on' if brokers() == before else 'was restarted'}"


async def retained(lab: Lab) -> str:
    """Messages of 1 MiB that the broker keeps, in fleets that there are not (B10)."""
    member = lab.keys("member")
    fleets = [Topics(f"invented-{number}") for number in range(10)]
    link = lab.link(member, f"flood-{time.monotonic_ns()}")
    own = FLEET.control_from(member.service().board)
    async with lab.working("f1", member), Orchestrator(lab) as orchestrator:
        await link.open()
        for each in fleets:
            link.publish(each.state(member.service().board), bytes(1 << 20), retain=True)
        link.publish(own, b"the last")
        await until(lambda: orchestrator.heard.get(own) == b"the last")
    await link.close()
    async with Orchestrator(lab) as later:
        later.link.publish("edgebed/marker", b"m")
        await until(lambda: "edgebed/marker" in later.heard)
        kept = sum("invented" in topic for topic in later.heard)
        return f"{kept} were kept" if kept else "none was kept"


ATTEMPTS: tuple[Attempt[Lab], ...] = (
    Attempt("stranger", "A1: plays the server with a CA of its own", other_fingerprint, "another fingerprint"),
    Attempt("stranger", "A1: adds its CA behind the right one", second_ca, "secrets that it was sent: 0"),
    Attempt("stranger", "A4: 400 connections that send nothing", silent, "256 at most"),
    Attempt("stranger", "A4: a byte of a TLS hello, and nothing more", dripping, "all were closed"),
    Attempt("stranger", "no TLS at all", no_tls, "closed"),
    Attempt("stranger", "TLS 1.1 at the service", old_tls(ssl.TLSVersion.TLSv1_1, broker=False), "refused"),
    Attempt("stranger", "TLS 1.1 at the broker", old_tls(ssl.TLSVersion.TLSv1_1, broker=True), "refused"),
    Attempt("stranger", "joins with an invented token", wrong_token, "not known here"),
    Attempt("stranger", "joins with a used token", used_token, "used already"),
    Attempt("stranger", "joins with a token that has run out", late_token, "has run out"),
    Attempt("stranger", "A8: joins with the token of a revoked board", withdrawn_token, "refused"),
    Attempt("stranger", "a CSR with the name of another board", other_name, "the service gives the name"),
    Attempt("stranger", "a CSR with a DSA key", other_key, "refused"),
    Attempt("stranger", "a body of 17 KiB", answer("POST", "/join", b"x" * (17 << 10)), "413"),
    Attempt("stranger", "JSON of 9000 brackets", answer("POST", "/join", b"[" * 9000), "400"),
    Attempt("stranger", "a number as secret", answer("POST", "/join", b'{"secret": 1}'), "400"),
    Attempt(
        "stranger", "a half surrogate as secret", answer("POST", "/join", b'{"secret": "\\ud800", "csr": ""}'), "400"
    ),
    Attempt("stranger", "renews without a CSR", answer("POST", "/renew", b"{}"), "400"),
    Attempt("stranger", "lets a board leave", answer("POST", "/leave", b"{}"), "403"),
    Attempt("stranger", "a shard without a certificate", answer("GET", "/shards/" + "0" * 64), "40"),
    Attempt("member", "GET /shards/..%2fca.key", answer("GET", "/shards/..%2fca.key", member=True), "40"),
    Attempt("member", "GET /shards/%00", answer("GET", "/shards/%00", member=True), "40"),
    Attempt("member", "GET /registry.json", answer("GET", "/registry.json", member=True), "40"),
    Attempt(
        "member", "GET /shards/../../registry.json", answer("GET", "/shards/../../registry.json", member=True), "40"
    ),
    Attempt("member", "A7: joins ten times with one token", many_joins, "1 certificate"),
    Attempt("stranger", "the broker with a password, no TLS", password_only, "refused"),
    Attempt("stranger", "the broker with a certificate of another CA", other_ca, "refused"),
    Attempt("member", "subscribes to #", hears("#"), "0 topics"),
    Attempt("member", "subscribes to $SYS/#", hears("$SYS/#"), "0 topics"),
    Attempt("member", "subscribes to edgebed/+/to/+", hears("edgebed/+/to/+"), "0 topics"),
    Attempt("member", "subscribes to $share/x/#", hears("$share/x/#"), "0 topics"),
    Attempt(
        "member", "subscribes to another's topics", hears(FLEET.control_to("victim"), FLEET.state("+")), "0 topics"
    ),
    Attempt("member", "publishes as another device", says(FLEET.control_from("victim")), "dropped"),
    Attempt("member", "publishes another's Presence", says(FLEET.state("victim")), "dropped"),
    Attempt("member", "gives an order to a device", says(FLEET.control_to("victim")), "dropped"),
    Attempt("member", "a last will for another device", says(FLEET.state("victim"), will=True), "dropped"),
    Attempt("member", "goes on after it was revoked", revoked, "cut off; refused; refused"),
    Attempt("member", "A8: logs in on a TLS session from before", late_login, "closed"),
    Attempt("member", "B9: hides its client id", restarts, "logged in; the broker went on"),
    Attempt("member", "B10: 10 retained messages of 1 MiB", retained, "none was kept"),
)


async def prepared(lab: Lab) -> None:
    """The member that some of the attempts are made by."""
    await lab.board("member")
