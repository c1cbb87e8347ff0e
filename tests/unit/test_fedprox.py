"""FedProx: the proximal step worked by hand, and fewer steps for the slow."""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from edgebed.methods.base import find_half
from edgebed.methods.fedprox import FedProx
from edgebed.methods.parts.device_speed import Speeds
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import LearningTask, Optimizer
from orchestrator.testing.rounds import SCHEDULE, make_method, play, small_model, view


class Scale(nn.Module):
    """Logits (w·x, 0) of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.w * x, torch.zeros_like(x)], 1)


def test_two_steps_worked_by_hand() -> None:
    """x = 1, y = 0, lr 1, μ = 0.5. Step 1: dL/dw = p₀ − 1 = −0.5 at w = 0, where the term is 0; w = 0.5.
    Step 2: σ(0.5) − 1 + 0.5·0.5 = −0.37754 + 0.25; w = 0.5 + 0.12754."""
    model = StagedModel([("md1", Scale())], {}, LearningTask((1,), 2))
    assignment = Assignment("a", {}, 2, (1,), 1, "prox", optimizer=Optimizer("sgd", 1.0), options={"mu": 0.5})
    batch = (torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))
    half = find_half("prox")(model, assignment, [batch, batch])
    try:
        next(half)
    except StopIteration as end:
        trained = end.value
    torch.testing.assert_close(trained.weights["md1.w"], torch.tensor(0.62754), atol=1e-5, rtol=0)
    expected = (nn.functional.softplus(torch.tensor(0.0)) + nn.functional.softplus(torch.tensor(-0.5))) / 2
    assert abs(trained.loss - float(expected)) < 1e-6, "the reported loss is without the term"


async def test_without_the_term_it_is_fedavg_to_the_bit() -> None:
    three, before = {"a": 10, "b": 9, "c": 5}, small_model().weights()
    prox = await play(make_method("fedprox", mu=0, steps="all"), before, three, range(2))
    plain = await play(make_method("fedavg"), before, three, range(2))
    assert all(torch.equal(prox[name], plain[name]) for name in before)
    held = await play(make_method("fedprox", mu=1.0, steps="all"), before, three, range(2))
    assert any(not torch.equal(held[name], plain[name]) for name in before)


def test_slow_devices_do_as_many_steps_as_fit() -> None:
    method = make_method("fedprox")
    assert isinstance(method, FedProx)
    method.speeds = Speeds(batch_s={"a": 1.0, "b": 1.0, "c": 4.0}, communication_s=dict.fromkeys("abc", 0.0))
    plan = method.plan(1, [view("a", 40), view("b", 40), view("c", 40)], SCHEDULE)
    assert {name: each.steps for name, each in plan.assignments.items()} == {"a": 0, "b": 0, "c": 2}
    assert plan.notes["steps"] == {"a": 10, "b": 10, "c": 2}
    method.options = msgspec.structs.replace(method.options, steps="all")
    assert {each.steps for each in method.plan(1, [view("c", 40)], SCHEDULE).assignments.values()} == {0}
