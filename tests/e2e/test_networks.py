"""Networks of a stranger, cut by themselves, on real fleets: each method learns what its simulation learns."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edgebed
from edgebed.plugin_code import read_plugin
from tests.strangers import accuracies, alone

__all__ = ["alone"]

pytestmark = pytest.mark.usefixtures("uncalibrated")

PROFILES = {
    "weak": "cpus: 0.2\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 1024\n",
    "strong": "cpus: 0.4\nuplink_mbit_s: 40\ndownlink_mbit_s: 40\nmemory_mib: 1024\n",
}
NETWORKS = {
    "MobileNetV3": {"class": "MobileNetV3", "with": {"width": 4, "dropout": 0.0}, "stages": 4},
    "Vit": {"class": "Vit", "with": {"patch": 2, "dropout": 0.0}, "stages": 4},
}


def experiment(folder: Path, model: dict[str, Any], *methods: dict[str, Any]) -> Path:
    """Two devices on digits."""
    for name, text in PROFILES.items():
        (folder / f"{name}.yaml").write_text(text)
    devices = "[{profile: weak.yaml, name: weak}, {profile: strong.yaml, name: strong}]"
    (folder / "fleet.yaml").write_text(f"{{name: networks, devices: {devices}}}")
    shutil.copy(Path(__file__).parents[1] / "networks.py", folder / "networks.py")
    path = folder / "experiment.yaml"
    text = {
        "name": "e2e",
        "fleet": "fleet.yaml",
        "data": {"name": "digits", "train_samples": 300},
        "model": {"file": "networks.py", **model},
        "methods": list(methods),
        "training": {"rounds": 2, "batch_size": 32, "heartbeat_s": 0.5, "seed": 2},
        "simulation": {"batched": False},
    }
    path.write_bytes(msgspec.json.encode(text))
    return path


METHODS = ({"name": "fedavg"}, {"name": "splitfed", "cut": 2}, {"name": "dtfl", "tier": 2})


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "backend", [pytest.param("local", marks=pytest.mark.root), pytest.param("docker", marks=pytest.mark.docker)]
)
def test_each_method_learns_what_its_simulation_learns(backend: str, network: str, tmp_path: Path) -> None:
    methods = METHODS if backend == "local" else METHODS[1:2]
    wanted = experiment(tmp_path, NETWORKS[network], *methods)
    simulated = edgebed.simulate(wanted, runs=tmp_path / "simulated")
    real = edgebed.run(wanted, backend=backend, runs=tmp_path / "real", allow_uncalibrated=True)
    assert len(real) == len(methods)
    for mine, other in zip(real, simulated, strict=True):
        assert accuracies(mine) == accuracies(other)
        copies = [read_plugin("plugins/networks.py", run.path) for run in (mine, other)]
        assert copies[0].sha256 == copies[1].sha256


@pytest.mark.root
def test_dropout_on_devices_follows_from_the_seed(tmp_path: Path) -> None:
    model = {"class": "MobileNetV3", "with": {"width": 4, "dropout": 0.5}}
    wanted = experiment(tmp_path, model, {"name": "fedavg"})
    (simulated,) = edgebed.simulate(wanted, runs=tmp_path / "simulated")
    (real,) = edgebed.run(wanted, backend="local", runs=tmp_path / "real", allow_uncalibrated=True)
    assert accuracies(real) == accuracies(simulated)


@pytest.mark.docker
def test_a_classifier_of_torchvision_is_in_the_agents_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which gets torchvision from the package index; the weights are those of the simulation, to the bit."""
    y = np.arange(160) % 4
    x = np.random.default_rng(1).integers(0, 200, (160, 3, 32, 32)) + 10 * y[:, None, None, None]
    np.savez(tmp_path / "colour.npz", x=x.astype(np.uint8), y=y)
    monkeypatch.setenv("EDGEBED_DATA", str(tmp_path))
    wanted = experiment(tmp_path, {}, METHODS[1])
    text = msgspec.json.decode(wanted.read_bytes())
    text["data"] = {"name": "npz", "path": "colour.npz"}
    text["model"] = {"torchvision": "mobilenet_v3_small", "stages": 4, "with": {"dropout": 0.0}}
    wanted.write_bytes(msgspec.json.encode(text))
    (simulated,) = edgebed.simulate(wanted, runs=tmp_path / "simulated")
    (real,) = edgebed.run(wanted, backend="docker", runs=tmp_path / "real", allow_uncalibrated=True)
    ours, others = (load_file(run.path / "checkpoint.safetensors") for run in (real, simulated))
    assert ours.keys() == others.keys()
    assert [name for name in ours if not torch.equal(ours[name], others[name])] == []
