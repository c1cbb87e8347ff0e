"""Boards that are none: agents of this host that have joined, each with a CPU quota and a network namespace of its own
whose link is shaped. What they are like is known, so a profile that is fitted to one can be judged."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network
from pathlib import Path

from edge_agent.board.client import Service
from edge_agent.board.join import join
from edge_agent.board.keystore import Keystore
from edgebed.limits.cgroups import MOUNT, Cgroup, version_of
from edgebed.limits.shell import run, which, write
from edgebed.limits.spec import Limits
from edgebed.limits.throttle import CGROUP_FILES, priority_values
from edgebed.wire.boards import Token
from orchestrator.boards.authority import Authority
from orchestrator.boards.registry import Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.fleet.network import netns
from orchestrator.fleet.network.subnets import free_subnets, host_networks
from tests.broker_address import free_port

POOL = IPv4Network("198.18.0.0/15")
"""Addresses for benchmarks (RFC 2544): no fleet takes them."""

READY_S = 300.0
RUN = "from edge_agent.entry import main; main()"


class ArtificialBoard:
    """Attributes:
    place: of the boards service.
    wire: the board's namespace and link.
    """

    def __init__(self, place: ServiceFolder, keys: Keystore, wire: netns.Wire, cgroup: Cgroup) -> None:
        self.place, self.wire, self._keys, self._cgroup = place, wire, keys, cgroup
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """`edgebed-agent run`; returns when it is connected."""
        inside = ["nsenter", f"--net={self.wire.path}", sys.executable, "-c", RUN, "run"]
        folder = self._keys.folder
        with folder.with_name(f"{folder.name}.log").open("ab") as log:
            before = self._sessions()
            self._process = subprocess.Popen(inside, env={**os.environ, "EDGEBED_BOARD": str(folder)}, stderr=log)
        for file in self._cgroup.procs_files():
            write(Path(file), str(self._process.pid))
        wait_for(lambda: bool(self._sessions() - before))

    def _sessions(self) -> set[str]:
        """Client ids of its connections."""
        live, board = self.place.live(), self._keys.service().board
        return {each.client for each in live.sessions if each.board == board} if live else set()

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()

    def inside(self, *command: str) -> str:
        """What a command says that is run in the board's namespace."""
        return run(["nsenter", f"--net={self.wire.path}", which(command[0]) or command[0], *command[1:]])

    def qdiscs(self) -> str:
        return self.inside("tc", "qdisc", "show")


@contextlib.contextmanager
def artificial_board(folder: Path, name: str, limits: Limits, *, limited: bool = True) -> Iterator[ArtificialBoard]:
    """A boards service under `folder`, which must be XDG_STATE_HOME, and a board that is connected to it.

    Args:
        limited: the board is already like `limits`; False: it is in a namespace of its own, without any limit.
    """
    with artificial_boards(folder, {name: limits}, limited=limited) as (board,):
        yield board


@contextlib.contextmanager
def artificial_boards(
    folder: Path, boards: Mapping[str, Limits], *, limited: bool = True
) -> Iterator[list[ArtificialBoard]]:
    """Several boards, by name, of one service."""
    subnets = free_subnets(POOL, 30, host_networks())  # others may run boards too, or a killed test has left some
    with contextlib.ExitStack() as stack:
        wires = [
            stack.enter_context(_wire(f"{os.getpid() % 2**15}-{index}", next(subnets))) for index in range(len(boards))
        ]
        place = stack.enter_context(_service(folder, wires[0].host_address))
        made = []
        for wire, (name, limits) in zip(wires, boards.items(), strict=True):
            if wire is not wires[0]:
                inside = ["nsenter", f"--net={wire.path}", which("ip") or "ip"]
                run([*inside, "route", "add", wires[0].host_address, "via", wire.host_address])
            cgroup = _cgroup(wire.netns)
            stack.callback(_remove, cgroup)
            board = ArtificialBoard(place, _joined(folder, place, name), wire, cgroup)
            if limited:
                cgroup.set(limits)
                netns.shape(wire, limits)
            stack.callback(board.end)
            board.start()
            made.append(board)
        yield made


@contextlib.contextmanager
def _wire(name: str, subnet: IPv4Network) -> Iterator[netns.Wire]:
    wire = netns.Wire(f"board-{name}", f"ebb{name}", subnet)
    netns.make(wire)
    try:
        yield wire
    finally:
        netns.remove(wire.netns)


def _cgroup(name: str) -> Cgroup:
    """Outside of the cgroup of the fleets, but with the same priority: a board shares its CPU with nobody."""
    version = version_of()
    roots = {c: MOUNT if version == 2 else MOUNT / c for c in CGROUP_FILES[version]}
    cgroup = Cgroup({c: root / "edgebed-test-boards" / name for c, root in roots.items()}, version)
    cgroup.make()
    for file, value in priority_values(version).items():
        write(cgroup.paths["cpu"].parent / file, value)
    return cgroup


def _remove(cgroup: Cgroup) -> None:
    cgroup.kill()
    wait_for(cgroup.remove)


@contextlib.contextmanager
def _service(folder: Path, host: str) -> Iterator[ServiceFolder]:
    place = ServiceFolder(folder / "edgebed" / "boards")
    command = [sys.executable, "-m", "orchestrator", "boards", "serve", "--host", host, "--listen", host]
    command += ["--port", str(free_port(host)), "--mqtt-port", str(free_port(host))]
    process = subprocess.Popen(
        command, env={**os.environ, "XDG_STATE_HOME": str(folder)}, stderr=(folder / "serve.log").open("wb")
    )
    try:
        wait_for(lambda: process.poll() is not None or ((place.folder / "live.json").exists() and bool(place.live())))
        yield place
    finally:
        process.terminate()
        process.wait()


def _joined(folder: Path, place: ServiceFolder, name: str) -> Keystore:
    """With one core, so that its agent has one thread: several would only spin under a quota below one CPU."""
    where = place.where()
    assert where is not None
    with Store(place).change() as registry:
        secret = registry.invite(name, "", 3600.0, False, time.time())
    keys = Keystore(folder / name)
    token = Token(Authority(place.folder).fingerprint(), secret, name)
    join(Service(where.hosts[0], where.port), str(token), keys, lambda line: None)
    with Store(place).change() as registry:
        board = registry.find(name)
        board.facts = {**board.facts, "cores": "1"}
    return keys


def wait_for(condition: Callable[[], bool], seconds: float = READY_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the artificial board is not ready"
        time.sleep(0.05)
