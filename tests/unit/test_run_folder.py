"""Checkpoints: what was saved comes back, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgebed.errors import UsageError
from orchestrator.rounds.loop import Progress
from orchestrator.run_folder import RunFolder


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
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    files.save({"a": torch.ones(100)}, Progress(), {})
    files.checkpoint.write_bytes(files.checkpoint.read_bytes()[:-40])
    with pytest.raises(UsageError, match=r"checkpoint\.safetensors is damaged"):
        files.restore()
