"""What every method in the registry must do, without being listed here; with its default options and its `variants`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import torch

from edgebed.errors import EdgebedError
from edgebed.methods.base import METHODS, Method, Plan
from edgebed.models.staged import Weights
from orchestrator.papers.learnings import learning_of
from tests.contract.rounds import EVERY, Log, Step, make_method, play, small_model

THREE = {"a": 10, "b": 9, "c": 6}
ROUNDS, BEFORE = 6, 4
AWAY = {BEFORE: ("a",)}
"""The fastest is away in the first round after the resumption, so that a method that forgot it plans otherwise."""

Options = Mapping[str, object]


def cases() -> list[Any]:
    """Every method with its default options and with each of its variants."""
    return [
        pytest.param((name, options), id="-".join([name, *(f"{key}={value}" for key, value in options.items())]))
        for name in METHODS.names()
        for options in ({}, *vars(METHODS.classes()[name]).get("variants", ()))
    ]


every_case = pytest.mark.parametrize("case", cases())


def make(case: tuple[str, Options]) -> Method:
    return make_method(case[0], **case[1])


def initial() -> Weights:
    return {name: value.clone() for name, value in small_model().weights().items()}


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def same_plans(left: list[Plan], right: list[Plan]) -> bool:
    return [msgspec.json.encode(each) for each in left] == [msgspec.json.encode(each) for each in right]


@dataclass
class Whole:
    """A run of six rounds that nothing disturbs, and what a checkpoint after the fourth holds."""

    start: Weights
    middle: Weights
    end: Weights
    log: Log
    state: str
    tensors: Weights


_wholes: dict[str, Whole] = {}


async def whole(case: tuple[str, Options]) -> Whole:
    """Played once for all tests of a case."""
    key = json.dumps(case)
    if key not in _wholes:
        method, start, log = make(case), initial(), Log()
        middle = await play(method, start, THREE, range(BEFORE), log=log)
        state = json.dumps(method.state())
        tensors = {name: value.clone() for name, value in method.tensors().items()}
        kept = {name: value.clone() for name, value in middle.items()}
        end = await play(method, middle, THREE, range(BEFORE, ROUNDS), away=AWAY, log=log)
        _wholes[key] = Whole(start, kept, end, log, state, tensors)
    return _wholes[key]


@every_case
def test_a_method_says_what_its_learning_follows_from_or_why_it_follows_from_times(case: tuple[str, Options]) -> None:
    """`edgebed reproduce --share` lets runs with equal answers share one training."""
    said = learning_of(METHODS.create({"name": case[0], **case[1]}))
    assert said
    assert isinstance(said, str) or msgspec.json.encode(said)


@every_case
async def test_trains_on_one_device(case: tuple[str, Options]) -> None:
    before = initial()
    after = await play(make(case), before, {"a": 10}, range(2))
    assert list(after) == list(before)
    assert not same(before, after)


@every_case
async def test_merges_three_devices_to_finite_weights(case: tuple[str, Options]) -> None:
    run, before = await whole(case), initial()
    assert fits(run.end)
    assert not same(before, run.end)
    assert same(before, run.start), "the weights it was given have changed"


@every_case
async def test_same_seed_gives_the_same_bits_whatever_the_order_of_arrival(case: tuple[str, Options]) -> None:
    run, log = await whole(case), Log()
    end = await play(make(case), initial(), THREE, range(ROUNDS), order=3, away=AWAY, log=log)
    assert same(end, run.end)
    assert same_plans(log.plans, run.log.plans)


@every_case
async def test_a_lost_device_costs_the_others_nothing(case: tuple[str, Options]) -> None:
    """Every round it falls silent at another moment, also when a half that it shares with others has used its batches.
    That all uploads of the others are used and their work is merged, `play` asserts."""
    log = Log()
    after = await play(make(case), initial(), THREE, range(ROUNDS), lost=("b",), log=log)
    assert fits(after)
    assert not same(initial(), after)
    assert not [name for name in log.upper if torch.equal(after[name], initial()[name])]


@every_case
async def test_a_lost_device_leaves_no_trace(case: tuple[str, Options]) -> None:
    """Where it had a server half of its own, whenever it falls silent: weights and plans are those of a run in which it
    sends nothing. What a half that it shares with others has learned from its batches cannot be taken back; there this
    holds if it is lost before any step. (Without server halves nothing could leave a trace.)"""
    if not (await whole(case)).log.halves:
        return
    logs = Log(), Log()
    ends = [
        await play(
            make(case),
            initial(),
            THREE,
            range(ROUNDS),
            lost=("b",),
            moments=moments,
            moments_shared=(Step.BEFORE,),
            order=order,
            log=log,
        )
        for order, (moments, log) in enumerate(zip(((Step.BEFORE,), EVERY), logs, strict=True))
    ]
    assert same(*ends)
    assert same_plans(*(log.plans for log in logs))


@every_case
async def test_resumes_to_the_same_weights_and_plans(case: tuple[str, Options]) -> None:
    run, method = await whole(case), make(case)
    method.restore(json.loads(run.state), {name: value.clone() for name, value in run.tensors.items()})
    assert await goes_on_as(run, method)


@every_case
async def test_what_it_remembers_is_needed_to_resume(case: tuple[str, Options]) -> None:
    """Or the test above could not fail: a method that remembers something goes on otherwise once it has forgotten."""
    run, method = await whole(case), make(case)
    if json.loads(run.state) == json.loads(json.dumps(method.state())) and not run.tensors:
        return
    assert not await goes_on_as(run, method)


async def goes_on_as(run: Whole, method: Method) -> bool:
    """Whether the rounds after the checkpoint come to the same weights by the same plans."""
    log = Log()
    try:
        end = await play(method, dict(run.middle), THREE, range(BEFORE, ROUNDS), away=AWAY, order=1, log=log)
    except EdgebedError:
        return False
    return same(end, run.end) and same_plans(log.plans, run.log.plans[BEFORE:])


def fits(weights: Weights) -> bool:
    """Finite, and shaped and typed as the model's."""
    kinds = {name: (value.shape, value.dtype) for name, value in initial().items()}
    return {name: (value.shape, value.dtype) for name, value in weights.items()} == kinds and all(
        bool(torch.isfinite(value).all()) for value in weights.values()
    )


@pytest.mark.parametrize("name", METHODS.names())
def test_refuses_an_unknown_option(name: str) -> None:
    with pytest.raises(Exception, match="no_such_option"):
        make_method(name, no_such_option=1)
