"""HeteroFL's scaler, masked loss and static batch norm, each against plain torch or a figure worked by hand."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from edgebed.device.batches import ShardBatches
from edgebed.device.core import begin_half
from edgebed.errors import RunError
from edgebed.methods.base import Contribution, DeviceView, Method, Trained, real_work
from edgebed.methods.heterofl import HeteroFl, heterofl_half, masked
from edgebed.models.learning import loss_of
from edgebed.models.staged import StagedModel, Weights
from edgebed.models.width import narrow_model
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Report
from edgebed.wire.settings import Codec, LearningTask, Optimizer
from orchestrator.rounds.checks import opened
from orchestrator.testing.rounds import (
    PLAIN,
    as_shard,
    batches_of,
    labelled,
    make_method,
    play,
    shard,
    small_model,
    view,
)

SMALL = [0.5, 1.0]
MEANS = [f"md{number}.norm.{what}" for number in (1, 2, 3) for what in ("running_mean", "running_var")]


def ready(rounds: int = 0, **options: object) -> HeteroFl:
    method = make_method("heterofl", widths=SMALL, levels=[0.1, 1.0], **options)
    assert isinstance(method, HeteroFl)
    method.context = msgspec.structs.replace(method.context, rounds=rounds)
    return method


def planned(method: Method, round: int = 0) -> dict[str, Assignment]:
    """Of `fast`, which has the whole model, and `slow`, which has half of its channels."""
    devices: list[DeviceView] = [labelled(view("fast", 10, 4.0)), view("slow", 10, 1.0)]
    labels = (3, 0, 7, 0)
    return method.plan(round, [devices[0], msgspec.structs.replace(devices[1], labels=labels)], PLAIN).assignments


def trained(method: Method, weights: Weights, assignment: Assignment) -> Trained:
    """What the device's half makes of its task."""
    data = ShardBatches(as_shard(shard(assignment.device)), assignment)
    body = encode_tensors(method.task_weights(weights, assignment), Codec())
    half = begin_half(small_model(seed=9), assignment, body, data, {}, keep=False)
    with pytest.raises(StopIteration) as stop:
        next(half)
    result: Trained = stop.value.value
    return result


def by_hand(assignment: Assignment, weights: Weights, divisor: float, classes: list[int]) -> dict[str, torch.Tensor]:
    """Plain torch: what comes out of each convolution is divided, logits of other classes are 0."""
    narrow = narrow_model(small_model(), assignment.keep).train()
    optimizer = torch.optim.SGD(narrow.stages(0, 4).parameters(), lr=PLAIN.optimizer.lr)
    for x, y in batches_of(shard("slow"), assignment):
        for number in (1, 2, 3):
            layers = narrow.get_submodule(f"md{number}")
            conv, norm = layers.get_submodule("conv"), layers.get_submodule("norm")
            x = norm(conv(x) / divisor).relu()
        logits = narrow.get_submodule("md4")(x)
        kept = torch.zeros_like(logits)
        kept[:, classes] = 1
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(logits * kept, y))
        optimizer.step()
    return dict(narrow.stages(0, 4).named_parameters())


@pytest.mark.parametrize(
    ("options", "divisor", "classes"),
    [
        ({}, 0.5, [0, 2]),
        ({"scaler": False}, 1.0, [0, 2]),
        ({"masked_loss": False}, 0.5, [0, 1, 2, 3]),
    ],
)
def test_a_narrow_half_is_plain_torch_with_scaler_and_mask(
    options: dict[str, Any], divisor: float, classes: list[int]
) -> None:
    weights, method = small_model().weights(), ready(**options)
    work = planned(method)["slow"]
    found, expected = trained(method, weights, work).weights, by_hand(work, weights, divisor, classes)
    assert {name for name in found if not name.endswith("num_batches_tracked")} == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("scale", "hidden"), [(0.5, 0.5), (1.0, 0.25)])
def test_the_scaler_by_hand(scale: float, hidden: float) -> None:
    """Without batch norm, which would undo it. One hidden neuron of two: h = 1/4 ÷ scale, logits h and -h, answer 0.
    With q = 1 ÷ (1 + e^2h) the gradients are -q h and q h of the second layer, and -2 q ÷ scale of the first."""
    first = nn.Sequential(OrderedDict(fc=nn.Linear(1, 2, bias=False), relu=nn.ReLU()))
    second = nn.Sequential(OrderedDict(fc=nn.Linear(2, 2, bias=False)))
    model = StagedModel([("a", first), ("b", second)], {}, LearningTask((1,), 2))
    model.load({"a.fc.weight": torch.tensor([[0.25], [5.0]]), "b.fc.weight": torch.tensor([[1.0, 7.0], [-1.0, 7.0]])})
    options = {"scale": scale, "classes": [], "static": True}
    work = Assignment("a", {}, 2, (1,), 2, "heterofl", optimizer=Optimizer("sgd", 1.0), options=options)
    half = heterofl_half(narrow_model(model, {"a.fc": (0,)}), work, [(torch.ones(1, 1), torch.tensor([0]))])
    with pytest.raises(StopIteration) as stop:
        next(half)
    q = 1 / (1 + math.exp(2 * hidden))
    weights = stop.value.value.weights
    assert weights["a.fc.weight"].flatten().tolist() == pytest.approx([0.25 + 2 * q / scale])
    assert weights["b.fc.weight"].flatten().tolist() == pytest.approx([1 + q * hidden, -1 - q * hidden])


def test_the_whole_model_is_not_scaled() -> None:
    assert planned(ready())["fast"].options["scale"] == 1.0
    assert planned(ready())["slow"].options["scale"] == 0.5


def test_masked_loss_by_hand() -> None:
    """Logits 1, 2, 3 of which the device lacks the second class: log(e^1 + e^0 + e^3) - 3."""
    loss = loss_of(masked(torch.tensor([[1.0, 2.0, 3.0]]), (0, 2)), torch.tensor([2]))
    assert float(loss) == pytest.approx(math.log(math.e + 1 + math.e**3) - 3)
    assert masked(torch.ones(2, 3), ()).sum() == 6


def test_rows_of_the_last_layer_are_averaged_over_the_devices_with_their_class() -> None:
    """a has classes 0 and 1, b has 1 and 2, nobody has 3; a has three times as many samples, which do not count."""
    method, before = ready(), small_model().weights()
    parts = []
    for name, classes, value, samples in (("a", (5, 1, 0, 0), 1.0, 30), ("b", (0, 2, 2, 0), 3.0, 10)):
        device = msgspec.structs.replace(view(name, samples), labels=classes)
        work = method.plan(0, [device], PLAIN).assignments[name]
        update = {n: torch.full_like(before[n], value) for n in method.update_names(work, {})}
        parts.append(Contribution(name, samples, work, update, {}))
    merged = method.merge(before, parts)
    assert merged["md4.fc.bias"].tolist() == [1.0, 2.0, 3.0, float(before["md4.fc.bias"][3])]
    assert merged["md4.fc.weight"][:, 0].tolist() == [1.0, 2.0, 3.0, float(before["md4.fc.weight"][3, 0])]
    assert merged["md1.conv.bias"].tolist() == [2.0] * 3


# ---- static batch norm ----


def test_no_statistics_go_down_or_up_while_training() -> None:
    method, weights = ready(), small_model().weights()
    for work in planned(method).values():
        assert not set(MEANS) & {*method.task_weights(weights, work), *method.update_names(work, {})}
        assert trained(method, weights, work).weights.keys() == set(method.update_names(work, {}))
    assert set(MEANS) <= set(ready(static_norm=False).update_names(planned(ready(static_norm=False))["slow"], {}))


def test_until_it_is_asked_a_test_uses_the_statistics_of_its_batch() -> None:
    method, weights = ready(), small_model(seed=3).weights()
    x, y = shard("test", 501)
    score = method.evaluate(weights, x, y, torch.device("cpu"))
    model = small_model(seed=3).train()
    with torch.no_grad():
        logits = torch.cat([model(x[:499]), model(x[499:])])
    assert score.loss == pytest.approx(float(loss_of(logits, y)), rel=1e-5)
    assert score.loss != pytest.approx(ready(static_norm=False).evaluate(weights, x, y, torch.device("cpu")).loss)


async def test_the_last_round_asks_all_devices_for_the_statistics_of_the_merged_model() -> None:
    """They are the mean over all batches, here of 4, 4 and 2 samples on a, and 4 and 1 on b."""
    method = ready(rounds=3)
    sizes: Mapping[str, int] = {"a": 10, "b": 5}
    merged = await play(method, small_model().weights(), sizes, range(2))
    assert all(torch.equal(merged[name], small_model().weights()[name]) for name in MEANS)
    views = [view(name, samples) for name, samples in sizes.items()]
    assert len(method.draw(1, views, 0.5, 1)) == 1
    assert len(method.draw(2, views, 0.5, 1)) == 2
    asked = await play(method, merged, sizes, range(2, 3))
    assert all(torch.equal(asked[name], merged[name]) for name in merged if name not in MEANS)
    seen: list[torch.Tensor] = []
    model = copy.deepcopy(small_model())
    model.load(merged)
    model.train().get_submodule("md1.conv").register_forward_hook(lambda layer, given, out: seen.append(out.detach()))
    with torch.no_grad():
        for name, work in method.plan(2, views, PLAIN).assignments.items():
            assert (work.objective, work.keep, work.epochs) == ("statistics", {}, 1)
            for x, _ in batches_of(shard(name, sizes[name]), work):
                model(x)
    means = torch.stack([out.mean((0, 2, 3)) for out in seen]).mean(0)
    variances = torch.stack([out.transpose(0, 1).flatten(1).var(1) for out in seen]).mean(0)
    torch.testing.assert_close(asked["md1.norm.running_mean"], means)
    torch.testing.assert_close(asked["md1.norm.running_var"], variances)
    x, y = shard("test", 20)
    plain = make_method("fedavg").evaluate(asked, x, y, torch.device("cpu"))
    assert method.evaluate(asked, x, y, torch.device("cpu")) == plain


def test_statistics_that_cannot_be_are_refused() -> None:
    """A negative variance; and values of which the next layers make infinities, as for weights."""
    method, weights = ready(rounds=2), small_model().weights()
    work = planned(method, round=1)["slow"]
    result = trained(method, weights, work)
    update = {f"extra.{name}": value for name, value in result.extra.items()}
    assert opened(method, weights, work, Report(10, 3, 1.0, 1, 1, 0, 0, 0, 0, 0, 0), update)[1].keys() == set(MEANS)
    variance = update["extra.md1.norm.running_var"]
    for wrong, said in ((-variance, "holds a variance of -"), (variance * 1e30, r"holds values above 1e\+18")):
        told = {**update, "extra.md1.norm.running_var": wrong}
        with pytest.raises(RunError, match=said):
            opened(method, weights, work, Report(10, 3, 1.0, 1, 1, 0, 0, 0, 0, 0, 0), told)


def test_rolling_has_none_of_it_unless_it_is_asked_for() -> None:
    work = planned(ready(rolling=True))["slow"]
    assert (work.objective, work.options) == ("output", {})
    assert not ready(rolling=True).asks(1)
    masked_only = planned(ready(rolling=True, masked_loss=True))["slow"]
    assert masked_only.options == {"scale": 1.0, "classes": (0, 2), "static": False}


def test_it_is_charged_as_plain_training_of_the_narrow_model() -> None:
    work, asked = planned(ready())["slow"], planned(ready(rounds=2), round=1)["slow"]
    charged = real_work(work)
    assert (charged.objective, charged.options, charged.keep) == ("output", {}, work.keep)
    assert (real_work(asked).objective, real_work(asked).train_from) == ("output", 3)
