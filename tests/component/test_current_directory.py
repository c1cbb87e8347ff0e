"""Whoever starts Edgebed in a folder of others runs nothing that lies there: not in its children either."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import venv
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import torch

pytest.importorskip("cryptography")

import edge_agent.board.join as joining
from edge_agent.board.standby import Standby
from edgebed.datasets.shard import write_idle_shard
from edgebed.link.connection import Address
from edgebed.wire.boards import WAITING, BoardOrder, BoardState
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.boards.boards_broker import boards_broker
from orchestrator.boards.members import Taken, claimed
from orchestrator.boards.service_folder import ServiceFolder, Where
from orchestrator.broker.open_broker import open_broker
from orchestrator.cli.boards import unit
from orchestrator.dashboard.files import figures
from orchestrator.dashboard.serve import PageAddress
from orchestrator.dashboard.subprocess_server import page_beside
from orchestrator.fleet.host.speed import watch_speed
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.runs.daemon import FleetFolder, Wanted, spawn
from orchestrator.training.process import TrainerProcess
from tests.broker_address import free_port
from tests.component._boards import HOST, Lab, Orchestrator, running
from tests.component._faults import small_fleet
from tests.component._foreign import Foreign
from tests.e2e.cli import write_experiment
from tests.hangs import run
from tests.synthetic import Synthetic
from tests.unit._runs import keep
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PLANTED = (
    *("orchestrator/__init__.py", "edge_agent/__init__.py", "edgebed/__init__.py"),
    *("torch.py", "msgspec.py", "json.py", "runpy.py", "sitecustomize.py", "usercustomize.py"),
)
TRAP = """
with open({witness!r}, "a") as file:
    file.write(__file__ + "\\n")
if "customize" not in __name__:  # nobody shall wait for a child in vain
    raise SystemExit(99)
"""


def plant(folder: Path, witness: Path) -> None:
    for name in PLANTED:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRAP.format(witness=str(witness)))


def taken(witness: Path) -> list[str]:
    """Files of a planted folder that somebody has run, below the test's folder."""
    lines = witness.read_text().splitlines() if witness.exists() else []
    return [str(Path(line).relative_to(witness.parent)) for line in lines]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that takes packages from the user's site folder, as one outside of a virtual environment does. It has
    those of this one, too."""
    folder = tmp_path_factory.mktemp("python") / "venv"
    venv.create(folder, system_site_packages=True)
    (folder / SITE / "tests.pth").write_text(f"{Path(torch.__file__).parents[1]}\n{ROOT}\n")
    return folder / "bin" / "python"


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """We are in a planted folder, and the user's site folder is planted, too."""
    witness, folder, user = tmp_path / "witness", tmp_path / "downloaded", tmp_path / "user"
    for each in (folder, user / SITE):
        plant(each, witness)
    monkeypatch.setenv("PYTHONUSERBASE", str(user))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(folder)
    return witness


async def trainer(folder: Path) -> None:
    async with TrainerProcess.started() as process:
        await process.ready()


async def fork_server(folder: Path) -> None:
    """The software fleet's. Its agent waits for a broker that is not there."""
    write_idle_shard(folder / "shard")
    backend = LocalBackend(small_fleet(folder, 0.2), "f0cd", kernel=False)
    try:
        await backend.prepare()
        await backend.start({"d0": Address(HOST, free_port(), "u", "p")}, {"d0": folder / "shard"})
        assert backend.pids["d0"]
    finally:
        await backend.close()


async def reference_loop(folder: Path) -> None:
    begun = time.monotonic_ns()
    async with watch_speed("edgebed-test-cwd") as speed:
        await until(lambda: speed.between(begun, time.monotonic_ns())[1] > 0)


async def page(folder: Path) -> None:
    said: list[str] = []
    with page_beside(folder, "synthetic", PageAddress(), said.append):
        assert said[0].startswith("Live page: http")


async def paper_figures(folder: Path) -> None:
    keep(folder, Synthetic(dilation=1.0).records)
    assert (await figures(folder)).status_code == 200


async def embedded_broker(folder: Path) -> None:
    async with open_broker([], kinds=["embedded"]) as broker:
        assert "amqtt" in broker.kind


async def relayed(folder: Path) -> None:
    """Devices reach a broker of the user's own over a relay, where the orchestrator logs in at the start."""
    async with Foreign(folder, {ORCHESTRATOR: "p"}).running() as foreign, open_broker([], foreign.own()) as broker:
        assert broker.port != foreign.port


async def daemon(folder: Path) -> None:
    """Of a fleet whose file has gone: that is what it says."""
    spec = small_fleet(folder, 0.2)
    spec.path.unlink()
    place = FleetFolder.of(spec)
    pid = spawn(spec, place, Wanted("software", "off", None))
    await until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, 60)
    assert str(spec.path) in place.failure()


async def boards_service(folder: Path) -> None:
    lab = Lab(folder, ServiceFolder.of_user().folder)
    lab.place.tell_where(Where((HOST,), lab.port, lab.mqtt_port, HOST))
    async with boards_broker(lab.place, lab.said.append, 60.0) as broker:
        assert broker.started


async def agent_of_a_board(folder: Path) -> None:
    write_idle_shard(folder / "shard")
    async with running(folder) as lab, Orchestrator(lab) as orchestrator:
        keys = await lab.board("pi")
        board = keys.service().board
        order = BoardOrder("f1", lab.offer((folder / "shard").read_bytes()))
        standby = asyncio.create_task(Standby(keys, lab.said.append).run())
        with claimed(lab.place, {"pi": board}, Taken("test", "f1", os.getpid())):
            orchestrator.link.publish(WAITING.control_to(board), msgspec.json.encode(order), retain=True)
            await until(
                lambda: bool(failed(orchestrator, board)) or Topics("f1").state(board) in orchestrator.heard, 60
            )
            assert failed(orchestrator, board) == ""
            standby.cancel()
            await asyncio.gather(standby, return_exceptions=True)


def failed(orchestrator: Orchestrator, board: str) -> str:
    """Why the board's agent has ended."""
    heard = orchestrator.heard.get(WAITING.state(board))
    return msgspec.json.decode(heard, type=BoardState).error if heard else ""


async def units(folder: Path) -> None:
    """They start Python itself where no command stands beside it."""
    for command in (joining.unit(folder).command, unit([]).command):
        assert command[0] == sys.executable
        done = await asyncio.to_thread(run, [*command, "--help"])
        assert done.returncode == 0, done.stderr
        assert "usage" in done.stdout.lower()


CHILDREN = [
    trainer,
    pytest.param(fork_server, marks=pytest.mark.fleet),
    reference_loop,
    page,
    paper_figures,
    embedded_broker,
    pytest.param(relayed, marks=pytest.mark.mosquitto),
    daemon,
    pytest.param(boards_service, marks=pytest.mark.mosquitto),
    pytest.param(agent_of_a_board, marks=pytest.mark.mosquitto),
    units,
]


@pytest.mark.parametrize("starts", CHILDREN)
async def test_a_child_takes_no_code_from_the_current_directory_or_the_users_site(
    starts: Callable[[Path], Awaitable[None]],
    python: Path,
    witness: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", str(python))
    work = tmp_path / "work"
    work.mkdir()
    problem: BaseException | None = None
    try:
        await starts(work)
    except (Exception, SystemExit) as error:
        problem = error
    assert taken(witness) == []
    if problem is not None:
        raise problem


def test_the_planted_folder_catches_who_runs_what_lies_there(python: Path, witness: Path) -> None:
    """Without this the tests above could pass for nothing."""
    assert run([str(python), "-m", "orchestrator"]).returncode == 99
    assert [path.replace(SITE, "site") for path in taken(witness)] == [
        "user/site/sitecustomize.py",
        "user/site/usercustomize.py",
        "downloaded/orchestrator/__init__.py",
    ]


@pytest.mark.fleet
@pytest.mark.mosquitto
def test_a_run_in_a_planted_folder_takes_no_code_from_there(witness: Path, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path / "mine")
    program = str(Path(sys.executable).parent / "edgebed")
    options = ["--backend", "software", "--method", "fedavg", "--set", "training.rounds=1"]
    env = os.environ | {"EDGEBED_RUNS": str(tmp_path / "runs")}
    done = run([program, "run", str(experiment), *options, "--allow-uncalibrated", "--dashboard"], 240.0, env=env)
    assert taken(witness) == []
    assert done.returncode == 0, done.stderr
    assert "Live page: http" in done.stderr
