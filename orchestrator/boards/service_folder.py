"""The folder of the boards service, which only its owner may enter, and what its files are called."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from edgebed.errors import FileError, FleetError
from edgebed.guarded import Guarded
from edgebed.link.connection import Address
from edgebed.state import state_folder
from orchestrator.files.output import keep
from orchestrator.files.shared_lock import try_lock
from orchestrator.fleet.ownership import Owner, is_dead

T = TypeVar("T")


class Where(msgspec.Struct, frozen=True):
    """How boards reach the service: host names and addresses, the best one first, and ports. `listen`: the address on
    which it listens. `asked`: the hosts were given; else they are found, and follow this host's address."""

    hosts: tuple[str, ...]
    port: int
    mqtt_port: int
    listen: str = "0.0.0.0"
    asked: bool = True

    @property
    def address(self) -> str:
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class BoardConnection(msgspec.Struct, frozen=True):
    """One MQTT connection of a board. `since`: seconds since the epoch."""

    board: str
    client: str
    address: str
    since: float


class Live(Guarded, frozen=True):
    """What the running service tells others on this host."""

    owner: Owner  # the service's process. What a killed one left behind says nothing about the next one
    broker: Address  # for the orchestrator
    applied: int  # version of the registry that the broker enforces: sessions of boards revoked in it are closed
    sessions: tuple[BoardConnection, ...] = ()
    fleets: Mapping[str, str] = msgspec.field(default_factory=dict)  # whose topics a board may use, by the board's id

    @property
    def pid(self) -> int:
        return self.owner.pid


class ServiceFolder(msgspec.Struct, frozen=True):
    """The folder, its files, and whether a service runs on it."""

    folder: Path

    @classmethod
    def of_user(cls) -> ServiceFolder:
        """`edgebed/boards` in the user's state folder, made if it is not there. Raises FileError."""
        place = cls(state_folder() / "boards")
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
            place.folder.chmod(0o700)
            place.shards.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError.of(error, place.folder) from None
        return place

    @property
    def shards(self) -> Path:
        """Shards by content: `<SHA-256>.safetensors`."""
        return self.folder / "shards"

    @property
    def registry(self) -> Path:
        return self.folder / "registry.json"

    @property
    def audit(self) -> Path:
        return self.folder / "audit.jsonl"

    # ---- the running service ----

    def hold(self) -> int:
        """Make this process the service of the folder, until the descriptor is closed. Raises FleetError."""
        deadline = time.monotonic() + 1.0  # `running` of another process has the lock for a moment
        while (file := self._lock(fcntl.LOCK_EX)) is None:
            if time.monotonic() > deadline:
                raise FleetError(
                    "the boards service is already running",
                    hint="edgebed boards ls shows its boards. A run starts one where none stands, and ends it after",
                )
            time.sleep(0.05)
        (self.folder / "live.json").unlink(missing_ok=True)  # of one that was killed
        return file

    def running(self) -> bool:
        file = self._lock(fcntl.LOCK_SH)
        if file is not None:
            os.close(file)
        return file is None

    def _lock(self, kind: int) -> int | None:
        file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock(file, kind):
            return file
        os.close(file)
        return None

    def live(self) -> Live | None:
        """None where no service runs, or it has not begun. Raises FileError."""
        live = _read(self.folder / "live.json", Live) if self.running() else None
        return None if live is None or is_dead(live.owner) else live

    def tell_live(self, live: Live) -> None:
        """Not synced to disk: it is of no use after a loss of power."""
        path = self.folder / "live.json"
        part = path.with_suffix(".part")
        try:
            part.touch(0o600)
            part.write_bytes(msgspec.json.encode(live))
            part.replace(path)
        except OSError as error:
            raise FileError.of(error, path) from None

    def where(self) -> Where | None:
        """As the service told it last; None where it never ran."""
        return _read(self.folder / "where.json", Where)

    def tell_where(self, where: Where) -> None:
        write_secret(self.folder / "where.json", msgspec.json.encode(where))


def write_secret(path: Path, data: bytes) -> None:
    """Atomically, and readable by its owner only: the folder is 0700, and the file 0600. Raises FileError."""
    keep(path, data, 0o600)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise FileError(
            f"{path} cannot be used: {error}", hint="remove it and start `edgebed boards serve` again"
        ) from None
