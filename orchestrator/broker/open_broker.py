"""Finds or starts the MQTT broker of a session.

In this order: the user's own (`OwnBroker`; through a relay where it speaks TLS, or devices are on other hosts), an
installed Mosquitto as a child process, a Mosquitto container, the embedded pure-Python broker. One that we start
listens on one free port of loopback and of every address the devices need, has a user with a generated password for the
orchestrator and for each device, keeps nothing on disk after its end, and ends with us, whatever ends us.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgebed.errors import LinkError
from edgebed.link.mqtt import Address, MqttLink
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.broker import relay
from orchestrator.broker.child import Child
from orchestrator.broker.own import PASSWORD, USER, OwnBroker, is_this_host
from orchestrator.broker.seams import Listen, Runner
from orchestrator.fleet.base import Access, TlsListener
from orchestrator.fleet.ownership import OwnedFolder

KINDS = ("mosquitto", "container", "embedded")
"""Ways to run a broker of our own, best first. Each is a file of this package with a function `find`, which returns a
runner, or None where this machine has not what it needs."""

TLS_KINDS = {"mosquitto", "container"}
START_S = 20.0
LOOPBACK = "127.0.0.1"


class Broker:
    """A broker that is up. `kind` says which one it is, for people."""

    def __init__(
        self,
        kind: str,
        address: Address,
        users: Mapping[str, str],
        runner: Runner | None = None,
        restart: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.kind, self._address, self._users, self._runner, self._restart = kind, address, users, runner, restart

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
        ours = self._runner is not None or is_this_host(self._address.host)
        user, password = (device, self._users[device]) if device in self._users else (self.username, self.password)
        return Access(host if ours else self._address.host, self.port, user, password)

    def pid(self) -> int | None:
        """Its process; None if the broker is not ours, or not on this host."""
        return None if self._runner is None else self._runner.pid()

    async def restart(self) -> None:
        """Stop it and start it again on the same port; all it held is lost. For tests of faults."""
        if self._restart is None:
            raise LinkError("this broker is not ours to restart", hint="leave --broker away")
        await self._restart()


@contextlib.asynccontextmanager
async def open_broker(
    addresses: Sequence[str],
    own: OwnBroker | None = None,
    *,
    kinds: Sequence[str] = KINDS,
    fleet: str = "",
    devices: Sequence[str] = (),
    tls: TlsListener | None = None,
) -> AsyncIterator[Broker]:
    """A broker that listens on loopback and `addresses`, or the user's own; stopped and removed at the end.

    Args:
        addresses: host addresses at which devices reach us (`Fleet.prepare`).
        own: the user's own broker.
        kinds: what may be started, best first.
        fleet, devices: each device gets a user of its own, who may use the topics of this device in this fleet only. A
            broker of the user's own keeps its own users.
        tls: where it also listens for agents on other hosts; only a Mosquitto does, and the relay to the user's own.

    Raises:
        UsageError: the user's own broker cannot be used so.
        LinkError: no broker can be reached or started; says why, and what to do.
    """
    near = list(dict.fromkeys([LOOPBACK, *addresses]))
    with OwnedFolder("edgebed-broker-") as folder:
        if own is not None and not own.secure and tls is None:
            address = own.address()
            await _log_in(address, own)
            yield Broker(own.name, address, own.passwords_of(devices))
            return
        if own is not None:
            async with _relayed(own, Listen(near, 0, {}, tls=tls), devices, folder) as broker:
                yield broker
            return
        users = {name: secrets.token_urlsafe(18) for name in (ORCHESTRATOR, *devices)}
        wanted = Listen(near, 0, users, fleet, tls)
        runner, listen = await _start_first(
            [kind for kind in kinds if tls is None or kind in TLS_KINDS], wanted, folder
        )
        try:
            again = functools.partial(_begin_again, runner, listen, folder)
            yield Broker(runner.kind, _own_address(listen, LOOPBACK), users, runner, again)
        finally:
            await runner.stop()


@contextlib.asynccontextmanager
async def _relayed(own: OwnBroker, where: Listen, devices: Sequence[str], folder: Path) -> AsyncIterator[Broker]:
    """The user's own broker, which the devices reach at a relay on this host. Raises as `open_broker`."""
    far = own.address()
    users, ca = own.passwords_of(devices), own.authority() if own.secure else None
    if ca is not None:
        await relay.try_handshake(far, ca)
    runner = Child("relay", lambda listen, folder: relay.command(listen, far, ca))
    listen = msgspec.structs.replace(where, port=free_port(_all_addresses(where)))
    try:
        await runner.start(listen, folder)
        near = [msgspec.structs.replace(far, host=host, port=listen.port) for host in listen.addresses]
        await _wait_ready(runner, near, _listens)
        await _log_in(near[0], own)
        yield Broker(own.name, near[0], users, runner)
    finally:
        await runner.stop()


async def _begin_again(runner: Runner, listen: Listen, folder: Path) -> None:
    await runner.stop()
    await runner.start(listen, folder)
    await _wait_ready(runner, _own_addresses(listen), _lets_us_in)


async def _log_in(address: Address, own: OwnBroker) -> None:
    """Raises LinkError, where the user's own broker does not let us in at this address."""
    try:
        await _try_login(address)
    except LinkError as error:
        users = f"the line of {ORCHESTRATOR} in {own.users}" if own.users else f"{USER} and {PASSWORD}"
        raise LinkError(f"{own.name}: {error}", hint=f"check that the broker runs, and {users}") from None


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
            listen = msgspec.structs.replace(wanted, port=free_port(_all_addresses(wanted)))
            try:
                await runner.start(listen, folder)
                await _wait_ready(runner, _own_addresses(listen), _lets_us_in)
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


def _all_addresses(listen: Listen) -> list[str]:
    return [*listen.addresses, *([] if listen.tls is None else [listen.tls.address])]


def _own_address(listen: Listen, host: str) -> Address:
    return Address(host, listen.port, ORCHESTRATOR, listen.users[ORCHESTRATOR])


def _own_addresses(listen: Listen) -> list[Address]:
    return [_own_address(listen, host) for host in listen.addresses]


def _find(kind: str) -> Runner | None:
    runner: Runner | None = importlib.import_module(f"orchestrator.broker.{kind}").find()
    return runner


async def _listens(address: Address) -> bool:
    try:
        _, writer = await asyncio.open_connection(address.host, address.port)
    except OSError:
        return False
    writer.close()
    return True


async def _wait_ready(runner: Runner, addresses: list[Address], ready: Callable[[Address], Awaitable[bool]]) -> None:
    """Until this holds of every address."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_S
    for address in addresses:
        while not await ready(address):
            if why := runner.failure():
                raise LinkError(f"it ended at once: {why}")
            if loop.time() > deadline:
                raise LinkError(f"it did not listen on {address} within {START_S:.0f} s")
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
