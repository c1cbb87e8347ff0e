"""The order in which the methods of an interleaved experiment play their rounds."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest

from edgebed.methods.base import METHODS
from orchestrator.runs.interleave import groups
from orchestrator.runs.turns import Turn, order, turns, williams


@pytest.mark.parametrize("count", range(1, 9))
def test_in_a_square_every_method_is_equally_often_in_every_position_and_after_every_other(count: int) -> None:
    rows = williams(count)
    positions = Counter((method, position) for row in rows for position, method in enumerate(row))
    assert len(positions) == count * count
    assert len(set(positions.values())) == 1
    followed = Counter(pair for row in rows for pair in pairwise(row))
    assert len(followed) == count * (count - 1)
    assert len(set(followed.values())) <= 1


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_blocks_of_a_run_make_whole_squares_in_a_random_order_that_the_seed_fixes(count: int) -> None:
    size = len(williams(count))
    for square in range(3):
        rows = [order(count, square * size + row, seed=5) for row in range(size)]
        positions = Counter((method, position) for row in rows for position, method in enumerate(row))
        assert set(positions.values()) == {size // count}
    blocks = [order(count, block, seed=5) for block in range(60)]
    assert blocks == [order(count, block, seed=5) for block in range(60)]
    assert blocks != [order(count, block, seed=6) for block in range(60)]
    assert len({tuple(row) for row in blocks}) > size or count <= 3, "of three, a square has all orders"


def play(next_round: dict[int, int], rounds: dict[int, int], count: int, most: int = 1000) -> list[tuple[int, Turn]]:
    """Turns with the number of the round played, until each method has played so many rounds."""
    seen = []
    for turn in islice(turns(next_round, count, 1, "f1"), most):
        number = next_round[turn.place]
        seen.append((number, turn))
        next_round[turn.place] += 1
        if next_round[turn.place] == rounds[turn.place]:
            del next_round[turn.place]
    return seen


def test_a_method_that_has_stopped_drops_out_and_the_others_keep_their_order() -> None:
    seen = play({0: 0, 1: 0, 2: 0}, {0: 4, 1: 2, 2: 4}, 3)
    for block in range(4):
        own = [turn for number, turn in seen if number == block]
        playing = [place for place in order(3, block, 1) if place != 1 or block < 2]
        assert [turn.place for turn in own] == playing
        assert [(turn.position, turn.of) for turn in own] == [(i, len(playing)) for i in range(len(playing))]
        assert {turn.block for turn in own} == {f"f1/{block + 1}"}
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)


def test_after_a_kill_the_order_goes_on_where_it_was_and_a_method_that_is_behind_catches_up_alone() -> None:
    whole = play(dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 6), 3)
    for cut in range(1, len(whole)):
        done = Counter(turn.place for _, turn in whole[:cut])
        rest = play({place: done[place] for place in range(3) if done[place] < 6}, dict.fromkeys(range(3), 6), 3)
        assert [(n, turn.place) for n, turn in rest] == [(n, turn.place) for n, turn in whole[cut:]]


def test_methods_without_a_barrier_run_as_a_whole_and_change_places_over_the_seeds() -> None:
    methods = [METHODS.create({"name": name}) for name in ("fedavg", "fedat", "dtfl")]
    assert groups(methods, False, 1) == [[0], [1], [2]]
    pairs = [[groups(methods, True, 2 * seed), groups(methods, True, 2 * seed + 1)] for seed in range(4)]
    for pair in pairs:
        assert sorted(pair) == [[[0, 2], [1]], [[1], [0, 2]]]
    assert groups(methods[1:2], True, 0) == [[0]]
