"""Partitions: every sample exactly once, nobody empty, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.datasets.partition import LEAST, PARTITIONS, Indices, dirichlet, iid, partition
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


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_the_seed_decides(kind: str) -> None:
    labels = np.arange(300) % 10
    first, again, other = (partition(kind, labels, 4, alpha=0.5, seed=seed) for seed in (1, 1, 2))
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


def test_many_devices_at_the_papers_skew_are_still_served() -> None:
    whole(dirichlet(np.arange(50_000) % 10, 200, 0.5, 0), 50_000)
    whole(dirichlet(np.arange(50_000) % 10, 100, 0.1, 0), 50_000)


def test_what_cannot_be_had_is_refused_with_a_cure() -> None:
    with pytest.raises(UsageError, match="5 training samples for 3 devices"):
        iid([0] * 5, 3, 0)
    with pytest.raises(UsageError, match="over no devices"):
        iid([0] * 5, 0, 0)
    with pytest.raises(UsageError, match="fewer than 2 samples") as caught:
        dirichlet([0] * 40, 20, 0.01, 0)
    assert "larger alpha" in caught.value.cure
    with pytest.raises(UsageError, match="no partition 'pathological'") as caught:
        partition("pathological", [0] * 5, 1, alpha=1, seed=0)
    assert "dirichlet, iid" in caught.value.cure
