"""From an experiment to shards: what the devices get, and what stays for testing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from edgebed.datasets.shard import read_shard
from edgebed.errors import UsageError
from edgebed.wire.settings import LearningTask, Privacy
from orchestrator.cli import build
from orchestrator.experiment import Experiment
from orchestrator.files.yaml_file import parse
from orchestrator.runs.data import Prepared, label_table, located, prepare_data
from orchestrator.runs.folder import resolved

DEMO = Path(__file__).parents[2] / "profiles" / "experiments" / "demo.yaml"
DEVICES = ["weak", "middle", "strong"]


def experiment(**changes: Any) -> Experiment:
    base = {"name": "t", "fleet": "f.yaml", "methods": [{"name": "fedavg"}], "training": {"seed": 3}}
    return msgspec.convert({**base, **changes}, Experiment)


@pytest.fixture
def npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """90 numbered samples with three labels: sample i holds i, its label is i % 3."""
    monkeypatch.setenv("EDGEBED_DATA", str(tmp_path))
    x = np.broadcast_to(np.arange(120, dtype=np.uint8)[:, None, None, None], (120, 2, 4, 4))
    y = np.arange(120) % 3
    np.savez(tmp_path / "n.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    return tmp_path


@pytest.mark.parametrize(
    "partition",
    [
        {"kind": "iid"},
        {"kind": "dirichlet"},
        {"kind": "classes", "classes": 2},
        {"kind": "layers", "layers": [["strong"], 1, 1], "shares": "biased"},
    ],
)
def test_every_sample_lands_on_one_device_with_its_label(npz: Path, partition: dict[str, Any]) -> None:
    wanted = experiment(data={"name": "npz", "path": "n.npz"}, partition=partition)
    prepared = prepare_data(wanted, DEVICES, npz)
    assert list(prepared.shards) == DEVICES
    shards = {name: read_shard(path) for name, path in prepared.shards.items()}
    seen = torch.cat([shard.x[:, 0, 0, 0] for shard in shards.values()])
    assert sorted(seen.tolist()) == list(range(90))
    for name, shard in shards.items():
        assert torch.equal(shard.x[:, 0, 0, 0] % 3, shard.y)
        assert shard.label_counts == prepared.label_counts[name]
    assert (prepared.task, prepared.class_names) == (LearningTask((2, 4, 4), 3), ["0", "1", "2"])
    assert len(prepared.test_y) == 30


def test_test_samples_are_normalised_as_the_devices_normalise(npz: Path) -> None:
    """The same numbers come out as of a device's batches: mean 0 and std 1 over the training part."""
    prepared = prepare_data(experiment(data={"name": "npz", "path": "n.npz"}), DEVICES, npz)
    batches = [x for path in prepared.shards.values() for x, _ in read_shard(path).batches(8, 1, 0, 0)]
    values = torch.cat(batches)[:, 0, 0, 0]
    assert values.mean().item() == pytest.approx(0, abs=1e-5)
    assert values.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    step = (values.max() - values.min()) / 89
    torch.testing.assert_close(prepared.test_x[0, 0, 0, 0], values.max() + step)


def test_a_sample_batch_has_the_size_asked_for(npz: Path) -> None:
    prepared = prepare_data(experiment(data={"name": "npz", "path": "n.npz"}), DEVICES, npz)
    x, y = prepared.sample(70)
    assert (x.shape, y.shape) == ((70, 2, 4, 4), (70,))
    assert torch.equal(x[:30], prepared.test_x)
    assert torch.equal(x[30:60], prepared.test_x)


def test_the_seed_of_the_run_decides_the_shares(npz: Path) -> None:
    def shares(seed: int) -> list[int]:
        wanted = experiment(data={"name": "npz", "path": "n.npz"}, training={"seed": seed})
        return read_shard(prepare_data(wanted, DEVICES, npz).shards["weak"]).x[:, 0, 0, 0].tolist()

    assert shares(1) == shares(1) != shares(2)


def test_mistakes_name_place_and_hint(npz: Path) -> None:
    for changes, message in (
        ({"data": {"name": "digit"}}, "data: there is no data set 'digit'"),
        ({"data": {"name": "npz", "path": "n.npz"}, "partition": {"kind": "even"}}, "no partition 'even'"),
        ({"data": {"name": "npz", "path": "n.npz", "train_samples": 5}}, "5 training samples for 3 devices"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            prepare_data(experiment(**changes), DEVICES, npz)
        assert caught.value.hint
    with pytest.raises(UsageError, match="gone"):
        prepare_data(experiment(), DEVICES, npz / "gone")


def test_each_device_finds_its_own_privacy_in_its_shard(npz: Path) -> None:
    """For all, by profile, by device: the nearer wins, key by key. Each has a secret of its own."""
    section = {
        "dcor_alpha": 0.25,
        "patch_shuffle": 4,
        "profiles": {"small": {"dcor_alpha": 0.5, "patch_shuffle": 2}},
        "devices": {"weak": {"dcor_alpha": 0}},
    }
    profiles = {"weak": "small", "middle": "small", "strong": "large"}

    def chosen(seed: int = 3) -> list[Privacy]:
        wanted = experiment(data={"name": "npz", "path": "n.npz"}, privacy=section, training={"seed": seed})
        return [read_shard(path).privacy for path in prepare_data(wanted, DEVICES, npz, profiles).shards.values()]

    privacy = chosen()
    assert [(each.dcor_alpha, each.patch_shuffle) for each in privacy] == [(0, 2), (0.5, 2), (0.25, 4)]
    assert len({each.secret for each in privacy}) == 3
    assert chosen() == privacy
    assert {each.secret for each in chosen(4)}.isdisjoint(each.secret for each in privacy)


@pytest.mark.parametrize("key", ["devices", "profiles"])
def test_privacy_of_a_stranger_is_refused(npz: Path, key: str) -> None:
    wanted = experiment(data={"name": "npz", "path": "n.npz"}, privacy={key: {"slow": {"dcor_alpha": 0.5}}})
    with pytest.raises(UsageError, match=f"privacy.{key} names slow") as caught:
        prepare_data(wanted, DEVICES, npz, dict.fromkeys(DEVICES, "cpu1"))
    assert ("weak, middle, strong" if key == "devices" else "cpu1") in caught.value.hint


@pytest.mark.parametrize("section", [{"dcor_alpha": 1.5}, {"patch_shuffle": -1}, {"devices": {"weak": {"alpha": 1}}}])
def test_privacy_that_cannot_be_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="privacy"):
        experiment(privacy=section)


def printed(prepared: Prepared) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(label_table(prepared.title, prepared.class_names, prepared.label_counts))
    return capture.get()


def test_label_counts_are_printed(npz: Path) -> None:
    prepared = prepare_data(experiment(data={"name": "npz", "path": "n.npz"}), DEVICES, npz)
    for text in (printed(prepared), prepared.describe()):
        assert "npz" in text
        for device, counts in prepared.label_counts.items():
            (line,) = [line for line in text.splitlines() if device in line]
            numbers = [int(word) for word in line.replace("│", " ").replace(":", " ").split() if word.isdecimal()]
            assert numbers == [sum(counts), *counts]


def test_many_classes_are_summed_up() -> None:
    table = label_table("t", [f"class{i}" for i in range(100)], {"a": [0] * 97 + [5, 9, 1]})
    assert [list(column.cells) for column in table.columns] == [["a"], ["15"], ["3"], ["class98 9"]]


def test_the_command_lists_data_sets_and_shares_of_an_experiment() -> None:
    runner = CliRunner()
    names = [row["name"] for row in json.loads(runner.invoke(build(), ["data", "--json"]).stdout)]
    assert "digits" in names
    assert "digits" in runner.invoke(build(), ["data"]).stdout
    arguments = ["data", str(DEMO), "--set", "partition.kind=dirichlet"]
    found = json.loads(runner.invoke(build(), [*arguments, "--json"]).stdout)
    assert sum(sum(counts) for counts in found["devices"].values()) == 1438
    assert found["test"] == 359
    assert runner.invoke(build(), arguments).exit_code == 0


def test_a_relative_path_is_looked_for_beside_the_file_and_then_among_the_data_sets(npz: Path, tmp_path: Path) -> None:
    wanted = experiment(data={"name": "npz", "path": "n.npz"})
    far, near = tmp_path / "far" / "e.yaml", tmp_path / "near" / "e.yaml"
    for file in (far, near):
        file.parent.mkdir()
    (near.parent / "n.npz").write_bytes((npz / "n.npz").read_bytes())
    assert located(wanted.data, far)["path"] == str(npz / "n.npz")
    assert located(wanted.data, near)["path"] == str(near.parent / "n.npz")
    assert prepare_data(wanted, DEVICES, npz, near=near).label_counts["weak"]
    with pytest.raises(UsageError) as caught:
        prepare_data(experiment(data={"name": "npz", "path": "gone.npz"}), DEVICES, npz, near=near)
    assert str(near.parent / "gone.npz") in str(caught.value)
    assert str(npz / "gone.npz") in str(caught.value)
    assert "EDGEBED_DATA" in caught.value.hint


@pytest.mark.parametrize("by", ["its path", "a link", "a relative path", "the folder of data sets"])
def test_the_keys_of_edgebed_are_no_data(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment file of others had them cut into samples, and sent to the devices of its fleet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "state" / "edgebed" / "boards"
    folder.mkdir(parents=True)
    (folder / "ca.key").write_text("the key of the boards' CA " * 50)
    (tmp_path / "link.txt").symlink_to(folder / "ca.key")
    named = {
        "its path": str(folder / "ca.key"),
        "a link": str(tmp_path / "link.txt"),
        "a relative path": "../state/edgebed/boards/ca.key",
        "the folder of data sets": "boards/ca.key",
    }
    monkeypatch.setenv("EDGEBED_DATA", str(folder.parent))
    wanted = experiment(data={"name": "text", "path": named[by], "length": 4})
    (tmp_path / "sent").mkdir()
    with pytest.raises(UsageError, match="where Edgebed keeps keys and passwords"):
        prepare_data(wanted, DEVICES, tmp_path, near=tmp_path / "sent" / "e.yaml")
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize("path", ["loop", "nul\0"])
def test_a_path_that_leads_nowhere_is_refused_in_words(path: str, tmp_path: Path) -> None:
    """They ended in tracebacks: an archive of others may hold such a link."""
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match=r"loop|nul"):
        prepare_data(experiment(data={"name": "text", "path": path}), DEVICES, tmp_path, near=tmp_path / "e.yaml")


def test_the_file_of_a_run_names_its_data_whatever_folder_it_is_read_in(npz: Path, tmp_path: Path) -> None:
    wanted = experiment(data={"name": "npz", "path": "n.npz"})
    kept = parse(resolved(wanted, tmp_path / "e.yaml", {"name": "fedavg"}, 1.0).decode(), tmp_path)[0]
    assert kept["data"] == {"name": "npz", "path": str(npz / "n.npz")}


def test_a_batch_far_beyond_all_samples_is_refused(npz: Path) -> None:
    small = {"data": {"name": "npz", "path": "n.npz"}}
    assert prepare_data(experiment(**small, training={"batch_size": 1000}), DEVICES, npz).shards
    with pytest.raises(UsageError, match=r"batch_size is 1001; all devices together have 90 samples"):
        prepare_data(experiment(**small, training={"batch_size": 1001}), DEVICES, npz)
