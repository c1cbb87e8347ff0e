"""The boards service and a board as units of systemd: they start again by themselves, work, and leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.board import join
from edge_agent.board.keystore import Keystore
from edgebed.service_unit import ServiceUnit
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.cli import boards
from orchestrator.experiment import load
from orchestrator.records.reader import read
from orchestrator.records.types import DeviceOut, RoundFinished
from orchestrator.runs import session
from orchestrator.runs.request import Request, Watch
from tests.broker_address import free_port
from tests.guest._devices import until

pytestmark = [pytest.mark.guest, pytest.mark.mosquitto]

PATIENCE_S = 600.0
SERVICE, AGENT = "orchestrator", "edge_agent.entry"
EXPERIMENT = """
name: units
fleet: fleet.yaml
model: {name: resnet-tiny}
methods: [{name: fedavg}]
training: {rounds: 2, max_batches: 1, batch_size: 16, heartbeat_s: 10, liveness_s: 120, seed: 2}
"""


class Machine:
    """A service and a board of it, each a unit of this machine. `folder` is XDG_STATE_HOME."""

    def __init__(self, folder: Path) -> None:
        self.place, self.keys = ServiceFolder.of_user(), Keystore(folder / "board")
        self.environment = {**os.environ, "EDGEBED_BOARD": str(self.keys.folder)}
        self.served, self.joined = boards.unit([]), join.unit(self.keys.folder)

    def command(self, module: str, *arguments: str) -> str:
        """What it prints."""
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(
            command, env=self.environment, check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def serve(self) -> None:
        port, mqtt_port = (str(free_port()) for _ in range(2))
        here = ["--host", "127.0.0.1", "--listen", "127.0.0.1", "--port", port, "--mqtt-port", mqtt_port]
        self.command(SERVICE, "boards", "serve", "--service", *here)
        until(self.serves, PATIENCE_S)

    def join(self) -> None:
        _, join, address, _, token = self.command(SERVICE, "boards", "invite", "pi").split()
        self.command(AGENT, join, address, token, "--service")
        until(self.connected, PATIENCE_S)

    def serves(self) -> bool:
        live = self.place.live()
        return live is not None and live.pid == main_pid(self.served)

    def connected(self) -> bool:
        """To the service that runs now."""
        live = self.place.live()
        return live is not None and live.pid == main_pid(self.served) and len(live.sessions) == 1


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Machine(tmp_path)
    units = made.served, made.joined
    assert not any(unit.path.exists() for unit in units), "this machine has units of its own"
    yield made
    for unit in units:
        unit.remove()


async def test_the_units_of_service_and_board_start_again_and_work(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.serve()
    machine.join()
    for unit in (machine.served, machine.joined):
        assert (systemctl("is-enabled", unit), systemctl("is-active", unit)) == ("enabled", "active")
        look_into_the_sandbox(unit)
    for unit in (machine.joined, machine.served):
        with starts_again(unit):
            os.kill(main_pid(unit), signal.SIGKILL)
        until(machine.connected, PATIENCE_S)
    await two_rounds(tmp_path, monkeypatch)
    for unit in (machine.joined, machine.served):
        with starts_again(unit):
            systemctl("restart", unit)
        until(machine.connected, PATIENCE_S)
    machine.command(AGENT, "leave")
    assert systemctl("is-active", machine.joined) == "inactive"
    assert not machine.joined.path.exists()
    assert not machine.keys.folder.exists()
    until(lambda: not machine.connected(), PATIENCE_S)
    assert "revoked" in machine.command(SERVICE, "boards", "ls", "--json")


def look_into_the_sandbox(unit: ServiceUnit) -> None:
    """What its process sees of this machine, and how systemd rates it (10: exposed)."""
    seen = Path(f"/proc/{main_pid(unit)}/root")
    assert Path("/etc/shadow").read_bytes()
    assert not (seen / "etc/shadow").read_bytes()
    assert not list((seen / "root").iterdir())
    mounts = Path(f"/proc/{main_pid(unit)}/mounts").read_text().splitlines()
    assert [line.split()[3][:2] for line in mounts if line.split()[1] == "/"] == ["ro"]
    rated = subprocess.run(
        ["systemd-analyze", "security", unit.name, "--no-pager"], capture_output=True, text=True
    ).stdout
    print(rated.splitlines()[-1])
    assert float(rated.splitlines()[-1].split(": ")[1].split()[0]) < 4.5


async def two_rounds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the board, which the running service gives its work."""

    async def left_out(*_: object) -> session.Calibration:
        return session.Calibration((), False)

    monkeypatch.setattr(session, "JOIN_TIMEOUT_S", PATIENCE_S)  # an emulated machine loads torch in minutes
    monkeypatch.setattr(session, "calibrate_fleet", left_out)
    (folder / "fleet.yaml").write_text("name: units\ndevices: [{board: pi}]\n")
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT)
    (run,) = await session.run_experiment(Request(load(path), path, folder / "runs"), Watch(print))
    records = read(run / "records.jsonl")
    assert [list(each.merged) for each in records if isinstance(each, RoundFinished)] == [["pi"], ["pi"]]
    assert not [each for each in records if isinstance(each, DeviceOut)]


@contextlib.contextmanager
def starts_again(unit: ServiceUnit) -> Iterator[None]:
    """Waits at its end until the unit runs in another process than at its beginning."""
    before = main_pid(unit)
    yield
    until(lambda: main_pid(unit) not in (0, before), PATIENCE_S)


def main_pid(unit: ServiceUnit) -> int:
    """0 where it does not run."""
    return int(systemctl("show", unit, "--property=MainPID", "--value"))


def systemctl(order: str, unit: ServiceUnit, *options: str) -> str:
    done = subprocess.run(["systemctl", order, unit.name, *options], capture_output=True, text=True, check=False)
    return done.stdout.strip()
