"""Where a device trains: what may be asked for, what is told where it cannot be had, and where the batches go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from edge_agent import __main__ as agent_main
from edge_agent import accelerator as ac
from edge_agent.__main__ import settings_from
from edge_agent.accelerator import check_torch, torch_note
from edge_agent.sensors.watch import board_facts
from edge_agent.settings import AgentSettings, presence
from edgebed import accelerator
from edgebed.datasets.shard import VERSION, About, Shard
from edgebed.errors import UsageError
from edgebed.wire.messages import decode_control
from orchestrator.experiment import Experiment
from orchestrator.fleet.control.membership import Membership
from orchestrator.records.types import DeviceJoined, Record
from orchestrator.runs.request import Watch, quiet
from orchestrator.simulation.run import SimulationRequest, simulate
from orchestrator.training.child import trainer_accelerator

CUDA = torch.device("cuda")
GIVEN = ["--broker", "mqtt://h", "--fleet", "f1", "--device", "d1", "--shard", "x"]


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def broken_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that finds a device for which it has no code."""

    def fails(accelerator: torch.device) -> None:
        if accelerator.type == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with …")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Orin")
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    monkeypatch.setattr(accelerator, "try_convolution", fails)


def test_a_simulation_on_cuda_that_fails_is_refused_before_it_begins(broken_cuda: None, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    experiment = Experiment(name="x", fleet="dtfl-5", methods=[{"name": "fedavg"}])
    request = SimulationRequest(experiment, tmp_path / "x.yaml", runs, accelerator="cuda")
    with pytest.raises(UsageError, match=r"simulation cannot train on cuda: torch .* fails on Orin: CUDA error"):
        simulate(request, Watch(quiet))
    assert not list(runs.glob("*"))


def test_the_trainer_says_that_it_takes_the_cpu_where_cuda_fails(
    broken_cuda: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trainer_accelerator() == ac.CPU
    assert "server halves train on the CPU, because torch" in capsys.readouterr().err
    monkeypatch.setattr(accelerator, "try_convolution", lambda accelerator: None)
    assert trainer_accelerator() == CUDA


def test_a_board_looks_for_itself_and_other_devices_train_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEBED_ACCELERATOR", raising=False)
    assert settings_from(GIVEN).accelerator == "cpu"
    assert settings_from([*GIVEN, "--board"]).accelerator == "auto"
    assert settings_from([*GIVEN, "--board", "--accelerator", "cuda"]).accelerator == "cuda"
    monkeypatch.setenv("EDGEBED_ACCELERATOR", "cpu")
    assert settings_from([*GIVEN, "--board"]).accelerator == "cpu"


def test_an_accelerator_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no accelerator 'cudaa'; did you mean 'cuda'\?") as caught:
        ac.find_accelerator("cudaa")
    assert caught.value.hint == "give auto, cpu or cuda"


def test_auto_is_the_cpu_where_there_is_no_cuda(without_cuda: None) -> None:
    assert ac.find_accelerator("auto") == ac.find_accelerator("cpu") == ac.CPU


@pytest.mark.parametrize(
    ("build", "why"), [(None, "built for the CPU only"), ("12.6", "built for CUDA 12.6, but finds no device")]
)
def test_cuda_that_is_not_there_names_the_cure(
    build: str | None, why: str, without_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    with pytest.raises(UsageError, match=f"cannot train on cuda: torch .* {why}") as caught:
        ac.find_accelerator("cuda")
    assert "docs/boards.md" in caught.value.hint


def test_cuda_that_fails_is_an_error_or_left_alone(broken_cuda: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"fails on Orin: CUDA error: no kernel image .* the device$"):
        ac.find_accelerator("cuda")
    assert ac.find_accelerator("auto") == ac.CPU
    assert "trains on the CPU, because torch" in capsys.readouterr().err


def test_cuda_that_works_is_taken(broken_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "try_convolution", lambda accelerator: None)
    assert ac.find_accelerator("auto") == ac.find_accelerator("cuda") == CUDA
    assert ac.accelerator_facts(CUDA) == {"accelerator": "Orin"}
    assert ac.accelerator_facts(ac.CPU) == {"accelerator": "cpu"}


# ---- from the command line to the record, with a stand-in for torch.cuda ----


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[AgentSettings]:
    """With what settings agents began to serve."""
    settings: list[AgentSettings] = []
    monkeypatch.setattr(agent_main, "serve", settings.append)
    monkeypatch.setattr(agent_main, "warm_up", lambda accelerator: None)
    monkeypatch.delenv("EDGEBED_ACCELERATOR", raising=False)
    board_facts.cache_clear()
    return settings


def start(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    monkeypatch.setattr(sys, "argv", ["edgebed-agent", *GIVEN, "--board", *more])
    agent_main.main()


def recorded(settings: AgentSettings) -> str:
    """The fact `accelerator` in the record of a device that joins with these settings."""
    x, y = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 2
    shard = Shard(x, y, About(VERSION, (0.5,), (0.5,), 2), "", torch.device(settings.accelerator))
    records: list[Record] = []
    membership = Membership(["d1"], lambda device, message: None, records.append, pinned=lambda name: False)
    membership.on_control("d1", decode_control(presence(settings, "1", True, shard)))
    (joined,) = [record for record in records if isinstance(record, DeviceJoined)]
    return joined.host["accelerator"]


@pytest.mark.parametrize("wanted", [(), ("--accelerator", "auto"), ("--accelerator", "cuda")])
def test_the_name_of_a_cuda_device_that_works_is_recorded(
    wanted: tuple[str, ...], started: list[AgentSettings], broken_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this stand-in, any convolution works there."""
    for module in (accelerator, ac):
        monkeypatch.setattr(module, "try_convolution", lambda accelerator: None)
    start(monkeypatch, *wanted)
    assert [settings.accelerator for settings in started] == ["cuda"]
    assert recorded(started[0]) == "Orin"


@pytest.mark.parametrize("cuda", ["without_cuda", "broken_cuda"])
def test_a_board_without_a_cuda_device_that_works_trains_and_is_recorded_on_the_cpu(
    cuda: str, started: list[AgentSettings], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(cuda)
    start(monkeypatch)
    assert recorded(started[0]) == "cpu"
    with pytest.raises(SystemExit) as ended:
        start(monkeypatch, "--accelerator", "cuda")
    assert ended.value.code == UsageError.exit_code
    assert len(started) == 1


def test_the_cpu_can_do_a_convolution() -> None:
    accelerator.try_convolution(ac.CPU)


def test_batches_go_to_the_accelerator_and_the_samples_stay() -> None:
    elsewhere = torch.device("meta")
    x, y = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 2
    shard = Shard(x, y, About(VERSION, (0.5,), (0.5,), 2), "", elsewhere)
    for batch in (*shard.batches(2, 1, 0, 0), *shard.singles(2, 0)):
        assert [tensor.device for tensor in batch] == [elsewhere, elsewhere]
    assert shard.x.device == shard.y.device == ac.CPU


# ---- a board's torch ----


def test_a_torch_that_is_too_old_or_wrong_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    check_torch(ac.CPU, "2.3.1")
    check_torch(ac.CPU)
    for version in ("1.13.0", "2.2.2+cu121", "unknown"):
        with pytest.raises(UsageError, match=r"is older than 2\.3") as refused:
            check_torch(ac.CPU, version)
        assert "docs/boards.md" in refused.value.hint
    monkeypatch.setattr(ac, "try_convolution", _fails)
    with pytest.raises(UsageError, match=r"cannot do a convolution on cpu: could not create a primitive$"):
        check_torch(ac.CPU, "2.10.0")


def test_a_torch_that_is_newer_than_tested_goes_on_with_a_note() -> None:
    assert torch_note("2.13.9") == {}
    assert torch_note("2.14.0a0") == {"torch_note": "2.14.0a0 is newer than 2.13, the newest that was tested"}


def _fails(accelerator: torch.device) -> None:
    raise RuntimeError("could not create a primitive\nsecond line")
