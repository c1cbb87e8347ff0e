"""The boards service for a run: the one that stands, else one that is started for the run and ended after it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from edgebed.errors import FleetError
from edgebed.link.mqtt import Address
from orchestrator.boards.place import Live, Place, Where
from orchestrator.broker.child import begin, end
from orchestrator.fleet.base import Access
from orchestrator.fleet.ownership import OwnedFolder

START_S = 40.0
START = "edgebed boards serve"


class BoardsBroker:
    """The broker of the boards service, as the orchestrator reaches it on loopback. `started`: for this run."""

    kind = "boards service"

    def __init__(self, live: Live, where: Where, started: bool) -> None:
        self._live, self.where, self.started = live, where, started

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._live.broker_port, self._live.username, self._live.password)

    def access(self, host: str, device: str = "") -> Access:
        """The orchestrator's; boards have certificates."""
        address = self.address
        return Access(address.host, address.port, address.username, address.password)

    def pid(self) -> int | None:
        """Not known: it is the child of another process."""
        return None

    def client(self, what: str) -> str:
        """A client id that nobody can guess, and so take its place."""
        return f"{what}-{secrets.token_hex(16)}"


@contextlib.asynccontextmanager
async def boards_broker(place: Place, notify: Callable[[str], None]) -> AsyncIterator[BoardsBroker]:
    """The broker of the service. Raises FleetError where the service cannot be started."""
    where = place.where()
    if where is None:
        raise FleetError("no board has joined: the boards service never ran here", hint=f"{START}, then invite boards")
    async with contextlib.AsyncExitStack() as stack:
        started = not place.running()
        ended: Callable[[], bool] = lambda: False  # noqa: E731
        said: Callable[[], str] = str
        if started:
            notify("starting the boards service for this run")
            folder = stack.enter_context(OwnedFolder("edgebed-boards-"))
            process = await stack.enter_async_context(_service(where, folder))
            ended, said = (lambda: process.returncode is not None), lambda: _last_words(folder / "log")
        live = await _live(place, ended, said)
        yield BoardsBroker(live, place.where() or where, started)


async def _live(place: Place, ended: Callable[[], bool], said: Callable[[], str]) -> Live:
    deadline = time.monotonic() + START_S
    while (live := place.live()) is None:
        if ended() or time.monotonic() > deadline:
            why = said() or f"it was not ready within {START_S:.0f} s"
            raise FleetError(f"the boards service does not run: {why}", hint=f"see what `{START}` says")
        await asyncio.sleep(0.05)
    return live


@contextlib.asynccontextmanager
async def _service(where: Where, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    options = ["--listen", where.listen, "--port", str(where.port), "--mqtt-port", str(where.mqtt_port)]
    hosts = [text for host in where.hosts for text in ("--host", host)]
    command = [sys.executable, "-m", "orchestrator", "boards", "serve", *options, *hosts]
    with (folder / "log").open("wb") as log:
        process = await begin(command, "", stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        await end(process)


def _last_words(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return " ".join(line.strip() for line in lines[-2:] if line.strip())
