"""FedGKT: both KL terms, whose logits reach whom, and extractors that nobody averages."""

from __future__ import annotations

import copy
import math

import msgspec
import pytest
import torch
from torch import nn

from edgebed.errors import UsageError
from edgebed.methods.base import find_half
from edgebed.methods.fedgkt import LOGITS, CommonUpper, FedGKT, distillation
from edgebed.models.staged import Weights
from edgebed.wire.messages import Optimizer
from tests.contract.rounds import CPU, SCHEDULE, batches_of, make_method, play, shard, small_model, view

SGD = msgspec.structs.replace(SCHEDULE, optimizer=Optimizer("sgd", 0.05))


def method() -> FedGKT:
    made = make_method("fedgkt")
    assert isinstance(made, FedGKT)
    return made


def test_distillation_worked_by_hand() -> None:
    """T = 3, teacher (3 ln 3, 0), student (0, 0): p = (3/4, 1/4), q = (1/2, 1/2), KL = ln 2 - H(p); times 9."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[3 * math.log(3), 0.0]])
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(distillation(student, teacher, 3.0)) == pytest.approx(9 * kl)
    assert float(distillation(teacher, teacher, 3.0)) == pytest.approx(0.0, abs=1e-6)


def plain_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    p = (teacher / 3).softmax(1)
    return 9 * (p * (p.log() - (student / 3).log_softmax(1))).sum(1).mean()


def test_a_device_trains_on_the_labels_and_on_the_servers_logits_of_the_same_samples() -> None:
    assignment = method().plan(4, [view("a")], SGD).assignments["a"]
    batches = list(batches_of(shard("a"), assignment))
    given = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    model, plain = small_model().train(), small_model().train()
    model.load({LOGITS: given})
    half = find_half("gkt")(model, assignment, batches)
    uploads = [{name: value.clone() for name, value in next(half).tensors.items()} for _ in batches]
    with pytest.raises(StopIteration) as end:
        next(half)
    optimizer = torch.optim.SGD([*plain.lower(2).parameters(), *plain.head(2).parameters()], lr=0.05)
    start = 0
    for (x, y), sent in zip(batches, uploads, strict=True):
        z = plain.lower(2)(x)
        logits = plain.head(2)(z)
        torch.testing.assert_close(sent["features"], z, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(sent["logits"], logits, atol=1e-5, rtol=1e-4)
        assert torch.equal(sent["labels"], y)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(logits, y) + plain_kl(logits, given[start : start + len(y)])).backward()
        optimizer.step()
        start += len(y)
    for name, value in end.value.value.weights.items():
        torch.testing.assert_close(value, plain.state_dict()[name], atol=1e-5, rtol=1e-4)


def test_the_server_trains_one_model_on_the_batches_of_all_in_the_order_of_names() -> None:
    model = small_model()
    plan = method().plan(0, [view("a"), view("b")], SGD)
    assignments = {"b": plan.assignments["b"], "a": plan.assignments["a"]}
    upper = CommonUpper(model, model.weights(), assignments, 3.0, CPU)
    generator = torch.Generator().manual_seed(0)
    uploads: dict[str, Weights] = {
        device: {
            "features": torch.randn(4, 4, 6, 6, generator=generator),
            "labels": torch.tensor([0, 1, 2, 3]),
            "logits": torch.randn(4, 4, generator=generator),
        }
        for device in ("b", "a")
    }
    assert upper.step(uploads) == {}
    plain = copy.deepcopy(model.upper(2)).train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    for device in ("a", "b"):
        sent = uploads[device]
        logits = plain(sent["features"])
        torch.testing.assert_close(upper.logits[device][0], logits)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(logits, sent["labels"]) + plain_kl(logits, sent["logits"])).backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(upper.weights()[name], value, atol=1e-5, rtol=1e-4)


async def test_own_extractors_and_logits_come_down_again_and_are_merged_with_nobodys() -> None:
    made, before = method(), small_model().weights()
    after = await play(made, before, {"a": 10, "b": 9}, range(1))
    names = small_model().names_below(2, head=True)
    assert all(torch.equal(after[name], before[name]) for name in names), "the global lower stages stay"
    first, second = made.plan(1, [view("a"), view("b")], SCHEDULE).assignments.values()
    tasks = [made.task_weights(after, each) for each in (first, second)]
    assert [task[LOGITS].shape for task in tasks] == [(10, 4), (9, 4)]
    trained = "md1.conv.weight"
    assert len({tuple(weights[trained].flatten().tolist()) for weights in (*tasks, before)}) == 3
    assert set(made.task_weights(after, made.plan(1, [view("new")], SCHEDULE).assignments["new"])) == set(names)


async def test_a_device_meets_its_batches_in_the_same_order_in_every_round() -> None:
    made = method()
    seeds = {made.plan(number, [view("a")], SCHEDULE).assignments["a"].seed for number in range(3)}
    assert len(seeds) == 1


async def test_the_score_is_the_mean_over_the_devices() -> None:
    made = method()
    weights = await play(made, small_model().weights(), {"a": 10, "b": 9}, range(1))
    x, y = shard("test", 40)
    score = made.evaluate(weights, x, y, CPU)
    right = []
    for device in ("a", "b"):
        whole = small_model()
        whole.load({**weights, **made.own[device]})
        right.append(float((whole.eval()(x).argmax(1) == y).float().mean()))
    assert score.accuracy == pytest.approx(sum(right) / 2)
    assert (score.extra["worst device"], score.extra["best device"]) == pytest.approx((min(right), max(right)))


def test_another_number_of_samples_than_before_is_refused() -> None:
    assignment = method().plan(0, [view("a")], SCHEDULE).assignments["a"]
    model = small_model()
    model.load({LOGITS: torch.zeros(7, 4)})
    half = find_half("gkt")(model, assignment, list(batches_of(shard("a"), assignment)))
    next(half)
    next(half)
    with pytest.raises(UsageError, match="of 7 samples"):
        next(half)
