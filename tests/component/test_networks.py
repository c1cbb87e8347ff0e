"""Networks of a stranger in simulated runs: the run's copy, resumed runs, sweeps, and one that cannot be cut."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import edgebed
from edgebed.errors import UsageError
from edgebed.methods.base import METHODS
from edgebed.plugin_code import read_plugin
from orchestrator.experiment import from_dict, load
from orchestrator.runs.feasibility import checked
from tests.strangers import accuracies, alone, forget_all

__all__ = ["alone"]

SMALL = {"name": "fedavg"}, {"name": "splitfed"}, {"name": "dtfl"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(Path(__file__).parents[1] / "networks.py", tmp_path / "networks.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def experiment(model: dict[str, Any], *methods: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "e",
        "fleet": "dtfl-5",
        "data": {"name": "digits", "train_samples": 300},
        "model": model,
        "methods": list(methods),
        "training": {"rounds": 2, "batch_size": 32},
        **more,
    }


def own(cls: str, **options: Any) -> dict[str, Any]:
    return {"file": "networks.py", "class": cls, **options}


def test_a_run_goes_on_and_is_repeated_with_its_copy_of_the_network(folder: Path) -> None:
    wanted = experiment(own("MobileNetV3", stages=5), *SMALL)
    first = edgebed.simulate(wanted, runs="first", overrides={"training.rounds": 1}, checkpoint_s=0.0)
    whole = edgebed.simulate(wanted, runs="whole")
    assert [read_plugin("plugins/networks.py", run.path).sha256 for run in whole] == [
        read_plugin("networks.py", folder).sha256
    ] * len(SMALL)
    (folder / "networks.py").write_text("raise SystemError('the edited file is run')")
    forget_all()
    again = edgebed.run(resume=first[0], overrides={"training.rounds": 2})
    assert accuracies(again[0]) == accuracies(whole[0])
    forget_all()
    (repeated,) = edgebed.simulate(whole[0].path / "experiment.yaml", runs="repeated")
    assert accuracies(repeated) == accuracies(whole[0])


def test_a_sweep_has_networks(folder: Path) -> None:
    models = [own("Residual", stages=3), {"torchvision": "resnet18"}, {"name": "resnet-tiny"}]
    wanted = experiment({"name": "resnet-tiny"}, {"name": "fedavg"}, sweep={"model": models})
    loaded = from_dict(wanted)
    assert [Path(each).stem for each in loaded.plugins] == ["networks", "of_torchvision"]
    runs = edgebed.simulate({**wanted, "sweep": {"model": [models[0], models[2]]}}, runs="runs")
    assert len(runs) == 2


WHOLE = ("fedavg", "fedprox", "fedat", "fedbuff", "fedyogi", "scaffold", "tifl", "drop-slowest")
"""Methods that train whole networks."""


@pytest.mark.parametrize("method", METHODS.built_in())
def test_a_network_that_cannot_be_cut_is_trained_whole_or_refused_with_its_line(folder: Path, method: str) -> None:
    """`BranchOnPicture` has a branch on data in its forward."""
    path = folder / "e.yaml"
    training = {"rounds": 2, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05}}  # what each method takes
    path.write_bytes(msgspec.json.encode(experiment(own("BranchOnPicture"), {"name": method}, training=training)))
    if method in WHOLE:
        checked(path, everything=True)
    else:
        with pytest.raises(UsageError, match=r"line \d+ of networks\.py"):
            checked(path, everything=True)


def test_fedavg_trains_what_cannot_be_cut(folder: Path) -> None:
    (run,) = edgebed.simulate(experiment(own("BranchOnPicture"), {"name": "fedavg"}), runs="runs")
    assert len(accuracies(run)) == 2


def test_dropout_learns_the_same_again(folder: Path) -> None:
    wanted = experiment(own("MobileNetV3", **{"with": {"dropout": 0.5}}), {"name": "fedavg"})
    first, second = (edgebed.simulate(wanted, runs=name)[0] for name in "ab")
    assert accuracies(first) == accuracies(second)


def test_a_classifier_of_torchvision_needs_its_package_in_the_image(folder: Path) -> None:
    experiment_ = from_dict(experiment({"torchvision": "mobilenet_v3_small"}, {"name": "fedavg"}))
    (code,) = experiment_.plugins
    assert read_plugin(code).told.requirements == ("torchvision==0.28.0",)


def test_a_package_that_is_installed_is_no_file_of_a_network(folder: Path) -> None:
    """An experiment without any code beside it ran a command, as soon as it was checked."""
    ran = folder / "ran"
    model = {"file": "psutil", "class": "Popen", "with": {"args": ["touch", str(ran)]}}
    path = folder / "e.yaml"
    path.write_bytes(msgspec.json.encode(experiment(model, {"name": "fedavg"})))
    with pytest.raises(UsageError, match="there is no file"):
        checked(path, everything=True)
    assert not ran.exists()


def test_the_place_of_a_missing_file_is_told(folder: Path) -> None:
    path = folder / "e.yaml"
    path.write_bytes(msgspec.json.encode(experiment({"file": "nets.py", "class": "Net"}, {"name": "fedavg"})))
    with pytest.raises(UsageError, match=r"nets\.py"):
        load(path)
