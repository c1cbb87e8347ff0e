"""Server halves that several devices share: what one sends in bad faith costs it its place, and the others nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import torch

from edgebed.errors import DivergedError, EdgebedError
from edgebed.methods.base import ServerHalf
from edgebed.methods.fedgkt import CommonUpper
from edgebed.methods.s2fl import GroupHalf
from edgebed.models.staged import Weights
from orchestrator.testing.rounds import BATCH, CLASSES, CPU, SCHEDULE, make_method, small_model, view
from orchestrator.training.server import ServerTrainer

Make = Callable[..., ServerHalf]


def common(*devices: str) -> ServerHalf:
    method = make_method("fedgkt", cut=1)
    plan = method.plan(0, [view(name) for name in devices], SCHEDULE)
    (half,) = method.server_halves(small_model().weights(), plan.assignments, CPU)
    assert isinstance(half, CommonUpper)
    return half


def group(*devices: str) -> ServerHalf:
    method = make_method("s2fl", sliding=False)
    plan = method.plan(0, [view(name) for name in devices], SCHEDULE)
    return GroupHalf(small_model(), small_model().weights(), plan.assignments, CPU)


HALVES = pytest.mark.parametrize("make", [common, group], ids=["fedgkt", "s2fl"])


def upload(half: ServerHalf, seed: int) -> Weights:
    """An honest batch."""
    generator = torch.Generator().manual_seed(seed)
    shape = small_model().feature_shape(1 if isinstance(half, CommonUpper) else 3)
    return {
        "features": torch.randn(BATCH, *shape, generator=generator),
        "labels": torch.randint(CLASSES, (BATCH,), generator=generator),
        "logits": torch.randn(BATCH, CLASSES, generator=generator),
    }


def huge(tensors: Weights) -> Weights:
    """Finite, and its loss or its statistics are not."""
    return {**tensors, "features": tensors["features"] * 1e25}


def large(tensors: Weights) -> Weights:
    return {**tensors, "features": tensors["features"].abs() * 1e37 + 1e37}


def no_class(tensors: Weights) -> Weights:
    return {**tensors, "labels": tensors["labels"] + CLASSES}


def misshapen(tensors: Weights) -> Weights:
    return {**tensors, "features": torch.zeros(BATCH, 3)}


BAD = pytest.mark.parametrize("bad", [huge, large, no_class, misshapen])


@HALVES
@BAD
def test_the_half_is_as_if_the_bad_upload_had_never_come(make: Make, bad: Callable[[Weights], Weights]) -> None:
    with_bad, without = make("a", "b", "c"), make("a", "b", "c")
    for step in range(3):
        a, b, c = (upload(with_bad, 10 * step + place) for place in range(3))
        replies = with_bad.step({"a": a, "b": bad(b), "c": c})
        assert isinstance(replies["b"], EdgebedError)
        assert "'b'" in str(replies["b"])
        honest = without.step({"a": a, "c": c})
        for device in "ac":
            kept, wanted = replies.get(device, {}), honest.get(device, {})
            assert not isinstance(kept, EdgebedError)
            assert not isinstance(wanted, EdgebedError)
            assert all(torch.equal(kept[name], wanted[name]) for name in wanted)
    left, right = with_bad.weights(), without.weights()
    assert all(torch.equal(left[name], right[name]) for name in right)


@HALVES
def test_a_step_of_which_nothing_is_of_use_changes_nothing(make: Make) -> None:
    half = make("a", "b")
    before = half.weights()
    replies = half.step({name: huge(upload(half, 1)) for name in "ab"})
    assert all(isinstance(replies[name], DivergedError) for name in "ab")
    assert all(torch.equal(value, before[name]) for name, value in half.weights().items())


@HALVES
async def test_the_trainer_names_the_bad_device_and_the_others_finish(make: Make) -> None:
    half, trainer = make("a", "b", "c"), ServerTrainer(CPU, slots=1)
    trainer.begin([half])
    async with asyncio.timeout(20):
        steps = [asyncio.create_task(trainer.submit(name, 0, upload(half, 1))) for name in "ac"]
        with pytest.raises(EdgebedError, match="'b'"):
            await trainer.submit("b", 0, huge(upload(half, 2)))
        results = [await step for step in steps]
        assert all(result is not None and result.devices == ("a", "c") for result in results)
        with pytest.raises(EdgebedError, match="'b'"):
            await trainer.finish("b", 1)
        ends = await asyncio.gather(trainer.finish("a", 1), trainer.finish("c", 1))
    assert all(bool(torch.isfinite(value).all()) for end in ends for value in end.values())
    await trainer.close()
