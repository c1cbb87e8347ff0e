"""Shards: what is written is read, in batches whose order is fixed; damage is named."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from edgebed.datasets.shard import (
    About,
    Shard,
    normalise,
    read_shard,
    write_idle_shard,
    write_shard,
)
from edgebed.errors import UsageError
from edgebed.wire.order import batch_bounds, shuffled
from edgebed.wire.settings import LearningTask


def numbered(samples: int) -> Shard:
    """Sample i has the value i everywhere and the label i % 3."""
    x = torch.arange(samples, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return Shard(x, torch.arange(samples) % 3, About(2, (0.0,), (1.0,), 3), "")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    x = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    y = torch.tensor([0, 1, 1, 3, 1])
    path = tmp_path / "dev.safetensors"
    write_shard(path, x, y, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], 5)
    shard = read_shard(path)
    assert torch.equal(shard.x, x)
    assert torch.equal(shard.y, y)
    assert (shard.samples, shard.task.classes, shard.label_counts) == (5, 5, [1, 3, 0, 1, 0])
    assert path.stat().st_mode & 0o444 == 0o444  # an agent in a container is another user
    assert shard.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    (batch,) = shard.batches(10, 1, 0, seed=0)
    order = shuffled(5, 0, 0)
    expected = (x[order] / 255.0 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([1.0, 2, 3]).view(
        3, 1, 1
    )
    assert torch.equal(batch[1], y[order])
    torch.testing.assert_close(batch[0], expected)


@given(samples=st.integers(1, 300), size=st.integers(1, 100), epochs=st.integers(1, 3), seed=st.integers(0, 2**48 - 1))
def test_every_epoch_gives_every_sample_once_and_no_lonely_last_batch(
    samples: int, size: int, epochs: int, seed: int
) -> None:
    shard = numbered(samples)
    batches = list(shard.batches(size, epochs, 0, seed))
    per_epoch = len(batch_bounds(samples, size))
    assert len(batches) == epochs * per_epoch
    for epoch in range(epochs):
        part = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        seen = torch.cat([x[:, 0, 0, 0] for x, _ in part]).long()
        assert torch.equal(seen.sort().values, torch.arange(samples))
        assert torch.equal(torch.cat([y for _, y in part]), seen % 3)
        assert all(len(y) == size for _, y in part[:-1])
        assert len(part[-1][1]) <= size + 1
        assert len(part[-1][1]) > 1 or samples == 1 or size == 1


@given(samples=st.integers(1, 300), size=st.integers(1, 100), most=st.integers(1, 10))
def test_max_batches_takes_the_first(samples: int, size: int, most: int) -> None:
    assert batch_bounds(samples, size, most) == batch_bounds(samples, size)[:most]


def test_the_order_is_the_same_on_every_machine() -> None:
    """Pinned: a change here would make devices of two versions train in two orders."""
    assert shuffled(8, seed=7, epoch=0).tolist() == [4, 1, 6, 3, 2, 7, 5, 0]
    assert shuffled(8, seed=7, epoch=1).tolist() == [3, 1, 6, 2, 5, 4, 0, 7]
    assert shuffled(8, seed=8, epoch=0).tolist() == [4, 3, 1, 6, 7, 2, 5, 0]


def test_an_idle_shard_gives_batches(tmp_path: Path) -> None:
    write_idle_shard(tmp_path / "idle", samples=4, task=LearningTask((3, 32, 32), 10))
    ((x, y),) = read_shard(tmp_path / "idle").batches(4, 1, 0, 0)
    assert (x.shape, y.shape) == ((4, 3, 32, 32), (4,))
    assert x.std() > 0.5


def test_float_samples_are_not_scaled() -> None:
    assert normalise(torch.full((1, 1, 1, 1), 3.0), (1.0,), (2.0,)).item() == 1.0
    assert normalise(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), (0.0,), (2.0,)).item() == 0.5


GOOD_X, GOOD_Y = torch.zeros(4, 2, 3, 3), torch.tensor([0, 1, 0, 1])
NAN = float("nan")


@pytest.mark.parametrize(
    ("x", "y", "mean", "std", "classes", "message"),
    [
        (GOOD_X[0], GOOD_Y, (0, 0), (1, 1), 2, "samples of shape"),
        (GOOD_X[:0], GOOD_Y[:0], (0, 0), (1, 1), 2, "samples of shape"),
        (GOOD_X.double(), GOOD_Y, (0, 0), (1, 1), 2, "float64"),
        (GOOD_X, GOOD_Y[:3], (0, 0), (1, 1), 2, "labels of shape"),
        (GOOD_X, GOOD_Y.int(), (0, 0), (1, 1), 2, "int32"),
        (GOOD_X, GOOD_Y, (0, 0), (1, 1), 1, r"labels 0\.\.1 for 1"),
        (GOOD_X, GOOD_Y - 1, (0, 0), (1, 1), 2, r"labels -1\.\.0"),
        (GOOD_X, GOOD_Y, (0, 0), (1, 1), 10**12, "for 1000000000000 classes"),
        (GOOD_X, GOOD_Y, (0,), (1,), 2, "for 2 channels"),
        (GOOD_X, GOOD_Y, (0, 0), (1, 0), 2, "for 2 channels"),
        (GOOD_X, GOOD_Y, (0, NAN), (1, 1), 2, "nan"),
    ],
)
def test_data_that_no_agent_could_train_on_is_neither_written_nor_read(
    tmp_path: Path,
    x: torch.Tensor,
    y: torch.Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    classes: int,
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        write_shard(tmp_path / "a", x, y, mean, std, classes)
    assert not (tmp_path / "a").exists()
    forged = {"version": 3, "mean": mean, "std": std, "classes": classes}
    save_file({"x": x, "y": y}, tmp_path / "b", {"edgebed-shard": msgspec.json.encode(forged).decode()})
    with pytest.raises(UsageError) as caught:
        read_shard(tmp_path / "b")
    assert str(tmp_path / "b") in str(caught.value)
    assert caught.value.hint


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("shard") / "good"
    write_shard(path, GOOD_X, GOOD_Y, (0, 0), (1, 1), 2)
    return path.read_bytes()


@given(data=st.data())
def test_damaged_files_are_named_and_never_crash(
    tmp_path_factory: pytest.TempPathFactory, good_bytes: bytes, data: st.DataObject
) -> None:
    """Cut short, one byte changed, or bytes that never were a shard: UsageError, or a shard that can be trained on."""
    damaged = data.draw(
        st.one_of(
            st.integers(0, len(good_bytes) - 1).map(lambda n: good_bytes[:n]),
            st.tuples(st.integers(0, len(good_bytes) - 1), st.integers(0, 255)).map(
                lambda p: good_bytes[: p[0]] + bytes([p[1]]) + good_bytes[p[0] + 1 :]
            ),
            st.binary(max_size=200),
        )
    )
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(damaged)
    with contextlib.suppress(UsageError):
        shard = read_shard(path)
        assert sum(len(y) for _, y in shard.batches(2, 1, 0, 0)) == shard.samples


@pytest.mark.parametrize(
    "about",
    [
        "",
        "[]",
        '{"version": 4, "mean": [0, 0], "std": [1, 1], "classes": 2}',
        '{"version": 2, "mean": [0, 0], "std": [1, 1], "classes": 2}',
        '{"version": 3, "mean": "x"}',
        "[" * 5000,
    ],
)
def test_a_forged_description_is_refused(tmp_path: Path, about: str) -> None:
    save_file({"x": GOOD_X, "y": GOOD_Y}, tmp_path / "a", {"edgebed-shard": about})
    with pytest.raises(UsageError, match=r"damaged|version [24]"):
        read_shard(tmp_path / "a")


def test_missing_files_and_foreign_safetensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_shard(tmp_path / "none")
    save_file({"x": GOOD_X}, tmp_path / "a")
    with pytest.raises(UsageError, match="no shard"):
        read_shard(tmp_path / "a")
