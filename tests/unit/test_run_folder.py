"""Checkpoints: what was saved comes back, whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from edgebed.errors import FileError, UsageError
from orchestrator.rounds.progress import Progress
from orchestrator.runs.folder import RunFolder


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    assert files.restore() is None
    for number in (1, 2):
        weights = {"md1.weight": torch.full((2, 3), float(number)), "md1.count": torch.tensor(number)}
        files.save(weights, Progress(round=number, method={"x": [1, 2]}), {"md1.weight": torch.ones(1) * number})
    saved = files.restore()
    assert saved is not None
    assert (saved.progress.round, saved.progress.method) == (2, {"x": [1, 2]})
    assert {name: value.tolist() for name, value in saved.weights.items()} == {
        "md1.weight": [[2.0] * 3] * 2,
        "md1.count": 2,
    }
    assert saved.tensors["md1.weight"].tolist() == [2.0]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint.previous.safetensors", "checkpoint.safetensors"]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    files.save({"a": torch.ones(100)}, Progress(), {})
    files.checkpoint.write_bytes(files.checkpoint.read_bytes()[:-40])
    with pytest.raises(UsageError, match=r"checkpoint\.safetensors is damaged"):
        files.restore()


def save(files: RunFolder, rounds: int) -> None:
    files.save({"a": torch.full((100,), float(rounds))}, Progress(round=rounds), {})


@pytest.mark.parametrize("keep", [0, 1, 7, 100, -1, None])
def test_of_a_damaged_or_missing_checkpoint_the_one_before_is_taken_and_that_is_said(
    tmp_path: Path, keep: int | None
) -> None:
    files, said = RunFolder(tmp_path), list[str]()
    save(files, 1)
    save(files, 2)
    if keep is None:
        files.checkpoint.unlink()  # killed between the two renames
    else:
        files.checkpoint.write_bytes(files.checkpoint.read_bytes()[:keep])
    saved = files.restore(said.append)
    assert saved is not None
    assert (saved.progress.round, float(saved.weights["a"][0])) == (1, 1.0)
    assert files.progress().round == 1
    (line,) = said
    assert "checkpoint.safetensors is " in line
    assert "after round 1" in line


def test_a_full_disk_leaves_both_checkpoints_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFolder(tmp_path)
    save(files, 1)
    save(files, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"checkpoint\.safetensors: No space left") as failed:
        save(files, 3)
    assert failed.value.exit_code == 6
    assert "make room" in failed.value.hint
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_checkpoint_is_on_the_disk_before_it_takes_the_place_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, order = RunFolder(tmp_path), list[str]()
    save(files, 1)
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(number: int) -> None:
        order.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{number}')).name}")
        fsync(number)

    def watched_replace(path: Path, target: Path) -> Path:
        order.append(f"rename {path.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    save(files, 2)
    assert order == [
        "fsync checkpoint.part",
        "rename checkpoint.safetensors",
        "rename checkpoint.part",
        f"fsync {tmp_path.name}",
    ]
