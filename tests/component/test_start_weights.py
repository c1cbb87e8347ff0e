"""`weights`: a run begins with those of a safetensors file."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

import edgebed
from edgebed.errors import UsageError
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from edgebed.wire.settings import LearningTask
from orchestrator.cli.compare import print_comparison
from orchestrator.runs.feasibility import checked
from orchestrator.runs.start_weights import begin_with
from tests import networks
from tests.strangers import accuracies, alone

__all__ = ["alone"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Digits on `dtfl-5`; a network of one's own, `Residual`."""
    shutil.copy(Path(__file__).parents[1] / "networks.py", tmp_path / "networks.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def experiment(**more: Any) -> dict[str, Any]:
    return {
        "name": "e",
        "fleet": "dtfl-5",
        "data": {"name": "digits", "train_samples": 300},
        "model": {"file": "networks.py", "class": "Residual", "stages": 3},
        "methods": [{"name": "fedavg"}],
        "training": {"rounds": 1, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 1e-12}},  # as good as none
        **more,
    }


def ended_with(run: edgebed.Run) -> Weights:
    found = load_file(run.path / "checkpoint.safetensors")
    return {name.removeprefix("weights/"): value for name, value in found.items()}


def network() -> Weights:
    """The state of a network of that class with other weights than the seed gives, as its author saves it."""
    torch.manual_seed(99)
    return networks.Residual((1, 8, 8), 10).state_dict()


def test_a_run_begins_with_a_network_s_state_without_its_last_layer(folder: Path) -> None:
    state = network()
    save_file({name: value for name, value in state.items() if not name.startswith("fc")}, folder / "w.safetensors")
    (plain,) = edgebed.simulate(experiment(), runs="runs")
    (run,) = edgebed.simulate(experiment(weights="w.safetensors"), runs="runs")
    ends, drawn = ended_with(run), ended_with(plain)
    for name, value in ends.items():
        short = name.partition(".")[2]
        if name.startswith("head") or not value.is_floating_point() or "running" in name:
            continue
        torch.testing.assert_close(value, drawn[name] if short.startswith("fc") else state[short], rtol=0, atol=1e-9)
    assert not torch.equal(ends["1-layer1-0.stem.0.weight"], drawn["1-layer1-0.stem.0.weight"])


def test_a_run_begins_where_another_one_ended_and_can_be_resumed(folder: Path) -> None:
    training = {"rounds": 2, "batch_size": 32}
    (first,) = edgebed.simulate(experiment(training=training), runs="runs")
    begun = experiment(weights=str(first.path / "checkpoint.safetensors"), training={**training, "rounds": 1})
    (still,) = edgebed.simulate({**begun, "training": experiment()["training"]}, runs="runs")
    held, was = ended_with(still), ended_with(first)
    parameters = [name for name in was if name.endswith((".weight", ".bias"))]
    assert [name for name in parameters if not torch.equal(held[name], was[name])] == []
    (one,) = edgebed.simulate(begun, runs="runs", checkpoint_s=0.0)
    (two,) = edgebed.simulate({**begun, "training": training}, runs="runs")
    (resumed,) = edgebed.run(resume=one, overrides={"training.rounds": 2})
    assert accuracies(resumed) == accuracies(two)


@pytest.mark.parametrize("change", ["other", "gone"])
def test_a_run_does_not_go_on_with_other_weights_than_it_began_with(folder: Path, change: str) -> None:
    file = folder / "w.safetensors"
    save_file(network(), file)
    (run,) = edgebed.simulate(experiment(weights=file.name), runs="runs")
    was = file.read_bytes()
    file.write_bytes(was[:-1] + bytes([was[-1] ^ 1])) if change == "other" else file.unlink()
    with pytest.raises(UsageError, match=rf"{run.name} began with the weights of {file}: SHA-256") as refused:
        edgebed.run(resume=run, overrides={"training.rounds": 2})
    assert "put that file back" in refused.value.hint
    file.write_bytes(was)
    assert len(accuracies(edgebed.run(resume=run, overrides={"training.rounds": 2})[0])) == 2


def test_a_comparison_says_that_runs_began_with_other_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(network(), folder / "w.safetensors")
    begun = experiment(weights="w.safetensors")
    paths = [run.path for each in (experiment(), begun, begun) for run in edgebed.simulate(each, runs="runs")]

    def notes(*folders: Path) -> list[str]:
        capsys.readouterr()
        print_comparison(folders, as_json=True)
        return [each for each in msgspec.json.decode(capsys.readouterr().out)["notes"] if "different weights" in each]

    sha256 = hashlib.sha256((folder / "w.safetensors").read_bytes()).hexdigest()[:16]
    assert notes(*paths) == [f"the runs began with different weights: drawn ones, those of a file (SHA-256 {sha256})"]
    assert notes(*paths[1:]) == []
    print_comparison(paths, as_json=False)
    assert "began with different weights" in " ".join(capsys.readouterr().out.split())


def test_the_frozen_base_is_that_of_the_file(folder: Path) -> None:
    state = network()
    save_file(state, folder / "w.safetensors")
    model = {**experiment()["model"], "lora": {"rank": 2}, "trainable": ["*.bn1"]}
    training = {"rounds": 1, "batch_size": 32}
    (run,) = edgebed.simulate(experiment(model=model, weights="w.safetensors", training=training), runs="runs")
    ends = {name.partition(".")[2]: value for name, value in ended_with(run).items()}
    assert torch.equal(ends["fc.weight"], state["fc.weight"])
    assert not torch.equal(ends["layer1.0.bn1.weight"], state["layer1.0.bn1.weight"])
    assert ends["fc.lora_b"].any()


@pytest.mark.parametrize(
    ("tensors", "message", "hint"),
    [
        (
            {"fc.weight": torch.zeros(1000, 16)},
            r"fc\.weight' has shape \(1000, 16\), the model \(10, 16\)",
            "remove it",
        ),
        ({"fc.weights": torch.zeros(10, 16)}, "fc.weights is no weight of the model", "for example"),
        (None, "is no safetensors file", "save the weights"),
        (b"\x80\x04not a pickle either", "is no safetensors file", "save the weights"),
        ({"fc.bias": torch.full((10,), torch.nan)}, "fc.bias. holds values that are not finite", "can be trained"),
        ({"fc.bias": torch.full((10,), 1e300, dtype=torch.float64)}, "not finite", "can be trained"),
        ({"fc.bias": torch.ones(10, dtype=torch.int8)}, "fc.bias holds int8", "save it as float32"),
        ({"fc.bias": torch.ones(10, dtype=torch.bool)}, "fc.bias holds bool", "save it as float32"),
        ({"fc.bias": torch.ones(10, dtype=torch.complex64)}, "fc.bias holds complex64", "save it as float32"),
        ({"fc.bias": torch.full((10,), 1e30)}, "fc.bias. holds values above 1e.18", "can be trained"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_a_fleet_starts(
    folder: Path, tensors: Weights | bytes | None, message: str, hint: str
) -> None:
    if isinstance(tensors, bytes):
        (folder / "w.safetensors").write_bytes(tensors)
    elif tensors is not None:
        save_file(tensors, folder / "w.safetensors")
    path = folder / "e.yaml"
    path.write_bytes(msgspec.json.encode(experiment(weights="w.safetensors")))
    with pytest.raises(UsageError, match=message) as refused:
        checked(path, everything=True)
    assert hint in refused.value.hint
    with pytest.raises(UsageError, match=message):
        edgebed.simulate(path, runs="runs")
    assert not list(folder.glob("runs/*"))


def test_a_name_without_its_stage_is_never_that_of_a_head_or_of_several_stages(folder: Path) -> None:
    """Heads have an `fc` as many networks have."""

    def build() -> StagedModel:
        plugin = MODELS.create({"name": "fcnn", "hidden": [8, 8]})
        return seeded(lambda: plugin.build(LearningTask((1, 8, 8), 10)), 1)

    short = [name.partition(".")[2] for name in build().state_dict()]
    several = next(name for name in short if short.count(name) > 1)
    save_file({several: torch.ones(10, 8)}, folder / "w.safetensors")
    with pytest.raises(UsageError, match=f"{several} is no weight of the model"):
        begin_with(build(), folder / "w.safetensors")


def test_a_pipe_in_place_of_the_file_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "w.safetensors")
    with pytest.raises(UsageError, match="there is no such file"):
        edgebed.simulate(experiment(weights="w.safetensors"), runs="runs")
