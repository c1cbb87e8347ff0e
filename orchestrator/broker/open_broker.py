"""Finds or starts the MQTT broker of a session.

In this order: the user's own (`OwnBroker`; through a relay where it speaks TLS, or devices are on other hosts), an
installed Mosquitto as a child process, a Mosquitto container, the embedded pure-Python broker. One that we start
listens on one free port of loopback and of every address the devices need, has a user with a generated password for the
orchestrator and for each device, keeps nothing on disk after its end, and ends with us, whatever ends us.

No password is shown to another user's program that takes the port of a broker that has ended. Nobody else can bind the
port while the run lasts, because sockets of ours are bound to it too: the embedded broker and the relay inherit them,
beside those of a Mosquitto ours do not listen (`_keep`). The orchestrator reaches a Mosquitto by a Unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import importlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgebed.errors import LinkError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.broker import relay
from orchestrator.broker.child import Child
from orchestrator.broker.mosquitto import socket_path
from orchestrator.broker.own import PASSWORD, USER, OwnBroker, is_this_host
from orchestrator.broker.runner import BACKLOG, Listen, Runner
from orchestrator.fleet.many_hosts import TlsListener
from orchestrator.fleet.ownership import OwnedFolder

KINDS = ("mosquitto", "container", "embedded")
"""Ways to run a broker of our own, best first. Each is a file of this package with a function `find`, which returns a
runner, or None where this machine has not what it needs."""

TLS_KINDS = {"mosquitto", "container"}
START_S = 20.0
LOOPBACK = "127.0.0.1"


class Broker:
    """A broker that is up.

    Attributes:
        kind: which one it is, for people.
        address: the orchestrator's.
        port: the devices'.
    """

    def __init__(
        self,
        kind: str,
        address: Address,
        port: int,
        users: Mapping[str, str],
        runner: Runner | None = None,
        restart: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.kind, self.address, self.port = kind, address, port
        self._users, self._runner, self._restart = users, runner, restart

    def access(self, host: str, device: str) -> Address:
        """How a device reaches the broker that calls this host `host` (a broker elsewhere has its own name). Each has a
        user of its own, unless a broker of the user's own has one for all."""
        ours = self._runner is not None or is_this_host(self.address.host)
        user, password = self.address.username, self.address.password
        if device in self._users:
            user, password = device, self._users[device]
        return Address(host if ours else self.address.host, self.port, user, password)

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
        addresses: host addresses at which devices reach us (`Backend.prepare`).
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
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(OwnedFolder("edgebed-broker-"))
        if own is not None and not own.secure and tls is None:
            address = own.address()
            await _log_in(address, own)
            yield Broker(own.name, address, address.port, own.passwords_of(devices))
            return
        if own is not None:
            async with _relayed(own, Listen(near, 0, {}, tls=tls), devices, folder, stack) as broker:
                yield broker
            return
        users = {name: secrets.token_urlsafe(18) for name in (ORCHESTRATOR, *devices)}
        wanted = Listen(near, 0, users, fleet, tls)
        kinds = [kind for kind in kinds if tls is None or kind in TLS_KINDS]
        begun = await _start_first(kinds, wanted, folder, stack)
        try:
            again = functools.partial(_begin, begun, folder)
            yield Broker(begun.runner.kind, begun.address, begun.listen.port, users, begun.runner, again)
        finally:
            await begun.runner.stop()


@contextlib.asynccontextmanager
async def _relayed(
    own: OwnBroker, where: Listen, devices: Sequence[str], folder: Path, stack: contextlib.ExitStack
) -> AsyncIterator[Broker]:
    """The user's own broker, which the devices and we reach at a relay on this host. Raises as `open_broker`."""
    far = own.address()
    users, ca = own.passwords_of(devices), own.authority() if own.secure else None
    if ca is not None:
        await relay.try_handshake(far, ca)
    runner = Child("relay", lambda listen, folder: relay.command(listen, far, ca))
    listen, _ = _hold(where, stack, inherits=True)
    near = msgspec.structs.replace(far, host=LOOPBACK, port=listen.port)
    try:
        await runner.start(listen, folder)
        await _log_in(near, own)
        yield Broker(own.name, near, listen.port, users, runner)
    finally:
        await runner.stop()


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


async def _start_first(kinds: Sequence[str], wanted: Listen, folder: Path, stack: contextlib.ExitStack) -> _Begun:
    """The first way to run a broker that this machine has and that works."""
    failures: list[str] = []
    for kind in kinds:
        runner = await asyncio.to_thread(_find, kind)
        if runner is None:
            continue
        listen, sockets = _hold(wanted, stack, inherits=runner.inherits)
        try:
            host, port = (LOOPBACK, listen.port) if runner.inherits else (str(socket_path(folder)), 0)
            begun = _Begun(runner, listen, sockets, Address(host, port, ORCHESTRATOR, listen.users[ORCHESTRATOR]))
            await _begin(begun, folder)
            return begun
        except LinkError as error:
            failures.append(f"{runner.kind}: {error}")
    raise LinkError(
        "no MQTT broker can be started: " + ("; ".join(dict.fromkeys(failures)) or "none is installed"),
        hint="apt install mosquitto, or pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]', "
        "or name your own with --broker mqtt://…",
    )


class _Begun(msgspec.Struct, frozen=True):
    """A broker, where it listens, sockets of ours that are bound to the same port, and our address of it."""

    runner: Runner
    listen: Listen
    sockets: Sequence[socket.socket]
    address: Address


async def _begin(begun: _Begun, folder: Path) -> None:
    """Start the broker, also again. Raises LinkError."""
    runner = begun.runner
    await runner.stop()
    try:
        _keep(begun.sockets, alone=False)
        await runner.start(begun.listen, folder)
        await _wait_ready(runner, begun.address)
        _keep(begun.sockets, alone=True)
    except BaseException:
        await runner.stop()
        raise


def _hold(wanted: Listen, stack: contextlib.ExitStack, *, inherits: bool) -> tuple[Listen, list[socket.socket]]:
    """Bind sockets to a free port, until the stack ends. The broker inherits them, or binds the same port itself."""
    addresses = [*wanted.addresses, *([] if wanted.tls is None else [wanted.tls.address])]
    sockets = [stack.enter_context(each) for each in _bound(addresses)]
    port = sockets[0].getsockname()[1]
    if not inherits:
        return msgspec.structs.replace(wanted, port=port), sockets
    for each in sockets:
        each.listen(BACKLOG)
    return msgspec.structs.replace(wanted, port=port, sockets=[each.fileno() for each in sockets]), sockets


def _keep(sockets: Sequence[socket.socket], *, alone: bool) -> None:
    """Whether nobody else can bind the port, whatever becomes of the broker; what is bound already stays. A Mosquitto
    binds it although it is ours: it sets SO_REUSEADDR, and our sockets have it too and do not listen."""
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not alone)


def _find(kind: str) -> Runner | None:
    runner: Runner | None = importlib.import_module(f"orchestrator.broker.{kind}").find()
    return runner


async def _wait_ready(runner: Runner, address: Address) -> None:
    """Until it lets us in. A Mosquitto does so when it listens on all its addresses, for it ends where one is taken."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_S
    while not await _lets_us_in(address):
        if why := runner.failure():
            raise LinkError(f"it ended at once: {why}")
        if loop.time() > deadline:
            raise LinkError(f"it did not listen on {address} within {START_S:.0f} s")
        await asyncio.sleep(0.02)


async def _lets_us_in(address: Address) -> bool:
    try:
        async with asyncio.timeout(2.0):
            await _try_login(address)
    except (LinkError, TimeoutError):
        return False
    return True


def _bound(addresses: list[str]) -> list[socket.socket]:
    """A socket for each address, all on one free port. Raises LinkError where one of them is not this host's."""
    for _ in range(50):
        with contextlib.ExitStack() as stack:
            sockets, port = list[socket.socket](), 0
            try:
                for address in addresses:
                    family = socket.AF_INET6 if ":" in address else socket.AF_INET
                    sockets.append(stack.enter_context(socket.socket(family, socket.SOCK_STREAM)))
                    sockets[-1].bind((address, port))
                    port = sockets[-1].getsockname()[1]
            except OSError as error:
                if port == 0 or error.errno == errno.EADDRNOTAVAIL:
                    raise LinkError(
                        f"a broker cannot listen on {address}: {error}", hint="is this an address of this host?"
                    ) from None
                continue
            stack.pop_all()
            return sockets
    raise LinkError(f"no TCP port is free on all of {', '.join(addresses)}", hint="end programs that hold many ports")
