"""LEAF's FEMNIST files: what is in them comes out, by writer; each file is read once; damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from edgebed.datasets.base import DATASETS, Split
from edgebed.datasets.shard import read_shard
from edgebed.errors import UsageError
from orchestrator.experiment import Experiment
from orchestrator.runs.data import prepare_data

WRITERS, EACH = 12, 20
DIGITS = load_digits()
PIXELS = np.rint(DIGITS.images / 16 * 255).astype(np.uint8)


def leaf(names: list[str], rows: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """LEAF's format: real digits, as bytes divided by 255."""
    return {
        "users": names,
        "num_samples": [len(rows[name]) for name in names],
        "user_data": {
            name: {"x": (PIXELS[rows[name]] / 255).reshape(-1, 64).tolist(), "y": DIGITS.target[rows[name]].tolist()}
            for name in names
        },
    }


def write(folder: Path, by_writer: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """Writer i wrote the digits 20 i .. 20 i + 19; the last four of each are for testing, or the last three writers."""
    names = [f"f{i:04d}_{i:02d}" for i in range(WRITERS)]
    rows = {name: np.arange(EACH * i, EACH * i + EACH) for i, name in enumerate(names)}
    if by_writer:
        parts = {"train": {n: rows[n] for n in names[:-3]}, "test": {n: rows[n] for n in names[-3:]}}
    else:
        parts = {"train": {n: rows[n][:-4] for n in names}, "test": {n: rows[n][-4:] for n in names}}
    for part, held in parts.items():
        (folder / part).mkdir(parents=True)
        order = list(reversed(held))
        for number, some in enumerate((order[:5], order[5:])):
            (folder / part / f"all_data_{number}_{part}.json").write_text(json.dumps(leaf(some, held)))
    return parts["train"]


def load(root: Path, seed: int = 0, **options: Any) -> Split:
    return DATASETS.create({"name": "femnist", **options}).load(root, seed)


def writers_of(split: Split, rows: dict[str, np.ndarray[Any, Any]]) -> list[str]:
    """Whose samples these are, found by their pixels; each writer's must all be there, with their labels."""
    assert split.train_writers is not None
    owners = {PIXELS[row].tobytes(): name for name, held in rows.items() for row in held}
    found = []
    for writer in split.train_writers.unique().tolist():
        mine = split.train_writers == writer
        (name,) = {owners[x.numpy().tobytes()] for x in split.train_x[mine]}
        expected = sorted(zip(map(bytes, PIXELS[rows[name]]), DIGITS.target[rows[name]], strict=True))
        got = zip(map(bytes, split.train_x[mine].numpy()), split.train_y[mine].tolist(), strict=True)
        assert sorted(got) == expected
        found.append(name)
    return found


def test_samples_labels_and_writers_come_out(tmp_path: Path) -> None:
    rows = write(tmp_path / "femnist")
    split = load(tmp_path)
    assert (split.train_x.dtype, split.train_x.shape) == (torch.uint8, (WRITERS * 16, 1, 8, 8))
    assert len(split.test_y) == WRITERS * 4
    assert (len(split.class_names), split.class_names[10], split.class_names[61]) == (62, "A", "z")
    assert writers_of(split, rows) == sorted(rows)


def test_fewer_writers_are_drawn_by_the_seed_and_tested_on_their_own(tmp_path: Path) -> None:
    rows = write(tmp_path / "femnist")
    drawn = {seed: tuple(writers_of(load(tmp_path, seed, writers=4), rows)) for seed in range(6)}
    assert all(len(set(names)) == 4 for names in drawn.values())
    assert len(set(drawn.values())) > 1
    assert writers_of(load(tmp_path, 3, writers=4), rows) == list(drawn[3])
    split = load(tmp_path, 3, writers=4)
    tests = {PIXELS[row].tobytes() for name in drawn[3] for row in range(max(rows[name]) + 1, max(rows[name]) + 5)}
    assert {x.numpy().tobytes() for x in split.test_x} == tests


def test_a_split_by_writer_is_tested_on_the_writers_that_never_train(tmp_path: Path) -> None:
    write(tmp_path / "femnist", by_writer=True)
    split = load(tmp_path, writers=2)
    assert (len(split.train_y), len(split.test_y)) == (2 * EACH, 3 * EACH)


def test_a_balanced_subset_keeps_its_writers(tmp_path: Path) -> None:
    rows = write(tmp_path / "femnist")
    split = load(tmp_path, train_samples=50)
    assert split.train_writers is not None
    owners = {PIXELS[row].tobytes(): i for i, name in enumerate(sorted(rows)) for row in rows[name]}
    assert [owners[x.numpy().tobytes()] for x in split.train_x] == split.train_writers.tolist()


def test_every_file_is_read_once_and_not_every_writer_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "femnist")
    opened: list[Path] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (opened.append(path), read_bytes(path))[1])
    load(tmp_path)
    assert sorted(path.parent.name for path in opened) == ["test", "test", "train", "train"]
    assert len(set(opened)) == 4
    path = tmp_path / "femnist" / "train" / "all_data_1_train.json"
    file = json.loads(path.read_text())
    outcomes = set()
    file["user_data"][file["users"][-1]]["y"] = "no labels"
    path.write_text(json.dumps(file))
    for seed in range(20):
        try:
            outcomes.add(len(load(tmp_path, seed, writers=1).train_y))
        except UsageError as error:
            outcomes.add(str(error).partition(" is damaged")[0])
    assert outcomes == {16, str(path)}


def test_the_natural_partition_keeps_writers_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = write(tmp_path / "femnist")
    monkeypatch.setenv("EDGEBED_DATA", str(tmp_path))
    base = {"name": "t", "fleet": "f", "methods": [{"name": "fedavg"}], "data": {"name": "femnist"}}
    experiment = msgspec.convert({**base, "partition": {"kind": "writer"}}, Experiment)
    prepared = prepare_data(experiment, [f"d{i}" for i in range(5)], tmp_path)
    owners = {PIXELS[row].tobytes(): name for name, held in rows.items() for row in held}
    seen: list[str] = []
    for device, path in prepared.shards.items():
        shard = read_shard(path)
        names = {owners[x.numpy().tobytes()] for x in shard.x}
        assert len(names) in (2, 3)
        assert shard.samples == 16 * len(names) == sum(prepared.label_counts[device])
        seen += names
    assert sorted(seen) == sorted(rows)


def first_of(file: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = file["user_data"][file["users"][0]]
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.pop("user_data"), "user_data"),
        (lambda file: file["user_data"].pop(file["users"][0]), "no samples of writer"),
        (lambda file: first_of(file)["y"].pop(), "with 15 labels"),
        (lambda file: first_of(file)["x"][0].pop(), "inhomogeneous"),
        (lambda file: [row.pop() for row in first_of(file)["x"]], r"\(16, 63\)"),
        (lambda file: first_of(file)["y"].__setitem__(0, 62), "label outside"),
        (lambda file: first_of(file)["x"][0].__setitem__(0, 1.5), "value outside"),
        (lambda file: first_of(file)["x"][0].__setitem__(0, None), "float"),
        (lambda file: first_of(file).update(x=[[0.0] * 9] * 16), "more than one size"),
    ],
)
def test_damage_is_named(tmp_path: Path, change: Any, message: str) -> None:
    write(tmp_path / "femnist")
    path = tmp_path / "femnist" / "train" / "all_data_0_train.json"
    file = json.loads(path.read_text())
    change(file)
    path.write_text(json.dumps(file))
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path)
    assert str(path.parent) in str(caught.value)
    assert caught.value.hint


def test_files_cut_short_twice_there_or_missing_are_named(tmp_path: Path) -> None:
    write(tmp_path / "femnist")
    folder = tmp_path / "femnist" / "train"
    whole = (folder / "all_data_0_train.json").read_bytes()
    (folder / "all_data_0_train.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"all_data_0_train\.json is damaged"):
        load(tmp_path)
    (folder / "all_data_0_train.json").write_bytes(whole)
    (folder / "copy.json").write_bytes(whole)
    with pytest.raises(UsageError, match=r"copy\.json: writer .* twice"):
        load(tmp_path)
    with pytest.raises(UsageError, match=r"no JSON files in .*elsewhere") as caught:
        load(tmp_path, path="elsewhere")
    assert "EDGEBED_DATA" in caught.value.hint
