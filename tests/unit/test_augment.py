"""Augmentation: what a sample may become, the same for the same seed, and nothing by default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from edgebed.datasets.augment import cropped, cut_out, draws
from edgebed.datasets.shard import Shard, read_shard, write_shard
from edgebed.errors import WireError
from edgebed.methods.parts.local_training import make_optimizer
from edgebed.wire.messages import Assignment, Task, decode_header, encode
from edgebed.wire.settings import Augment, Optimizer

SIDE = 8
ALL = Augment(crop=2, flip=True, cutout=4)


def made(folder: Path, samples: int = 40) -> Shard:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(1, 256, (samples, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    write_shard(folder / "s", x, torch.arange(samples) % 4, [0.5] * 3, [0.25] * 3, 4)
    return read_shard(folder / "s")


def images(count: int) -> torch.Tensor:
    return torch.arange(1, count * 2 * SIDE * SIDE + 1, dtype=torch.float32).view(count, 2, SIDE, SIDE)


def test_a_crop_is_a_window_of_the_padded_sample_perhaps_mirrored() -> None:
    x, drawn = images(60), draws(60, 5, 0)
    padded = functional.pad(x, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, cropped(x, drawn, ALL), strict=True):
        windows = {
            (top, left, flip): before[:, top : top + SIDE, left : left + SIDE].flip(2 if flip else ())
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
        }
        (place,) = [place for place, window in windows.items() if torch.equal(window, after)]
        seen.add(place)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(5))
    assert {flip for _, _, flip in seen} == {False, True}


def test_without_a_flip_nothing_is_mirrored_and_without_a_crop_nothing_moves() -> None:
    x, drawn = images(20), draws(20, 5, 0)
    flipped = cropped(x, drawn, Augment(flip=True))
    assert all(torch.equal(a, b) or torch.equal(a, b.flip(2)) for a, b in zip(flipped, x, strict=True))
    assert not torch.equal(flipped, x)


def test_cutout_blanks_a_square_less_what_lies_outside() -> None:
    x = torch.ones(200, 3, SIDE, SIDE)
    blank = (cut_out(x, draws(200, 5, 0), ALL) == 0).sum((2, 3))
    assert torch.equal(blank[:, 0], blank[:, 2])
    assert int(blank.max()) == 16
    assert int(blank.min()) == 4  # in a corner


def test_the_seed_and_the_epoch_decide_and_batches_do_not(tmp_path: Path) -> None:
    shard = made(tmp_path)
    whole, again, other = ([x for x, _ in shard.batches(40, 2, 0, seed, ALL)] for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    assert not torch.equal(whole[0], other[0])
    assert not torch.equal(whole[0].sort(0).values, whole[1].sort(0).values)  # another epoch, other changes
    parts = torch.cat([x for x, _ in shard.batches(7, 1, 0, 3, ALL)])
    assert torch.equal(parts, whole[0])


def test_by_default_samples_are_as_they_are(tmp_path: Path) -> None:
    shard = made(tmp_path)
    ((plain, labels),), ((same, same_labels),) = (shard.batches(40, 1, 0, 3, *how) for how in ((), (Augment(),)))
    ((changed, changed_labels),) = shard.batches(40, 1, 0, 3, ALL)
    assert torch.equal(plain, same)
    assert torch.equal(labels, same_labels)
    assert torch.equal(labels, changed_labels)
    assert not torch.equal(plain, changed)


def test_amsgrad_is_torchs_and_of_adam_alone() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3))]
    assert make_optimizer(parameters, Optimizer(amsgrad=True)).defaults["amsgrad"] is True
    assert make_optimizer(parameters, Optimizer()).defaults["amsgrad"] is False
    with pytest.raises(ValueError, match="amsgrad with sgd"):
        Optimizer("sgd", amsgrad=True)


def test_a_task_carries_it_and_what_cannot_be_is_refused() -> None:
    assignment = Assignment("a", {}, 4, (1, 6, 6), 1, "head", augment=ALL, optimizer=Optimizer(amsgrad=True))
    data = encode(Task("t", "r", 0, assignment))
    assert decode_header(data) == Task("t", "r", 0, assignment)
    with pytest.raises(WireError):
        decode_header(data.replace(b"\xa4adam", b"\xa3sgd"))
