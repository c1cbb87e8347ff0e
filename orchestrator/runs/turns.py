"""Whose turn it is when the rounds of several methods alternate on one fleet (`interleave: true`). Pure.

Round n of every method is block n. The order in a block comes from a Williams design (E. J. Williams, "Experimental
designs balanced for the estimation of residual effects of treatments", Aust. J. Sci. Res. A 2, 1949): over the rows of
one square every method is equally often in every position, and follows every other method equally often. A square of an
even number of methods has as many rows as methods, of an odd number twice as many. Each square has its rows and methods
shuffled by the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import msgspec


class Turn(msgspec.Struct, frozen=True):
    """One method plays one round."""

    place: int  # of the method among those that alternate
    block: str  # name of the block; equal for all methods that play the same round on the same standing fleet
    position: int  # in the block, from 0, of `of` methods that still play
    of: int


def williams(count: int) -> list[list[int]]:
    """The rows of a Williams design of `count` methods, numbered from 0."""
    first = [(i + 1) // 2 if i % 2 else (count - i // 2) % count for i in range(count)]
    rows = [[(number + shift) % count for number in first] for shift in range(count)]
    return rows + [row[::-1] for row in rows] if count % 2 else rows


def order(count: int, block: int, seed: int) -> list[int]:
    """The order of `count` methods in block 0, 1, …"""
    rows = williams(count)
    square, row = divmod(block, len(rows))
    chance = random.Random(f"{seed}/interleave/{square}")
    chance.shuffle(rows)
    methods = list(range(count))
    chance.shuffle(methods)
    return [methods[number] for number in rows[row]]


def turns(next_round: Mapping[int, int], count: int, seed: int, fleet: str) -> Iterator[Turn]:
    """Turns until no method is left. A method that is behind plays alone until it has caught up.

    Args:
        next_round: by place, the number of the round that a method plays next. The caller keeps it up to date after
            every turn, and removes a method that has stopped.
        count: number of methods that began, with those that have stopped.
        fleet: id of the standing fleet, for the names of the blocks.
    """
    while next_round:
        block = min(next_round.values())
        playing = [place for place in order(count, block, seed) if next_round.get(place) == block]
        for position, place in enumerate(playing):
            yield Turn(place, f"{fleet}/{block + 1}", position, len(playing))
