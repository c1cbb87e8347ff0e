"""Pieces of work: what they are called, what they cost, and what is measured of them."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.device.pieces import (
    BY_INDEX,
    BY_LAYERS,
    KINDS,
    MOST_KEPT,
    RECORDED,
    Kinds,
    Pieces,
    batch_s,
    factor_at,
    seconds,
)
from edgebed.wire.messages import Cost


def test_a_recorded_size_costs_what_was_recorded_and_others_lie_on_a_line() -> None:
    cost = Cost(((5, 0.01), (32, 0.04), (64, 0.06)))
    assert seconds(cost, 5) == 0.01
    assert seconds(cost, 32) == pytest.approx(0.04)
    assert seconds(cost, 48) == pytest.approx(0.05)
    assert seconds(cost, 96) == pytest.approx(0.08)  # the line through the two largest goes on


def test_sizes_that_differ_little_tell_nothing_of_others() -> None:
    cost = Cost(((31, 0.0131), (32, 0.0129)))
    assert seconds(cost, 31.5) == pytest.approx(0.0130)
    assert seconds(cost, 256) == pytest.approx(8 * 0.0129)
    assert seconds(cost, 8) == pytest.approx(0.0131 * 8 / 31)


def test_a_single_recorded_size_is_scaled() -> None:
    assert seconds(Cost(((32, 0.04),)), 8) == pytest.approx(0.01)


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e3)), min_size=1, max_size=6, unique_by=lambda p: round(p[0])),
    st.floats(0, 1e9),
)
def test_no_piece_costs_less_than_nothing(points: list[tuple[float, float]], size: float) -> None:
    assert seconds(Cost(tuple(sorted(points))), size) >= 0


def test_batches_that_upload_are_told_from_those_that_do_not() -> None:
    kinds = Kinds()
    assert [kinds.uploading([32]), kinds.ended(32)] == [("first forward", 32), ("first rest", 32)]
    assert [kinds.uploading([5]), kinds.ended(5)] == [("forward", 5), ("rest", 5)]
    assert kinds.ended(5) == ("batch", 5)
    assert kinds.finished() == ("finish", 1)


def test_an_upload_without_a_new_batch_has_a_kind_of_its_own() -> None:
    kinds = Kinds()
    kinds.uploading([8])
    assert kinds.uploading([]) == ("more", 8)
    assert kinds.ended(8) == ("first rest", 8)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_piece_begins_where_the_one_before_ended() -> None:
    clock = Clock()
    pieces = Pieces(clock, {})
    clock.now = 0.5
    pieces.done("decode", 100)
    clock.now = 0.75
    pieces.done("batch", 8)
    clock.now = 1.0
    pieces.done("batch", 8)
    decode, batch = pieces.times()
    assert (decode.kind, decode.size, decode.count, decode.cpu_s) == ("decode", 100, 1, 0.5)
    assert (batch.count, batch.cpu_s, batch.each_us) == (2, 0.5, (250_000, 250_000))
    assert pieces.reference_s == {}


def test_the_times_of_many_pieces_are_summed_and_the_first_are_kept() -> None:
    clock = Clock()
    pieces = Pieces(clock, {})
    for _ in range(MOST_KEPT + 10):
        clock.now += 0.001
        pieces.done("batch", 8)
    (batch,) = pieces.times()
    assert batch.count == MOST_KEPT + 10
    assert len(batch.each_us) == MOST_KEPT
    assert batch.cpu_s == pytest.approx(clock.now)


def test_what_a_reference_takes_is_told_by_origin() -> None:
    clock = Clock()
    pieces = Pieces(clock, {"batch": Cost(((8, 0.2),)), "update": Cost(((100, 0.1),), BY_LAYERS)}, index=3.0)
    clock.now = 1.0
    assert pieces.done("batch", 8) == pytest.approx(0.2)
    assert pieces.done("update", 200) == pytest.approx(0.2)
    clock.now = 1.5
    assert pieces.done("finish", 1) == pytest.approx(1.5)  # not known: its own 0.5 s, three times
    assert pieces.reference_s == pytest.approx({RECORDED: 0.2, BY_LAYERS: 0.2, BY_INDEX: 1.5})


def test_all_kinds_are_known() -> None:
    kinds = Kinds()
    made = {kinds.uploading([1])[0], kinds.ended(1)[0], kinds.ended(1)[0], kinds.uploading([])[0], kinds.finished()[0]}
    assert made <= KINDS


def test_a_batch_that_uploads_costs_its_two_parts_where_both_are_known() -> None:
    parts = {"forward": Cost(((32, 0.01),)), "rest": Cost(((32, 0.03),))}
    assert batch_s(parts, 32) == pytest.approx(0.04)
    assert batch_s({"forward": parts["forward"], "batch": parts["rest"]}, 32) is None


# ---- pieces that vary ----

SPREAD = (0.7, 0.9, 1.4, 2.0, 2.0)


def drawn(seed: int, lag: float = 0.0, count: int = 20_000) -> list[float]:
    cost = Cost(((32, 0.01),), RECORDED, SPREAD, lag)
    pieces = Pieces(Clock(), {"batch": cost, "rest": cost}, seed=seed)
    return [pieces.charge("batch", 32) / 0.01 for _ in range(count)]


def correlation(values: list[float]) -> float:
    middle, spread = fmean(values), pstdev(values)
    return fmean((a - middle) * (b - middle) for a, b in pairwise(values)) / spread**2


def test_pieces_vary_as_those_of_the_reference_did() -> None:
    for lag in (0.0, 0.7):
        factors = sorted(drawn(1, lag))
        for share, factor in ((0.5, 0.9), (0.9, 1.4), (0.99, 2.0)):
            assert factors[int(share * len(factors))] == pytest.approx(factor, rel=0.04)
        assert factors[0] >= 0.7
        assert factors[-1] <= 2.0


@pytest.mark.parametrize("lag", [-0.2, 0.0, 0.6])
def test_a_piece_follows_the_one_before_as_it_did_there(lag: float) -> None:
    assert correlation(drawn(2, lag)) == pytest.approx(lag, abs=0.08)


def test_a_lag_of_one_is_no_error() -> None:
    assert len(set(drawn(3, lag=1.0, count=50))) > 1


def test_the_seed_of_the_task_fixes_every_piece() -> None:
    assert drawn(4, count=50) == drawn(4, count=50)
    assert drawn(4, count=50) != drawn(5, count=50)


def test_kinds_vary_by_themselves_and_what_was_played_is_told() -> None:
    cost = Cost(((32, 0.01),), RECORDED, SPREAD)
    pieces = Pieces(Clock(), {"batch": cost, "rest": cost}, seed=4)
    mixed = [(pieces.charge("rest", 32), pieces.charge("batch", 32)) for _ in range(50)]
    assert [each[1] / 0.01 for each in mixed] == pytest.approx(drawn(4, count=50))
    assert [each[0] for each in mixed] != [each[1] for each in mixed]
    assert pieces.reference_s == {RECORDED: pytest.approx(sum(map(sum, mixed)))}


@given(st.floats(0, 1))
def test_factors_lie_between_the_least_and_the_most(share: float) -> None:
    assert SPREAD[0] <= factor_at(SPREAD, share) <= SPREAD[-1]
