"""Evaluation and tier profiling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgebed.errors import UsageError
from edgebed.methods.parts.evaluation import evaluate
from edgebed.models.staged import StagedModel
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.settings import Codec, LearningTask, Optimizer
from orchestrator.testing.rounds import CLASSES, CPU, SHAPE, shard, small_model
from orchestrator.training.costs import profile_cuts


def test_accuracy_and_loss_of_logits_known_by_hand() -> None:
    model = StagedModel([("flat", nn.Flatten()), ("same", nn.Identity())], {}, LearningTask((2, 1, 1), 2))
    x = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]).reshape(3, 2, 1, 1)
    y = torch.tensor([0, 0, 0])
    score = evaluate(model, {}, x, y, CPU, batch=2)
    accuracy, loss = score.accuracy, score.loss
    assert accuracy == pytest.approx(2 / 3)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(x.flatten(1), y)))


@pytest.mark.parametrize("batch", [1, 3, 500])
def test_the_batch_size_does_not_matter_and_the_model_is_left_alone(batch: int) -> None:
    model = small_model()
    model.train()
    weights = {name: value.clone() for name, value in small_model(seed=5).weights().items()}
    x, y = shard("test", 7)
    score = evaluate(model, weights, x, y, CPU, batch=batch)
    accuracy, loss = score.accuracy, score.loss
    expected = small_model(seed=5).eval()(x).detach()
    assert accuracy == pytest.approx(float((expected.argmax(1) == y).float().mean()))
    assert loss == pytest.approx(float(nn.functional.cross_entropy(expected, y)), rel=1e-5)
    assert model.training
    assert all(torch.equal(value, small_model().weights()[name]) for name, value in model.weights().items())


def test_no_test_samples_is_an_error_with_a_hint() -> None:
    with pytest.raises(UsageError, match="no test samples"):
        evaluate(small_model(), {}, torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64), CPU)


def test_costs_of_every_cut() -> None:
    threads = torch.get_num_threads()
    model = small_model()
    costs = profile_cuts(model, [1, 2, 3], 4, Codec(), Optimizer(), CPU, repeats=2)
    assert list(costs) == [1, 2, 3]
    for cut, cost in costs.items():
        half = {name: model.weights()[name] for name in model.names_below(cut, head=True)}
        features = torch.zeros(4, *model.feature_shape(cut))
        upload = {"features": features, "labels": torch.zeros(4, dtype=torch.int64)}
        assert cost.cut == cut
        assert cost.model_bytes == len(encode_tensors(half, Codec()))
        assert cost.feature_bytes == len(encode_tensors(upload, Codec()))
        assert cost.device_s > 0
        assert cost.server_s > 0
    assert torch.get_num_threads() == threads
    assert all(torch.equal(value, small_model().weights()[name]) for name, value in model.weights().items())


def test_sizes_follow_the_codec_and_the_given_batch() -> None:
    x = torch.zeros(4, *SHAPE)
    args = ([1], 4, Codec("uint8", zstd=True), Optimizer(), CPU)
    noise = profile_cuts(small_model(), *args, repeats=1)[1]
    blank = profile_cuts(small_model(), *args, repeats=1, batch=(x, torch.arange(4) % CLASSES))[1]
    plain = profile_cuts(small_model(), [1], 4, Codec(), Optimizer(), CPU, repeats=1)[1]
    assert blank.feature_bytes < noise.feature_bytes < plain.feature_bytes
    assert blank.model_bytes == plain.model_bytes


def test_a_spent_budget_still_measures_every_cut_once() -> None:
    costs = profile_cuts(small_model(), [1, 2, 3], 4, Codec(), Optimizer(), CPU, repeats=10**6, budget_s=0.0)
    assert all(cost.device_s > 0 and cost.server_s > 0 for cost in costs.values())
