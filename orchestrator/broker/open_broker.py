"""Finds or starts the MQTT broker of a session.

In this order: the user's own (`mqtt://user:password@host:port`), an installed Mosquitto as a child process, a Mosquitto
container, the embedded pure-Python broker. One that we start listens on one free port of loopback and of every address
the devices need, has a user with a generated password for the orchestrator and for each device, keeps nothing on disk
after its end, and ends with us, whatever ends us.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from edgebed.errors import LinkError, UsageError
from edgebed.link.mqtt import Address, MqttLink
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.broker.seams import Listen, Runner
from orchestrator.fleet.base import Access
from orchestrator.fleet.ownership import OwnedFolder

KINDS = ("mosquitto", "container", "embedded")
"""Ways to run a broker of our own, best first. Each is a file of this package with a function `find`, which returns a
runner, or None where this machine has not what it needs."""

START_S = 20.0
LOOPBACK = "127.0.0.1"


class Broker:
    """A broker that is up. `kind` says which one it is, for people."""

    def __init__(self, kind: str, address: Address, runner: Runner | None, listen: Listen | None, folder: Path) -> None:
        self.kind, self._address, self._runner, self._listen, self._folder = kind, address, runner, listen, folder

    @property
    def port(self) -> int:
        return self._address.port

    @property
    def username(self) -> str:
        return self._address.username

    @property
    def password(self) -> str:
        return self._address.password

    def access(self, host: str, device: str = "") -> Access:
        """How to reach the broker from where this host is called `host` (a broker elsewhere has its own name).

        Args:
            device: a device, which has a user of its own if the broker is ours; "": the orchestrator.
        """
        ours = self._runner is not None or _is_loopback(self._address.host)
        users = {} if self._listen is None else self._listen.users
        user, password = (device, users[device]) if device in users else (self.username, self.password)
        return Access(host if ours else self._address.host, self.port, user, password)

    def pid(self) -> int | None:
        """Its process; None if the broker is not ours, or not on this host."""
        return None if self._runner is None else self._runner.pid()

    async def restart(self) -> None:
        """Stop it and start it again on the same port; all it held is lost. For tests of faults."""
        if self._runner is None or self._listen is None:
            raise LinkError("this broker is not ours to restart", hint="leave --broker away")
        await self._runner.stop()
        await self._runner.start(self._listen, self._folder)
        await _wait_ready(self._runner, self._listen)


@contextlib.asynccontextmanager
async def open_broker(
    addresses: Sequence[str],
    url: str | None = None,
    *,
    kinds: Sequence[str] = KINDS,
    fleet: str = "",
    devices: Sequence[str] = (),
) -> AsyncIterator[Broker]:
    """A broker that listens on loopback and `addresses`, or the one at `url`; stopped and removed at the end.

    Args:
        addresses: host addresses at which devices reach us (`Fleet.prepare`).
        url: mqtt://user:password@host:port of the user's own broker.
        kinds: what may be started, best first.
        fleet, devices: each device gets a user of its own, who may use the topics of this device in this fleet only. A
            broker at `url` keeps its own users.

    Raises:
        UsageError: the url cannot be used.
        LinkError: no broker can be reached or started; says why, and what to do.
    """
    with OwnedFolder("edgebed-broker-") as folder:
        if url is not None:
            address = parse_url(url)
            await _try_login(address)
            yield Broker(f"mqtt://{address}", address, None, None, folder)
            return
        users = {name: secrets.token_urlsafe(18) for name in (ORCHESTRATOR, *devices)}
        wanted = Listen(list(dict.fromkeys([LOOPBACK, *addresses])), 0, users, fleet)
        runner, listen = await _start_first(kinds, wanted, folder)
        try:
            address = _own_address(listen, LOOPBACK)
            yield Broker(runner.kind, address, runner, listen, folder)
        finally:
            await runner.stop()


def parse_url(url: str) -> Address:
    """Host, port and user of `mqtt://user:password@host:port`. Raises UsageError."""
    hint = "write mqtt://user:password@host:port"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{_hide(url)!r} is no broker's address: {error}", hint=hint) from None
    if parts.scheme == "mqtts":
        raise UsageError(
            "encrypted MQTT (mqtts://) is not supported",
            hint="use mqtt:// to a port that only your own network reaches, or through a tunnel (ssh -L, stunnel)",
        )
    if parts.scheme != "mqtt" or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise UsageError(f"{_hide(url)!r} is no broker's address", hint=hint)
    return Address(parts.hostname, port or 1883, unquote(parts.username or ""), unquote(parts.password or ""))


def _hide(url: str) -> str:
    """The url without what stands before the host."""
    scheme, mark, rest = url.rpartition("@")
    return rest if mark else scheme or url


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _try_login(address: Address) -> None:
    link = MqttLink(address, f"edgebed-login-{secrets.token_hex(4)}")
    await link.open()
    await link.close()


# ---- starting --------------------------------------------------------------------------------------------------------


async def _start_first(kinds: Sequence[str], wanted: Listen, folder: Path) -> tuple[Runner, Listen]:
    """The first way to run a broker that this machine has and that works, and where it listens."""
    failures: list[str] = []
    for kind in kinds:
        runner = await asyncio.to_thread(_find, kind)
        if runner is None:
            continue
        for _ in range(3):  # another program may take the free port before the broker does
            listen = msgspec.structs.replace(wanted, port=free_port(wanted.addresses))
            try:
                await runner.start(listen, folder)
                await _wait_ready(runner, listen)
                return runner, listen
            except LinkError as error:
                await runner.stop()
                failures.append(f"{runner.kind}: {error}")
            except BaseException:
                await runner.stop()
                raise
    raise LinkError(
        "no MQTT broker can be started: " + ("; ".join(dict.fromkeys(failures)) or "none is installed"),
        hint="install mosquitto (apt install mosquitto), or pip install amqtt, or name your own with --broker mqtt://…",
    )


def _own_address(listen: Listen, host: str) -> Address:
    return Address(host, listen.port, ORCHESTRATOR, listen.users[ORCHESTRATOR])


def _find(kind: str) -> Runner | None:
    runner: Runner | None = importlib.import_module(f"orchestrator.broker.{kind}").find()
    return runner


async def _wait_ready(runner: Runner, listen: Listen) -> None:
    """Until we can log in on every address."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_S
    for host in listen.addresses:
        while not await _lets_us_in(_own_address(listen, host)):
            if why := runner.failure():
                raise LinkError(f"it ended at once: {why}")
            if loop.time() > deadline:
                raise LinkError(f"it did not listen on {host}:{listen.port} within {START_S:.0f} s")
            await asyncio.sleep(0.02)
    if why := runner.failure():  # then somebody else answered on our port
        raise LinkError(f"it ended at once: {why}")


async def _lets_us_in(address: Address) -> bool:
    """A login, not only a connection: another program may have taken our port."""
    try:
        async with asyncio.timeout(2.0):
            await _try_login(address)
    except (LinkError, TimeoutError):
        return False
    return True


def free_port(addresses: list[str]) -> int:
    """A TCP port that is free on all addresses. Raises LinkError where one of them is not this host's."""
    for _ in range(50):
        with contextlib.ExitStack() as stack:
            port = 0
            try:
                for address in addresses:
                    family = socket.AF_INET6 if ":" in address else socket.AF_INET
                    sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                    sock.bind((address, port))
                    port = sock.getsockname()[1]
            except OSError as error:
                if port == 0 or "assign" in str(error):
                    raise LinkError(
                        f"a broker cannot listen on {address}: {error}", hint="is this an address of this host?"
                    ) from None
                continue
            return port
    raise LinkError(f"no TCP port is free on all of {', '.join(addresses)}", hint="end programs that hold many ports")
