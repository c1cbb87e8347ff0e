"""Partitions: every sample exactly once, nobody empty, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.datasets.partition import (
    LEAST,
    PARTITIONS,
    Indices,
    Partition,
    Samples,
    by_classes,
    by_layers,
    by_writer,
    dirichlet,
    iid,
    partition,
)
from edgebed.datasets.tree import layer_shares, place
from edgebed.errors import UsageError

LABELS = st.lists(st.integers(0, 9), min_size=40, max_size=200)
SEED = st.integers(0, 2**32)


def whole(shares: list[Indices], samples: int) -> None:
    """Every sample exactly once, and enough for each device."""
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(samples))
    assert min(map(len, shares)) >= LEAST


@given(labels=LABELS, devices=st.integers(1, 20), seed=SEED)
def test_iid_shares_out_every_sample_once_and_evenly(labels: list[int], devices: int, seed: int) -> None:
    shares = iid(labels, devices, seed)
    whole(shares, len(labels))
    assert len(shares) == devices
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(labels=LABELS, devices=st.integers(1, 5), alpha=st.floats(0.5, 100), seed=SEED)
def test_dirichlet_shares_out_every_sample_once(labels: list[int], devices: int, alpha: float, seed: int) -> None:
    shares = dirichlet(labels, devices, alpha, seed)
    whole(shares, len(labels))
    assert len(shares) == devices


DEVICES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_the_seed_decides_and_every_sample_lands_once(kind: str) -> None:
    labels, writers = np.arange(300) % 10, np.arange(300) // 12
    counts = [[7] * 10, [7] * 10, [8] * 10, [8] * 10]
    wanted = Partition(kind=kind, classes=3, counts=counts, layers=[["d"], 2, ["b"]], shares=[1, 2, 3])
    first, again, other = (partition(Samples(labels, DEVICES, seed, writers), wanted) for seed in (1, 1, 2))
    assert len(first) == 4
    whole(first, 300)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def skew(shares: list[Indices], labels: Indices) -> float:
    """Mean distance of the devices' label shares from the whole set's."""
    overall = np.bincount(labels, minlength=10) / len(labels)
    return float(np.mean([np.abs(np.bincount(labels[s], minlength=10) / len(s) - overall).sum() for s in shares]))


def test_a_smaller_alpha_skews_more_and_a_large_one_comes_near_iid() -> None:
    labels = np.arange(5000) % 10
    strong, middle, weak = (skew(dirichlet(labels, 10, alpha, 3), labels) for alpha in (0.1, 0.5, 1000.0))
    assert strong > middle > 5 * weak
    assert weak < 2 * skew(iid(labels, 10, 3), labels)


def test_dirichlet_half_looks_like_table_7_of_the_paper() -> None:
    """Ten clients of CIFAR-10's size: some have next to nothing of a class, others thousands (DTFL, table 7)."""
    labels = np.arange(50_000) % 10
    counts = np.array([np.bincount(labels[s], minlength=10) for s in dirichlet(labels, 10, 0.5, 0)])
    assert counts.sum(0).tolist() == [5000] * 10
    assert 0.05 < (counts < 50).mean() < 0.5  # 0.28 in the paper's table
    assert counts.max() > 1500


TABLE_7 = [
    [372, 2398, 518, 2, 1036, 641, 210, 0, 0, 0],
    [191, 84, 77, 1008, 917, 305, 0, 263, 1295, 736],
    [23, 362, 1281, 40, 358, 1011, 123, 451, 316, 284],
    [97, 1032, 289, 185, 670, 0, 178, 84, 1048, 1467],
    [40, 130, 1209, 186, 5, 57, 3307, 1176, 0, 0],
    [1639, 0, 296, 121, 68, 717, 403, 372, 1932, 0],
    [1, 866, 60, 101, 451, 598, 120, 83, 323, 2316],
    [1307, 15, 428, 0, 290, 2, 356, 1448, 50, 192],
    [849, 0, 88, 910, 1187, 1414, 24, 229, 36, 4],
    [481, 113, 754, 2447, 18, 225, 279, 894, 0, 1],
]
"""Of the DTFL paper: samples per class of its ten clients."""


def test_with_the_cap_shards_are_as_alike_in_size_as_in_table_7() -> None:
    """The paper's ten clients have 4,088 to 6,110 samples. Without the cap the largest of ten has far more."""
    labels = np.arange(50_000) % 10
    largest = {cap: [max(map(len, dirichlet(labels, 10, 0.5, s, cap=cap))) for s in range(20)] for cap in (False, True)}
    assert np.median(largest[True]) < 7000 < np.median(largest[False])
    whole(dirichlet(labels, 10, 0.5, 0, cap=True), 50_000)


@given(labels=LABELS, devices=st.integers(1, 8), alpha=st.floats(0.5, 100), seed=SEED)
def test_with_the_cap_nobody_has_more_than_an_equal_share_and_one_class(
    labels: list[int], devices: int, alpha: float, seed: int
) -> None:
    shares = dirichlet(labels, devices, alpha, seed, cap=True)
    whole(shares, len(labels))
    assert max(map(len, shares)) < len(labels) / devices + np.bincount(labels).max() + 1


def test_counts_give_table_7_itself() -> None:
    labels = np.arange(50_000) % 10
    shares = partition(Samples(labels, [f"d{n}" for n in range(10)], 1), Partition(kind="counts", counts=TABLE_7))
    assert [np.bincount(labels[share], minlength=10).tolist() for share in shares] == TABLE_7
    assert len(np.unique(np.concatenate(shares))) == sum(map(sum, TABLE_7))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([[10] * 10], "1 rows for 2 devices"),
        ([[10] * 10, [10] * 9], "9 counts for device 2 and 10 classes"),
        ([[10] * 10, [0] * 8 + [21, 20]], "31 samples of class 8, there are 30"),
        ([[10] * 10, [1] + [0] * 9], "leave a device with 1 samples"),
        ([], "0 rows for 2 devices"),
    ],
)
def test_counts_that_cannot_be_had_are_refused(counts: list[list[int]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        partition(Samples(np.arange(300) % 10, ["a", "b"], 1), Partition(kind="counts", counts=counts))


def test_many_devices_at_the_papers_skew_are_still_served() -> None:
    whole(dirichlet(np.arange(50_000) % 10, 200, 0.5, 0), 50_000)
    whole(dirichlet(np.arange(50_000) % 10, 100, 0.1, 0), 50_000)


def test_what_cannot_be_had_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="5 training samples for 3 devices"):
        iid([0] * 5, 3, 0)
    with pytest.raises(UsageError, match="over no devices"):
        iid([0] * 5, 0, 0)
    with pytest.raises(UsageError, match="fewer than 2 samples") as caught:
        dirichlet([0] * 40, 20, 0.01, 0)
    assert "larger alpha" in caught.value.hint
    with pytest.raises(UsageError, match="no partition 'pathological'") as caught:
        partition(Samples(np.zeros(5, dtype=np.int64), ["a"], 0), Partition(kind="pathological"))
    assert "classes, counts, dirichlet, iid, layers, writer" in caught.value.hint


# ---- so many classes per device --------------------------------------------------------------------------------------


def classes_of(shares: list[Indices], labels: Indices) -> list[int]:
    return [len(np.unique(labels[share])) for share in shares]


def test_two_classes_on_each_of_a_hundred_devices() -> None:
    """FedPMT: MNIST's size, 100 devices."""
    labels = np.random.default_rng(0).permutation(np.arange(60_000) % 10)
    shares = by_classes(labels, 100, 2, 0)
    whole(shares, 60_000)
    assert classes_of(shares, labels) == [2] * 100
    assert {len(share) for share in shares} == {600}
    pairs = {tuple(np.unique(labels[share])) for share in shares}
    assert len(pairs) > 20  # of 45: who gets which is drawn


@given(
    sizes=st.lists(st.integers(30, 300), min_size=1, max_size=10),
    devices=st.integers(1, 15),
    classes=st.integers(1, 10),
    seed=SEED,
)
def test_every_device_has_exactly_so_many_classes(sizes: list[int], devices: int, classes: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if classes > len(sizes) or devices * classes < len(sizes):
        with pytest.raises(UsageError) as caught:
            by_classes(labels, devices, classes, seed)
        assert "classes" in caught.value.hint
        return
    shares = by_classes(labels, devices, classes, seed)
    whole(shares, len(labels))
    assert classes_of(shares, labels) == [classes] * devices


def test_pieces_are_as_equal_as_the_sizes_of_the_classes_allow() -> None:
    labels = np.repeat([0, 1, 2], [100, 200, 300])
    pieces = [int(n) for share in by_classes(labels, 6, 2, 0) for n in np.unique(labels[share], return_counts=True)[1]]
    assert sorted(pieces) == [50] * 12


@pytest.mark.parametrize(
    ("sizes", "devices", "classes", "message", "hint"),
    [
        ([50, 50], 3, 3, "3 classes per device of 2", "2 or fewer"),
        ([50] * 10, 3, 2, "would leave out some of 10", "4 at least"),
        ([50, 3], 5, 2, "too small for 2 of them", "fewer devices"),
        ([50, 1], 2, 1, "too small for 1 of them", "more samples"),
    ],
)
def test_classes_that_cannot_be_dealt_out(
    sizes: list[int], devices: int, classes: int, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        by_classes(np.repeat(np.arange(len(sizes)), sizes), devices, classes, 0)
    assert hint in caught.value.hint


# ---- layers of a tree ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "percent"),
    [("equal", (100 / 3,) * 3), ("biased", (14.3, 28.6, 57.1)), ("highly_biased", (3.4, 19.9, 76.7))],
)
def test_layers_hold_what_the_paper_gives_them(shares: str, percent: tuple[float, ...]) -> None:
    """Seven nodes and CIFAR-10's size: the leaves hold the least; a layer's nodes hold the same; labels are IID."""
    labels = np.arange(50_000) % 10
    layers = by_layers(labels, [4, 2, 1], layer_shares(shares, 3), 0)
    whole([part for layer in layers for part in layer], 50_000)
    held = [sum(map(len, layer)) / 500 for layer in layers]
    assert held == pytest.approx(percent, abs=0.01)
    assert all(max(map(len, layer)) - min(map(len, layer)) <= 1 for layer in layers)
    assert skew([layers[2][0]], labels) < 0.05


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.5, 2), min_size=4, max_size=4),
    seed=SEED,
)
def test_layers_lose_no_sample(sizes: list[int], weights: list[float], seed: int) -> None:
    layers = by_layers([0] * 200, sizes, weights[: len(sizes)], seed)
    whole([part for layer in layers for part in layer], 200)
    assert [len(layer) for layer in layers] == sizes


def test_devices_are_placed_by_name_or_in_the_order_of_the_fleet() -> None:
    names = ["n1", "cloud", "n2", "e1"]
    assert place([["n1", "n2"], ["e1"], ["cloud"]], names) == [["n1", "n2"], ["e1"], ["cloud"]]
    assert place([2, 1, 1], names) == [["n1", "cloud"], ["n2"], ["e1"]]
    assert place([2, 1, ["cloud"]], names) == [["n1", "n2"], ["e1"], ["cloud"]]
    wanted = Partition(kind="layers", layers=[2, 1, ["cloud"]], shares="biased")
    shares = partition(Samples(np.arange(700) % 10, names, 0), wanted)
    assert [len(share) for share in shares] == [50, 400, 50, 200]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "do not hold each"),
        ([2, 1], "do not hold each"),
        ([2, 2, 1], "do not hold each"),
        ([4, 0], "do not hold each"),
        ([5, -1], "do not hold each"),
        ([["a", "a"], 2], "do not hold each"),
        ([["a", "x"], 2], "name x"),
    ],
)
def test_layers_that_do_not_fit_the_fleet(layers: list[int | list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        place(layers, DEVICES)
    assert caught.value.hint


def test_layers_without_enough_shares_or_samples() -> None:
    with pytest.raises(UsageError, match="for 3 layers, there are 2"):
        layer_shares("biased", 2)
    with pytest.raises(UsageError, match="for 1 layers, there are 2"):
        layer_shares([1], 2)
    with pytest.raises(UsageError, match="with 0"):
        by_layers([0] * 20, [4, 2, 1], layer_shares("highly_biased", 3), 0)


# ---- writers ---------------------------------------------------------------------------------------------------------


@given(writers=st.lists(st.integers(0, 30), min_size=60, max_size=200), devices=st.integers(1, 5), seed=SEED)
def test_a_writer_is_on_one_device_and_devices_have_as_many(writers: list[int], devices: int, seed: int) -> None:
    who = np.asarray(writers)
    names = len(np.unique(who))
    if names < 2 * devices:  # two writers have two samples
        return
    shares = by_writer(writers, devices, seed)
    whole(shares, len(writers))
    counts = [len(np.unique(who[share])) for share in shares]
    assert sum(counts) == names
    assert max(counts) - min(counts) <= 1


def test_writers_that_cannot_be_dealt_out() -> None:
    with pytest.raises(UsageError, match="2 writers for 3 devices"):
        by_writer([0] * 10 + [1] * 10, 3, 0)
    with pytest.raises(UsageError, match="wrote 1 samples"):
        by_writer([0] * 10 + [1], 2, 0)
    with pytest.raises(UsageError, match="who wrote") as caught:
        partition(Samples(np.zeros(10, dtype=np.int64), ["a"], 0), Partition(kind="writer"))
    assert "femnist" in caught.value.hint
