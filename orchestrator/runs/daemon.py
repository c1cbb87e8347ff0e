"""A daemon that keeps a standing fleet, and tells its state on a socket in the state folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgebed.errors import EdgebedError, FileError, FleetError
from edgebed.limits.shell import last_line
from edgebed.module_process import module_command
from edgebed.state import state_folder
from edgebed.wire.reading import BoardReading
from orchestrator.boards.members import with_facts
from orchestrator.broker.own import OwnBroker
from orchestrator.experiment import Grain
from orchestrator.files.shared_lock import try_lock
from orchestrator.fleet.base import Held
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.spec.profile import FleetSpec, Limits, load_fleet
from orchestrator.records.timeline.board import SENSORS
from orchestrator.runs.session import standing_fleet

ANSWER_S = 30.0
END_S = 60.0


class DeviceInFleet(msgspec.Struct, frozen=True):
    """One device: limits requested (after dilation), limits set and use; `held` is None while it is away. Of a real
    board also what it said of itself, and what its sensors read last."""

    name: str
    profile: str
    requested: Limits
    held: Held | None
    error: str = ""
    facts: dict[str, str] = {}
    reading: BoardReading | None = None


class FleetState(msgspec.Struct, frozen=True):
    """What `edgebed fleet ps` shows. `broker`: its address, without a user or a password."""

    fleet: str
    fleet_id: str
    backend: str
    enforcement: str
    dilation: float
    broker: str
    devices: tuple[DeviceInFleet, ...]
    grain: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """The options of `edgebed fleet up`."""

    backend: str | None
    dilation: str
    broker: OwnBroker | None
    grain: Grain = "pacing"


class FleetFolder:
    """The folder of one standing fleet: lock, socket, log. Its daemon holds the lock as long as it lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock, self.socket, self.log = folder / "lock", folder / "socket", folder / "log"

    @classmethod
    def of(cls, spec: FleetSpec) -> FleetFolder:
        folder = state_folder() / "fleets" / spec.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(folder)

    def alive(self) -> bool:
        """Whether a daemon lives: the kernel releases its lock when it dies."""
        with self.lock.open("a") as file:
            return not try_lock(file)

    def ready(self) -> bool:
        return self.socket.exists()

    def progress(self) -> str:
        """The last line of the log."""
        return last_line(self.log)

    def failure(self) -> str:
        """Message and hint of the error that ended a daemon, on two lines; else the last line of its log."""
        with contextlib.suppress(OSError):
            return (self.folder / "failure").read_text("utf-8")
        return self.progress()

    @contextlib.contextmanager
    def nearby(self) -> Iterator[Path]:
        """The folder by a short name, for a socket: the path of one has at most 107 bytes."""
        handle = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            yield Path(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)

    def ask(self) -> FleetState:
        """The state of the fleet now. Raises FleetError when the daemon does not answer."""
        try:
            with self.nearby() as here, socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(str(here / self.socket.name))
                with connection.makefile("rb") as stream:
                    return msgspec.json.decode(stream.read(), type=FleetState)
        except (OSError, msgspec.DecodeError) as error:
            raise FleetError(f"the fleet's daemon does not answer: {error}", hint=f"see {self.log}") from None


def spawn(spec: FleetSpec, place: FleetFolder, wanted: Wanted) -> int:
    """Start the daemon, detached from this terminal; returns its process id."""
    for name in ("socket", "failure"):
        (place.folder / name).unlink(missing_ok=True)
    lock = place.lock.open("a")
    if not try_lock(lock):
        raise FleetError(f"the fleet {spec.name} is being started by another process", hint="wait for it")
    with lock, place.log.open("wb") as log:
        arguments = [str(spec.path), str(place.folder), msgspec.json.encode(wanted).decode(), str(lock.fileno())]
        process = subprocess.Popen(
            module_command("orchestrator.runs.daemon", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock.fileno()],  # so the lock passes to the daemon without a gap
            start_new_session=True,
        )
    (place.folder / "pid").write_text(str(process.pid))
    return process.pid


def end(place: FleetFolder) -> None:
    """End a daemon and wait until it has removed everything. Raises FleetError when it does not."""
    pid = int((place.folder / "pid").read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while place.alive():
        if time.monotonic() > deadline:
            raise FleetError(f"the fleet's daemon, process {pid}, does not end", hint=f"kill -9 {pid}; see {place.log}")
        time.sleep(0.05)


# ---- the daemon's own process ----------------------------------------------------------------------------------------


async def hold(spec: FleetSpec, place: FleetFolder, wanted: Wanted) -> None:
    """Keep the fleet until SIGTERM, SIGINT or SIGHUP. Further signals do not disturb the clean-up."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    task = asyncio.create_task(_stand(spec, place, wanted))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if stop.is_set():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _stand(spec: FleetSpec, place: FleetFolder, wanted: Wanted) -> None:
    def notify(line: str) -> None:
        print(line, flush=True)

    fleet = standing_fleet(
        spec,
        backend=wanted.backend,
        dilation=wanted.dilation,
        own_broker=wanted.broker,
        heartbeat_s=30.0,
        grain=wanted.grain,
        notify=notify,
    )
    async with fleet as controller:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(msgspec.json.encode(await state_of(controller)))
                await writer.drain()
            writer.close()

        # Made under another name and then renamed, so that the socket can be connected to as soon as it exists.
        hidden = place.folder / "socket.part"
        hidden.unlink(missing_ok=True)
        with place.nearby() as here:
            server = await asyncio.start_unix_server(answer, here / hidden.name)
        hidden.chmod(0o600)
        hidden.rename(place.socket)
        try:
            async with server:
                await server.serve_forever()
        finally:
            place.socket.unlink(missing_ok=True)


async def state_of(controller: FleetController) -> FleetState:
    """The state of the fleet, and what its devices use, now."""
    return FleetState(
        fleet=controller.spec.name,
        fleet_id=controller.fleet_id,
        backend=controller.backend_name,
        enforcement=str(controller.enforcement),
        dilation=controller.dilation,
        broker=str(controller.broker.address),
        devices=tuple([await _device_state(controller, name) for name in controller.names]),
        grain=controller.grain,
    )


async def _device_state(controller: FleetController, name: str) -> DeviceInFleet:
    profile, limits, member = (
        controller.profiles[name].name,
        controller.limits[name],
        controller.membership.devices[name],
    )
    facts = member.presence.host if member.presence is not None else {}
    try:
        held, error = await controller.backend.held(name), ""
    except EdgebedError as problem:
        held, error = None, str(problem)
    board = facts if SENSORS in facts else {}
    return DeviceInFleet(name, profile, limits, held, error, board, member.reading)


def main() -> None:
    """`python -m orchestrator.runs.daemon FLEET.yaml FOLDER WANTED LOCK_FD`, started by `edgebed fleet up`."""
    path, folder, wanted, _lock = sys.argv[1:]
    place = FleetFolder(Path(folder))
    try:
        asyncio.run(hold(with_facts(load_fleet(Path(path))), place, msgspec.json.decode(wanted, type=Wanted)))
    except (EdgebedError, OSError) as error:
        told = error if isinstance(error, EdgebedError) else FileError.of(error)
        (place.folder / "failure").write_text(f"{told}\n{told.hint}")
        sys.exit(told.exit_code)


if __name__ == "__main__":
    main()
