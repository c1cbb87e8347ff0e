"""Device halves by objective and the server half of one device."""

from __future__ import annotations

import copy
import math

import msgspec
import pytest
import torch
from torch import nn

from edgebed.errors import DivergedError, EdgebedError, PluginError, RunError, UsageError
from edgebed.methods.base import HALVES, Outgoing, Trained, find_half, trained_names
from edgebed.methods.parts.local_training import UpperHalf, make_optimizer
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Optimizer
from orchestrator.testing.rounds import CLASSES, CPU, SHAPE, batches_of, shard, small_model

HEAD = Assignment("a", {}, CLASSES, SHAPE, 2, "head", uploads=("features", "weights"), batch_size=4)
OUTPUT = Assignment("a", {}, CLASSES, SHAPE, 4, "output", batch_size=4)
SERVER = Assignment("a", {}, CLASSES, SHAPE, 2, "server", uploads=("features", "weights"), batch_size=4)
BATCHES = list(batches_of(shard("a"), HEAD))


def drive(assignment: Assignment, answer: Weights | None = None) -> tuple[list[Outgoing], Trained]:
    half = HALVES[assignment.objective](small_model(), assignment, BATCHES)
    sent: list[Outgoing] = []
    reply = None
    while True:
        try:
            sent.append(half.send(reply))
        except StopIteration as stop:
            return sent, stop.value
        reply = answer


def test_head_sends_the_features_of_every_batch_before_it_trains_on_them() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.weights().items()}
    half = HALVES["head"](model, HEAD, BATCHES)
    first = next(half)
    parameters = [name for name, _ in model.named_parameters()]
    assert all(torch.equal(model.weights()[name], before[name]) for name in parameters)
    assert not first.wait
    assert not first.tensors["features"].requires_grad
    assert torch.equal(first.tensors["features"], small_model().lower(2).train()(BATCHES[0][0]))
    assert torch.equal(first.tensors["labels"], BATCHES[0][1])
    sent, trained = drive(HEAD)
    assert [out.samples for out in sent] == [len(y) for _, y in BATCHES]
    assert trained.batches == len(BATCHES)
    assert set(trained.weights) == set(model.names_below(2, head=True))


def test_head_without_features_sends_nothing_and_trains_the_same() -> None:
    sent, silent = drive(msgspec.structs.replace(HEAD, uploads=("weights",)))
    assert sent == []
    _, loud = drive(HEAD)
    assert all(torch.equal(silent.weights[name], loud.weights[name]) for name in loud.weights)


def test_output_trains_all_stages_and_no_head() -> None:
    sent, trained = drive(OUTPUT)
    assert sent == []
    assert set(trained.weights) == set(small_model().names_below(4, head=False))


@pytest.mark.parametrize("assignment", [HEAD, OUTPUT, SERVER])
def test_stages_before_train_from_stay_untouched(assignment: Assignment) -> None:
    frozen = msgspec.structs.replace(assignment, train_from=1)
    model = small_model()
    half = HALVES[frozen.objective](model, frozen, BATCHES)
    reply = None
    try:
        while True:
            out = half.send(reply)
            reply = {"gradient": torch.ones_like(out.tensors["features"])} if out.wait else None
    except StopIteration as stop:
        trained: Trained = stop.value
    first = [name for name in small_model().weights() if name.startswith("md1.")]
    assert all(torch.equal(model.weights()[name], small_model().weights()[name]) for name in first)
    assert not set(first) & set(trained.weights)
    assert list(trained.weights) == trained_names(model, frozen)
    changed = [name for name, value in trained.weights.items() if not torch.equal(value, small_model().weights()[name])]
    assert {"md2.conv.weight", "md2.norm.running_mean"} <= set(changed)


def test_frozen_stages_may_reach_up_to_the_head() -> None:
    _, trained = drive(msgspec.structs.replace(HEAD, train_from=2))
    assert set(trained.weights) == {"head2.fc.weight", "head2.fc.bias"}


def test_server_gradient_and_upper_half_together_equal_the_uncut_model() -> None:
    """SplitFed with one device is centralised SGD, to the bit."""
    model, spec = small_model(), Optimizer("sgd", 0.05, momentum=0.9)
    assignment = msgspec.structs.replace(SERVER, optimizer=spec)
    upper = UpperHalf(model, small_model().weights(), assignment, CPU, gradient=True)
    half = HALVES["server"](model, assignment, BATCHES)
    reply = None
    try:
        while True:
            out = half.send(reply)
            assert out.wait
            reply = dict(upper.step({"a": out.tensors})["a"])
    except StopIteration as stop:
        split = {**stop.value.weights, **upper.weights()}
    whole = small_model()
    whole.train()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.05, momentum=0.9)
    for x, y in BATCHES:
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole(x), y).backward()
        optimizer.step()
    assert len(split) == len(whole.names_below(4, head=False))
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in split.items())


@pytest.mark.parametrize("reply", [None, {}, {"gradient": torch.zeros(1)}])
def test_a_wrong_gradient_is_refused(reply: Weights | None) -> None:
    with pytest.raises(RunError, match="answered with"):
        drive(SERVER, reply)


def test_the_update_does_not_change_when_the_model_trains_on() -> None:
    model = small_model()
    half = HALVES["output"](model, OUTPUT, BATCHES)
    with pytest.raises(StopIteration) as stop:
        next(half)
    kept = {name: value.clone() for name, value in stop.value.value.weights.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(kept[name], value) for name, value in stop.value.value.weights.items())


def test_a_device_that_diverges_says_so() -> None:
    bad = [(torch.full_like(BATCHES[0][0], math.nan), BATCHES[0][1])]
    with pytest.raises(DivergedError, match="batch 0 on device 'a'"):
        next(HALVES["output"](small_model(), OUTPUT, bad))


def test_a_cut_of_the_whole_model_is_what_output_needs() -> None:
    with pytest.raises(UsageError, match="3 of 4"):
        next(HALVES["output"](small_model(), msgspec.structs.replace(OUTPUT, stages=3), BATCHES))


def test_unknown_names_are_refused_with_a_choice() -> None:
    with pytest.raises(PluginError) as error:
        find_half("guess")
    assert "head" in error.value.hint
    with pytest.raises(UsageError, match="lion"):
        make_optimizer(small_model().parameters(), Optimizer("lion"))
    with pytest.raises(UsageError, match="no parameters"):
        make_optimizer([], Optimizer())


# ---- server half ----


def features(count: int = 4) -> Weights:
    return {"features": torch.rand(count, 4, 6, 6), "labels": torch.arange(count) % CLASSES}


def test_the_upper_half_trains_a_copy() -> None:
    model = small_model()
    weights = {name: value + 1 for name, value in model.weights().items()}
    half = UpperHalf(model, weights, HEAD, CPU)
    assert all(torch.equal(value, weights[name]) for name, value in half.weights().items())
    assert half.step({"a": features()}) == {}
    assert set(half.weights()) == set(model.upper(2).state_dict())
    assert not torch.equal(half.weights()["md3.conv.weight"], weights["md3.conv.weight"])
    assert all(torch.equal(value, small_model().weights()[name]) for name, value in model.weights().items())


@pytest.mark.parametrize(
    "change",
    [
        {"features": None},
        {"labels": None},
        {"features": torch.tensor(1.0)},
        {"features": torch.rand(4, 3, 6, 6)},
        {"features": torch.ones(4, 4, 6, 6, dtype=torch.int64)},
        {"labels": torch.zeros(3, dtype=torch.int64)},
        {"labels": torch.zeros(4)},
        {"labels": torch.tensor([0, 1, 2, CLASSES])},
        {"labels": torch.tensor([0, 1, 2, -1])},
        {"features": torch.rand(0, 4, 6, 6), "labels": torch.zeros(0, dtype=torch.int64)},
    ],
)
def test_an_upload_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, torch.Tensor | None]) -> None:
    half = UpperHalf(small_model(), small_model().weights(), HEAD, CPU)
    before = half.weights()
    bad = {name: value for name, value in {**features(), **change}.items() if value is not None}
    with pytest.raises(EdgebedError, match="device 'a'"):
        half.step({"a": bad})
    assert all(torch.equal(value, before[name]) for name, value in half.weights().items())


def test_a_server_half_that_diverges_says_whose_it_is() -> None:
    half = UpperHalf(small_model(), small_model().weights(), HEAD, CPU)
    upload = features()
    upload["features"] = torch.full_like(upload["features"], math.nan)
    with pytest.raises(DivergedError, match="server half of device 'a'"):
        half.step({"a": upload})


def test_the_upload_is_left_as_it_came() -> None:
    upload = features()
    before = copy.deepcopy(upload)
    UpperHalf(small_model(), small_model().weights(), SERVER, CPU, gradient=True).step({"a": upload})
    assert not upload["features"].requires_grad
    assert all(torch.equal(upload[name], before[name]) for name in upload)
