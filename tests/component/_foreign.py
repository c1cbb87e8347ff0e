"""A broker that somebody else runs: over TLS, with the rights that `edgebed broker acl` prints."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from typer.testing import CliRunner

from orchestrator.boards.authority import Authority
from orchestrator.broker import mosquitto
from orchestrator.broker.child import Child
from orchestrator.broker.own import OwnBroker
from orchestrator.broker.runner import Listen
from orchestrator.cli import build
from tests.broker_address import free_port

HOST = "127.0.0.1"


class Foreign:
    """A Mosquitto at `HOST` with these users and their passwords."""

    def __init__(self, folder: Path, users: Mapping[str, str]) -> None:
        self.folder, self.port, self.users = folder, free_port(), dict(users)
        self.authority = Authority(folder)
        self._child = Child("mosquitto", self._prepare)

    def _prepare(self, listen: Listen, folder: Path) -> tuple[list[str], bytes]:
        key, certificate = self.authority.server_pair([HOST, "localhost"], dt.datetime.now(dt.UTC))
        for name, data in {"key": key, "certificate": certificate, "ca": self.authority.pem}.items():
            (folder / f"{name}.pem").write_bytes(data)
        config = mosquitto.write_files(listen, folder)
        (folder / "acl").write_text(CliRunner().invoke(build(), ["broker", "acl"]).stdout)
        tls = [f"certfile {folder}/certificate.pem", f"keyfile {folder}/key.pem"]
        config.write_text(config.read_text() + "\n".join([*tls, ""]))
        program = mosquitto.binary()
        assert program is not None
        return [program, "-c", str(config)], b""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Foreign]:
        await self._child.start(Listen([HOST], self.port, self.users), self.folder)
        try:
            await self._listens()
            yield self
        finally:
            await self._child.stop()

    async def _listens(self) -> None:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(HOST, self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    def own(self, **changed: str) -> OwnBroker:
        """What its user says of it."""
        users = self.folder / "users"
        users.touch(0o600)
        users.write_text("".join(f"{user}:{password}\n" for user, password in self.users.items()))
        wanted = {"url": f"mqtts://{HOST}:{self.port}", "ca": str(self.folder / "ca.pem"), "users": str(users)}
        return OwnBroker(**{**wanted, **changed})
