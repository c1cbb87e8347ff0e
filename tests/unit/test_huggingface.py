"""Data sets that Hugging Face's library reads: what it wrote comes out again, and what is wrong is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from edgebed.datasets.base import DATASETS, Split
from edgebed.errors import PluginError, UsageError
from edgebed.wire.settings import LearningTask

KINDS = ["cat", "dog", "cat", "dog", "cat"] * 4


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def load(root: Path, **options: Any) -> Split:
    return DATASETS.create({"name": "huggingface", **options}).load(root, 1)


def equal(one: Split, other: Split) -> bool:
    names = ("train_x", "train_y", "test_x", "test_y")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names) and (
        (one.class_names, one.mean, one.std) == (other.class_names, other.mean, other.std)
    )


def pictures(count: int) -> list[Image.Image]:
    """Picture i is of the one grey value 10 i."""
    return [Image.fromarray(np.full((5, 5, 3), 10 * i, np.uint8)) for i in range(count)]


def saved_pictures(folder: Path) -> Path:
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    parts = {"train": 6, "test": 2}
    datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"image": pictures(n), "label": [i % 2 for i in range(n)]}, kinds)
            for name, n in parts.items()
        }
    ).save_to_disk(str(folder / "animals"))
    return folder


def test_pictures_of_a_saved_folder_come_out_with_their_answers(tmp_path: Path) -> None:
    split = load(saved_pictures(tmp_path), path="animals", size=4)
    assert (split.task, split.class_names) == (LearningTask((3, 4, 4), 2), ["cat", "dog"])
    assert split.train_x.dtype == torch.uint8
    assert [int(x.unique()) for x in split.train_x] == [0, 10, 20, 30, 40, 50]
    assert split.train_y.tolist() == [0, 1, 0, 1, 0, 1]
    assert [int(x.unique()) for x in split.test_x] == [0, 10]
    assert load(tmp_path, path="animals", size=4, grey=True).train_x.shape == (6, 1, 4, 4)


def test_only_the_pictures_in_use_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgebed.datasets import huggingface

    read: list[bytes] = []
    monkeypatch.setattr(
        huggingface, "picture", lambda file, **_: read.append(file) or torch.zeros(3, 4, 4, dtype=torch.uint8)
    )
    load(saved_pictures(tmp_path), path="animals", train_samples=2, test_samples=1)
    assert len(read) == 3


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_a_file_of_rows_is_learned_as_the_data_set_table_learns_it(tmp_path: Path, suffix: str) -> None:
    frame = pd.DataFrame({"size": range(20), "colour": ["red", "blue"] * 10, "kind": KINDS})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    table = datasets.Dataset.from_pandas(frame)
    table.save_to_disk(str(tmp_path / "saved"))
    next((tmp_path / "saved").glob("*.arrow")).rename(tmp_path / "a.arrow")
    wanted = DATASETS.create({"name": "table", "path": "a.parquet", "target": "kind"}).load(tmp_path, 1)
    assert equal(load(tmp_path, path=f"a.{suffix}", target="kind"), wanted)


def test_a_part_that_was_saved_alone_is_divided(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"size": range(20), "label": [i % 2 for i in range(20)]})
    table.save_to_disk(str(tmp_path / "rows"))
    split = load(tmp_path, path="rows", test_share=0.25)
    assert (len(split.train_y), len(split.test_y)) == (15, 5)
    both = torch.cat((split.train_x, split.test_x)).flatten()
    assert both.sort().values.tolist() == list(range(20))
    assert torch.equal(split.train_x.flatten() % 2, split.train_y.float())


def test_characters_of_a_text_are_tokens(tmp_path: Path) -> None:
    train = {"text": ["abca", "c", "", "bb"], "label": ["x", "y", "x", "y"]}
    test = {"text": ["az", "b"], "label": ["x", "y"]}
    parts = {"train": datasets.Dataset.from_dict(train), "test": datasets.Dataset.from_dict(test)}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "texts"))
    split = load(tmp_path, path="texts", column="text", length=3)
    assert split.task == LearningTask((3,), 2, vocabulary=4)
    assert split.train_x.tolist() == [[1, 2, 3], [3, 0, 0], [0, 0, 0], [2, 2, 0]]
    assert split.test_x.tolist() == [[1, 0, 0], [2, 0, 0]]  # no training text has a z
    assert split.train_y.tolist() == [0, 1, 0, 1]


def test_a_name_of_the_hub_goes_to_the_library_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    part = datasets.Dataset.from_dict({"size": range(10), "label": [i % 2 for i in range(10)]})
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *names, **options: asked.append((names, options)) or datasets.DatasetDict(train=part, test=part),
    )
    made = DATASETS.create({"name": "huggingface", "hub": "some.one/data-1", "config": "small", "revision": "a1"})
    made.load(tmp_path, 1)
    assert asked == [(("some.one/data-1", "small"), {"revision": "a1"})]
    assert made.title == "some.one/data-1"


def test_the_hub_out_of_reach_is_told_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"some\.one/data-1 cannot be loaded") as caught:
        load(tmp_path, hub="some.one/data-1")
    assert "`path`" in caught.value.hint


def one_file(folder: Path, **columns: Any) -> Path:
    datasets.Dataset.from_dict(columns).to_parquet(str(folder / "a.parquet"))
    return folder


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"train": "trian"}, "no part 'trian'; did you mean 'train'", "train"),
        ({"test": "exam"}, "no part 'exam'", "train"),
        ({"target": "lable"}, "no column 'lable' .*; did you mean 'label'", "two of: size, list, label"),
        ({"column": "text"}, "no column 'text'", "size"),
        ({"column": "label"}, "no column 'label' beside others", "size"),
        ({}, "list holds neither numbers, texts nor classes", "`column`"),
        ({"target": "list", "column": "size"}, "list holds neither", "`target`"),
        ({"target": "size", "column": "list"}, "list holds neither", "`column`"),
        ({"path": "nowhere.parquet"}, "is no file or folder", "set path"),
        ({"path": "a.xyz"}, "a.xyz cannot be loaded", "data.md"),
        ({"path": "broken.parquet"}, "broken.parquet cannot be loaded", "data.md"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, options: dict[str, Any], message: str, hint: str) -> None:
    one_file(tmp_path, size=range(4), list=[[1.0, 2.0]] * 4, label=["a", "b"] * 2)
    (tmp_path / "a.xyz").write_text("a\n")
    (tmp_path / "broken.parquet").write_text("PAR1 and no more")
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, **{"path": "a.parquet", **options})
    assert hint in caught.value.hint


def test_answers_that_are_kept_secret_are_missing(tmp_path: Path) -> None:
    kinds = datasets.Features({"size": datasets.Value("int64"), "label": datasets.ClassLabel(names=["a", "b"])})
    train = datasets.Dataset.from_dict({"size": range(4), "label": [0, 1, 0, 1]}, kinds)
    test = datasets.Dataset.from_dict({"size": range(2), "label": [-1, -1]}, kinds)
    datasets.DatasetDict(train=train, test=test, validation=train).save_to_disk(str(tmp_path / "contest"))
    with pytest.raises(UsageError, match=r"2 of 6 rows lack values, .* in label"):
        load(tmp_path, path="contest")
    assert load(tmp_path, path="contest", test="validation").test_y.tolist() == [0, 1, 0, 1]


def test_a_folder_that_is_called_as_a_data_set_of_the_hub_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("a,label\n1,x\n2,y\n")
    with pytest.raises(UsageError, match="there is a 'mine' in this folder"):
        load(tmp_path, hub="mine")


@pytest.mark.parametrize("options", [{}, {"path": "a", "hub": "b"}, {"hub": "../keys"}, {"hub": "/etc/passwd"}])
def test_data_are_named_once_and_the_hub_by_a_name(options: dict[str, str]) -> None:
    with pytest.raises(PluginError):
        DATASETS.create({"name": "huggingface", **options})


def test_without_the_library_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match="needs the package datasets") as caught:
        load(tmp_path, hub="some.one/data-1")
    assert "pip install" in caught.value.hint


def test_data_of_others_name_no_pictures_of_this_host(tmp_path: Path) -> None:
    """A file of rows may hold paths in place of pictures. Devices would get what they lead to."""
    (tmp_path / "theirs").mkdir()
    for place in (tmp_path / "mine.png", tmp_path / "theirs" / "own.png"):
        pictures(1)[0].save(place)
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})

    def save(file: Path) -> None:
        rows = [{"bytes": None, "path": str(file)}] * 10
        table = datasets.Dataset.from_dict({"image": rows, "label": [0, 1] * 5}, kinds)
        table.to_parquet(str(tmp_path / "theirs" / "a.parquet"))

    save(tmp_path / "theirs" / "own.png")
    assert load(tmp_path, path="theirs/a.parquet", size=4).train_x.shape == (8, 3, 4, 4)
    for file in (tmp_path / "mine.png", tmp_path / "theirs" / ".." / "mine.png"):
        save(file)
        with pytest.raises(UsageError, match="which is not its own"):
            load(tmp_path, path="theirs/a.parquet", size=4)


def test_a_folder_behind_a_link_is_its_own_and_a_link_that_leads_out_of_it_is_not(tmp_path: Path) -> None:
    """Archives and repositories of others may hold links; the library resolves the way to the folder."""
    for i, each in enumerate(pictures(10)):
        file = tmp_path / "disk" / "animals" / ("cat", "dog")[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        each.save(file)
    (tmp_path / "data").symlink_to(tmp_path / "disk", target_is_directory=True)
    assert load(tmp_path / "data", path="animals", size=4).train_x.shape == (8, 3, 4, 4)
    file.rename(tmp_path / "mine.png")
    file.symlink_to(tmp_path / "mine.png")
    with pytest.raises(UsageError, match="which is not its own") as refused:
        load(tmp_path / "data", path="animals", size=4)
    assert "links" in refused.value.hint
