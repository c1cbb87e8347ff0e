"""What every method in the registry must do, without being listed here."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import torch

from edgebed.methods.base import METHODS
from edgebed.models.staged import Weights
from tests.contract.rounds import make_method, play, small_model

THREE = {"a": 10, "b": 9, "c": 5}

pytestmark = pytest.mark.parametrize("name", METHODS.names())


def initial() -> Weights:
    return {name: value.clone() for name, value in small_model().weights().items()}


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


async def test_trains_on_one_device(name: str) -> None:
    before = initial()
    after = await play(make_method(name), before, {"a": 10}, range(2))
    assert list(after) == list(before)
    assert not same(before, after)


@pytest.mark.parametrize("lost", [(), ("b",)])
async def test_merges_three_devices_to_finite_weights_even_when_one_is_lost(name: str, lost: tuple[str, ...]) -> None:
    before = initial()
    after = await play(make_method(name), before, THREE, range(2), lost=lost)
    assert all(bool(torch.isfinite(value).all()) for value in after.values())
    assert {n: (v.shape, v.dtype) for n, v in after.items()} == {n: (v.shape, v.dtype) for n, v in before.items()}
    assert not same(before, after)


async def test_a_lost_device_leaves_no_trace_in_the_weights(name: str) -> None:
    """One round, so that plans cannot differ by what was measured."""
    with_loss = await play(make_method(name), initial(), THREE, range(1), lost=("b",), order=3)
    again = await play(make_method(name), initial(), THREE, range(1), lost=("b",), order=4)
    assert same(with_loss, again)


async def test_same_seed_gives_the_same_bits_whatever_the_order_of_arrival(name: str) -> None:
    results = [await play(make_method(name), initial(), THREE, range(1), order=order) for order in range(5)]
    assert all(same(results[0], other) for other in results[1:])


async def test_resumes_to_the_same_weights(name: str) -> None:
    whole = await play(make_method(name), initial(), THREE, range(3))
    first = make_method(name)
    middle = await play(first, initial(), THREE, range(2))
    second = make_method(name)
    second.restore(json.loads(json.dumps(first.state())), first.tensors())
    assert same(await play(second, middle, THREE, range(2, 3)), whole)


async def test_leaves_the_weights_it_was_given_alone(name: str) -> None:
    before = initial()
    await play(make_method(name), before, THREE, range(1))
    assert same(before, initial())


def test_refuses_an_unknown_option(name: str) -> None:
    with pytest.raises(Exception, match="no_such_option"):
        make_method(name, no_such_option=1)
