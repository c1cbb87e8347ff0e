"""The boards service for a run: the one that stands, else one that is started for the run and ended after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from edgebed.errors import FileError, FleetError, LinkError
from edgebed.link.connection import Address
from edgebed.module_process import module_command
from edgebed.timeouts import end
from orchestrator.boards.service_folder import Live, ServiceFolder, Where
from orchestrator.broker.child import END_S, begin
from orchestrator.fleet.ownership import OwnedFolder

START_S = 40.0
LOOK_S = 1.0
AWAY_S = 8.0
"""systemd starts a service that has ended again after 5 s. A device is lost after 30 s without progress."""

START = "edgebed boards serve"


class BoardsBroker:
    """The broker of the boards service, as the orchestrator reaches it.

    Attributes:
        address: when the run began; `find` tells where it is now.
        started: for this run.
    """

    kind = "boards service"

    def __init__(self, place: ServiceFolder, live: Live, where: Where, started: bool) -> None:
        self._place, self.address, self.where, self.started = place, live.broker, where, started

    def find(self) -> Address:
        """Another one, with another password, after each start of the service. Raises LinkError where none runs."""
        try:
            live = self._place.live()
        except (FileError, OSError) as error:
            raise LinkError(f"where the boards' broker is cannot be read: {error}", hint=START) from None
        if live is None:
            raise LinkError("the boards service does not run", hint=START)
        return live.broker

    def access(self, host: str, device: str) -> Address:
        """Never called: boards have certificates."""
        raise LookupError(device)

    def pid(self) -> int | None:
        """Not known: it is the child of another process."""
        return None

    def client(self, what: str) -> str:
        """A client id that nobody can guess, and so take its place."""
        return f"{what}-{secrets.token_hex(16)}"


@contextlib.asynccontextmanager
async def boards_broker(
    place: ServiceFolder, notify: Callable[[str], None], away_s: float = AWAY_S
) -> AsyncIterator[BoardsBroker]:
    """The broker of the service. While it is used, a service that has gone is started here after `away_s`. Raises
    FleetError where the service cannot be started."""
    where = place.where()
    if where is None:
        raise FleetError("no board has joined: the boards service never ran here", hint=f"{START}, then invite boards")
    with OwnedFolder("edgebed-boards-") as folder:
        ours = _OwnService(place, where, folder)
        keeping: asyncio.Task[None] | None = None
        try:
            if started := not place.running():
                notify("starting the boards service for this run")
                await ours.start()
            live = await _live(place, ours)
            keeping = asyncio.create_task(_keep(place, ours, notify, away_s))
            yield BoardsBroker(place, live, place.where() or where, started)
        finally:
            if keeping is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            await ours.end()


class _OwnService:
    """A service that is started for a run. Its output goes to `log` in the folder."""

    def __init__(self, place: ServiceFolder, where: Where, folder: Path) -> None:
        self._place, self._where, self._log = place, where, folder / "log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Raises LinkError."""
        where = self._place.where() or self._where
        options = ["--listen", where.listen, "--port", str(where.port), "--mqtt-port", str(where.mqtt_port)]
        hosts = [text for host in where.hosts if where.asked for text in ("--host", host)]
        command = module_command("orchestrator", "boards", "serve", *options, *hosts)
        with self._log.open("wb") as log:
            self._process = await begin(
                command, env=os.environ, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )

    def lives(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines() if self._log.exists() else []
        return " ".join(line.strip() for line in lines[-2:] if line.strip())

    async def end(self) -> None:
        await end(self._process, END_S)


async def _live(place: ServiceFolder, ours: _OwnService) -> Live:
    deadline = time.monotonic() + START_S
    while (live := place.live()) is None:
        failed = not (ours.lives() or place.running())  # it may also be that of another run, which was quicker
        if failed or time.monotonic() > deadline:
            why = ours.last_words() or f"it was not ready within {START_S:.0f} s"
            raise FleetError(f"the boards service does not run: {why}", hint=f"see what `{START}` says")
        await asyncio.sleep(0.05)
    return live


async def _keep(place: ServiceFolder, ours: _OwnService, notify: Callable[[str], None], away_s: float) -> None:
    """Start a service when there was none for `away_s`: that of another run has ended with it, or it was killed. One
    that is restarted by a person or by systemd is there earlier."""
    seen = time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        if place.running() or ours.lives():
            seen = time.monotonic()
        elif time.monotonic() - seen > away_s:
            notify("the boards service is gone: it is started for this run")
            await ours.start()
