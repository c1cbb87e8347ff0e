"""Plays the runs of several methods in turns, one round at a time, on one standing fleet."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any

from edgebed.methods.base import Method
from orchestrator.runs.run import MethodRun
from orchestrator.runs.turns import order, turns


def has_barrier(method: Method) -> bool:
    """Whether the rounds of a method follow one another. If not (FedAT), they cannot be interrupted by others."""
    return type(method).lanes is Method.lanes


def groups(methods: Sequence[Method], interleave: bool, seed: int) -> list[list[int]]:
    """Places of the methods that run at the same time, in the order in which the groups run.

    Interleaved, all methods with a barrier are one group, and every other method is a group of its own. The order of
    the groups depends on the seed, so that they alternate over consecutive seeds.
    """
    if not interleave:
        return [[place] for place in range(len(methods))]
    barrier = [place for place, method in enumerate(methods) if has_barrier(method)]
    parts = ([barrier] if barrier else []) + [[place] for place in range(len(methods)) if place not in barrier]
    return [parts[i] for i in order(len(parts), block=seed, seed=0)]


def actions(
    runs: Mapping[int, MethodRun], count: int, seed: int, fleet: str
) -> Iterator[tuple[int, Coroutine[Any, Any, None]]]:
    """What the runs have to do, in order: the place of a run, and its next action. The caller awaits each before it
    takes the next one. After an error it calls `interrupt` of every run.

    Args:
        runs: by place; without those that an earlier session has finished.
        count, seed, fleet: as for `turns`.
    """
    next_round: dict[int, int] = {}
    for place, run in runs.items():
        yield place, run.begin()
        next_round[place] = run.next_round
    for place, run in runs.items():
        if run.over:
            yield place, run.finish()
            del next_round[place]
    for turn in turns(next_round, count, seed, fleet):
        run = runs[turn.place]
        yield turn.place, run.turn(turn)
        next_round[turn.place] = run.next_round
        if run.over:
            yield turn.place, run.finish()
            del next_round[turn.place]


async def play(runs: Mapping[int, MethodRun], count: int, seed: int, fleet: str) -> None:
    """Play all runs of a group to their ends on a standing fleet. If one fails or the work is cancelled, all end."""
    if count == 1:
        for run in runs.values():
            await run.execute()
        return
    try:
        for _, action in actions(runs, count, seed, fleet):
            await action
    except BaseException:
        for run in runs.values():
            await run.interrupt()
        raise
