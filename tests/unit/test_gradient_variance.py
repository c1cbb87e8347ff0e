"""The variance of gradients by exit: a case by hand, and against gradients that are taken one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgebed.models.staged import StagedModel
from edgebed.wire.settings import LearningTask
from orchestrator.papers.gradient_variance import exit_variances
from orchestrator.testing.rounds import small_model


def test_two_batches_by_hand() -> None:
    """Logits are 0, so p = 1/2 and the gradient is (p - y) x. Batch 1: x = (1, 0), class 0; batch 2: x = (3, 0), class
    1. A row of W has the gradients ∓(0.5, 0) and ±(1.5, 0), variances 1 and 0; a bias ∓0.5 and ±0.5, variance 0.25."""
    model = StagedModel([("top", nn.Sequential(nn.Flatten(), nn.Linear(2, 2)))], {}, LearningTask((2, 1, 1), 2))
    for weight in model.parameters():
        nn.init.zeros_(weight)
    batches = [(torch.tensor([[a, 0.0]]).view(1, 2, 1, 1), torch.tensor([label])) for a, label in ((1.0, 0), (3.0, 1))]
    (found,) = exit_variances(model, (1,), batches)
    assert (found.classifier, found.reached) == pytest.approx(((4 * 0.5 + 2 * 0.25) / 6,) * 2)
    assert found.tensors == pytest.approx((0.5 + 0.25) / 2)


def test_every_reading_is_that_of_gradients_taken_one_by_one() -> None:
    model, cuts = small_model(), (1, 2, 4)
    generator = torch.Generator().manual_seed(3)
    batches = [
        (
            torch.randn(5, *model.input_shape, generator=generator),
            torch.randint(model.classes, (5,), generator=generator),
        )
        for _ in range(4)
    ]
    before = {name: value.clone() for name, value in model.weights().items()}
    found = exit_variances(model, cuts, batches)
    assert all(torch.equal(before[name], value) for name, value in model.weights().items())
    for cut, each in zip(cuts, found, strict=True):
        variances = one_by_one(model, cut, batches)
        shared = [value for name, value in variances.items() if name.startswith(f"{model.stage_names[0]}.")]
        assert each.shared == pytest.approx(float(torch.cat(shared).mean()), rel=1e-4)
        assert each.reached == pytest.approx(float(torch.cat(list(variances.values())).mean()), rel=1e-4)
        assert each.tensors == pytest.approx(
            sum(float(v.mean()) for v in variances.values()) / len(variances), rel=1e-4
        )
        head = f"head{cut}." if cut < len(model) else f"{model.stage_names[-1]}."
        own = [value for name, value in variances.items() if name.startswith(head)]
        assert each.classifier == pytest.approx(float(torch.cat(own).mean()), rel=1e-4)


def one_by_one(model: StagedModel, cut: int, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The variance of every coordinate over the batches, by name, of the weights with a gradient."""
    gradients: dict[str, list[Tensor]] = {}
    for x, y in batches:
        copied = copy.deepcopy(model).train()
        z = copied.lower(cut)(x)
        functional.cross_entropy(copied.head(cut)(z) if cut < len(model) else z, y).backward()
        for name, weight in copied.named_parameters():
            if weight.grad is not None:
                gradients.setdefault(name, []).append(weight.grad.flatten())
    return {name: torch.stack(each).var(0, unbiased=False) for name, each in gradients.items()}
