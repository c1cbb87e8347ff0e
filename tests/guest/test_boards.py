"""Boards and their service as systemd's units, and boards that limit themselves by cgroups of version 2 and netem."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.board import join
from edge_agent.board.keystore import Keystore
from edgebed.limits.cgroups import MOUNT
from edgebed.limits.spec import Limits
from edgebed.service_unit import ServiceUnit
from edgebed.wire.boards import Token
from orchestrator.boards.authority import Authority
from orchestrator.boards.place import Place
from orchestrator.boards.registry import Store
from orchestrator.broker.open_broker import free_port
from orchestrator.cli import boards
from orchestrator.fleet.profile import load_fleet
from orchestrator.runs import session
from tests.artificial_board import artificial_board
from tests.guest._devices import connect_s, quota_in_force, until

pytestmark = [pytest.mark.guest, pytest.mark.mosquitto]

PATIENCE_S = 600.0
FREE = Limits(1.0, 1, 1, 1)
PROFILE = "{cpus: 0.1234, uplink_mbit_s: 12, downlink_mbit_s: 25, memory_mib: 1024, latency_ms: 40}"


class Machine:
    """A service and a board of it, each a unit of this machine."""

    def __init__(self, folder: Path) -> None:
        self.place, self.keys = Place(folder / "edgebed" / "boards"), Keystore(folder / "board")
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder), "EDGEBED_BOARD": str(self.keys.folder)}
        self.served, self.joined = boards.unit([]), join.unit(self.keys.folder)

    def command(self, module: str, *arguments: str) -> None:
        subprocess.run([sys.executable, "-m", module, *arguments], env=self.environment, check=True, timeout=PATIENCE_S)

    def serve(self) -> None:
        ports = [str(free_port(["127.0.0.1"])) for _ in range(2)]
        here = ["--host", "127.0.0.1", "--listen", "127.0.0.1", "--port", ports[0], "--mqtt-port", ports[1]]
        self.command("orchestrator", "boards", "serve", "--service", *here)
        until(self.serves, PATIENCE_S)

    def serves(self) -> bool:
        live = self.place.live()
        return live is not None and live.pid == main_pid(self.served)

    def join(self) -> None:
        with Store(self.place).change() as registry:
            secret = registry.invite("pi", "", 3600.0, False, time.time())
        where = self.place.where()
        assert where is not None
        token = Token(Authority(self.place.folder).fingerprint(), secret, "pi")
        self.command("edge_agent.entry", "join", where.address, str(token), "--service")
        until(self.connected, PATIENCE_S)

    def connected(self) -> bool:
        live = self.place.live()
        return live is not None and len(live.sessions) == 1


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Machine(tmp_path)
    units = made.served, made.joined
    assert not any(unit.path.exists() for unit in units), "this machine has units of its own"
    yield made
    for unit in units:
        unit.remove()


def test_the_units_of_service_and_board_come_back_by_themselves(machine: Machine) -> None:
    machine.serve()
    machine.join()
    for unit in (machine.served, machine.joined):
        assert (systemctl("is-enabled", unit), systemctl("is-active", unit)) == ("enabled", "active")
    for unit in (machine.joined, machine.served):
        kill(unit)
        until(lambda: machine.serves() and machine.connected(), PATIENCE_S)
    systemctl("restart", machine.served)
    until(lambda: machine.serves() and machine.connected(), PATIENCE_S)
    machine.command("edge_agent.entry", "leave")
    assert systemctl("is-active", machine.joined) == "inactive"
    assert not machine.joined.path.exists()
    assert not machine.keys.folder.exists()
    until(lambda: not machine.connected(), PATIENCE_S)


async def test_a_board_limits_itself_and_nothing_stays_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(session, "JOIN_TIMEOUT_S", PATIENCE_S)
    (tmp_path / "far.yaml").write_text(PROFILE)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("name: limited\ndevices: [{board: pi, profile: far, limit: true}]\n")
    with artificial_board(tmp_path, "pi", FREE, limited=False) as board:
        plain = board.qdiscs()
        async with session.standing_fleet(load_fleet(fleet), dilation="off") as controller:
            held = await controller.fleet.held("pi")
            assert (held.uplink_bit_s, held.downlink_bit_s) == (12_000_000, 25_000_000)
            assert (held.uplink_latency_ms, held.downlink_latency_ms) == (40, 40)
            (agent,) = pids_in(MOUNT / "edgebed" / "board")
            assert quota_in_force(agent) == pytest.approx(0.1234, rel=0.01)
            where = board.place.where()
            assert where is not None
            assert 0.08 <= connect_s(agent, where.listen, where.mqtt_port) < 1
            board.end(signal.SIGKILL)
            assert "netem" in board.qdiscs()
        board.start()
        assert board.qdiscs() == plain
        assert not pids_in(MOUNT / "edgebed" / "board")


def pids_in(cgroup: Path) -> list[int]:
    procs = cgroup / "cgroup.procs"
    return [int(line) for line in procs.read_text().split()] if procs.exists() else []


def kill(unit: ServiceUnit) -> None:
    """Returns when systemd has started it again."""
    before = main_pid(unit)
    os.kill(before, signal.SIGKILL)
    until(lambda: main_pid(unit) not in (0, before), PATIENCE_S)


def main_pid(unit: ServiceUnit) -> int:
    """0 where it does not run."""
    return int(systemctl("show", unit, "--property=MainPID", "--value"))


def systemctl(order: str, unit: ServiceUnit, *options: str) -> str:
    done = subprocess.run(["systemctl", order, unit.name, *options], capture_output=True, text=True, check=False)
    return done.stdout.strip()
