"""SCAFFOLD: with all control variates zero it is FedAvg to the bit; a step and a merge worked by hand."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from torch import nn

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import Context, Contribution
from edgebed.methods.parts.exchange import UNMEASURED
from edgebed.methods.scaffold import Scaffold, scaffold_half
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import LearningTask, Optimizer
from orchestrator.testing.agents import Agents
from orchestrator.testing.rounds import PLAIN, SCHEDULE, make_method, play, small_model, view

DEVICES = {"a": 10, "b": 9, "c": 6}


def made(**options: object) -> Scaffold:
    method = make_method("scaffold", **options)
    assert isinstance(method, Scaffold)
    return method


class PlainFedAvg(Scaffold):
    """SCAFFOLD whose control variates stay zero."""

    def merge(self, weights: Weights, contributions: list[Contribution]) -> Weights:  # type: ignore[override]
        merged = super().merge(weights, contributions)
        self.c = {name: torch.zeros_like(value) for name, value in self.c.items()}
        self.c_i = {}
        return merged


async def test_with_control_variates_of_zero_it_is_fedavg_to_the_bit() -> None:
    """Every round on agents that are new, with no server's copy: c and all c_i are zero."""
    method, fedavg = PlainFedAvg(), make_method("fedavg", aggregate="uniform")
    method.setup(fedavg.context)
    ours = theirs = small_model().weights()
    for number in range(3):
        ours = await play(method, ours, DEVICES, range(number, number + 1), schedule=PLAIN)
        theirs = await play(fedavg, theirs, DEVICES, range(number, number + 1), schedule=PLAIN)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


async def test_with_control_variates_it_is_not_fedavg() -> None:
    method, agents = made(), Agents()
    fedavg = make_method("fedavg", aggregate="uniform")
    start = small_model().weights()
    ours = await play(method, start, DEVICES, range(3), agents=agents)
    theirs = await play(fedavg, start, DEVICES, range(3), schedule=PLAIN)
    assert not torch.equal(ours["md1.conv.weight"], theirs["md1.conv.weight"])


def line() -> StagedModel:
    """One weight and no bias: w · x as the logit of class 0; that of class 1 is 0."""
    fc = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        fc.weight.copy_(torch.tensor([[0.0], [0.0]]))
    return StagedModel([("fc", fc)], {}, LearningTask((1,), 2))


def test_a_step_and_a_control_variate_worked_by_hand() -> None:
    """One sample x = 1 of class 0, weights 0, so softmax gives 1/2 and the gradient is (-1/2, 1/2). c = (1, 0), c_i =
    (1/4, 0), η = 1/2: y = 0 - 1/2 (-1/2 - 1/4 + 1, 1/2) = (-1/8, -1/4). c_i⁺ = c_i - c + (x - y) / (1 · 1/2) =
    (1/4 - 1 + 1/4, 1/2) = (-1/2, 1/2): the gradient, as there was one step."""
    model = line()
    model.given, model.kept = {"fc.weight": torch.tensor([[1.0], [0.0]])}, {"fc.weight": torch.tensor([[0.25], [0.0]])}
    work = Assignment("a", {}, 2, (1,), 1, "scaffold", optimizer=Optimizer("sgd", 0.5))
    half = scaffold_half(model, work, [(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))])
    with pytest.raises(StopIteration) as ended:
        next(half)
    trained = ended.value.value
    assert trained.weights["fc.weight"].flatten().tolist() == [-0.125, -0.25]
    assert trained.extra["fc.weight"].flatten().tolist() == [-0.5, 0.5]
    assert trained.state["fc.weight"].flatten().tolist() == [-0.5, 0.5]


def test_the_loss_that_is_told_is_that_of_the_labels_alone() -> None:
    """After the step above the logit of class 0 is larger by 1/8, and c - c_i adds -3/32 to what is minimised."""
    model = line()
    model.given, model.kept = {"fc.weight": torch.tensor([[1.0], [0.0]])}, {"fc.weight": torch.tensor([[0.25], [0.0]])}
    work = Assignment("a", {}, 2, (1,), 1, "scaffold", optimizer=Optimizer("sgd", 0.5))
    half = scaffold_half(model, work, [(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))] * 2)
    with pytest.raises(StopIteration) as ended:
        next(half)
    assert ended.value.value.loss == pytest.approx((math.log(2) + math.log(1 + math.exp(-0.125))) / 2)


def contribution(device: str, y: float, c_plus: float) -> Contribution:
    work = Assignment(device, {}, 2, (1,), 1, "scaffold")
    weights, extra = {"fc.weight": torch.full((2, 1), y)}, {"fc.weight": torch.full((2, 1), c_plus)}
    return Contribution(device, 1, work, weights, {}, extra)


def test_the_server_worked_by_hand() -> None:
    """Four devices, two of them in a round, η_g = 2. x = 1, y = (3, 2): x ← 1 + 2 (2.5 - 1) = 4. c = 0, c_i⁺ = (2, 6):
    c ← 0 + (2 + 6) / 4 = 2. Then a has 4: c ← 2 + (4 - 2) / 4 = 2.5."""
    method = Scaffold(Scaffold.Options(lr=2.0))
    method.setup(Context({}, line(), {}, server_slots=1, devices=("a", "b", "c", "d")))
    x = {"fc.weight": torch.ones(2, 1)}
    merged = method.merge(x, [contribution("a", 3.0, 2.0), contribution("b", 2.0, 6.0)])
    assert merged["fc.weight"].flatten().tolist() == [4.0, 4.0]
    assert method.c["fc.weight"].flatten().tolist() == [2.0, 2.0]
    method.merge(merged, [contribution("a", 3.0, 4.0)])
    assert method.c["fc.weight"].flatten().tolist() == [2.5, 2.5]


def test_running_statistics_are_those_of_the_devices_whatever_the_servers_rate() -> None:
    """A step of twice the length, from a variance of 1 past 1/4, would end at -1/2."""
    method, x = made(lr=2.0), small_model().weights()
    work = method.plan(0, [view("a")], PLAIN).assignments["a"]
    y = {name: value / 4 if value.is_floating_point() else value for name, value in x.items()}
    merged = method.merge(x, [Contribution("a", 10, work, y, {}, method.c)])
    assert torch.equal(merged["md1.norm.running_var"], y["md1.norm.running_var"])
    torch.testing.assert_close(merged["md1.conv.weight"], -x["md1.conv.weight"] / 2)


@pytest.mark.parametrize(
    "optimizer", [Optimizer("adam", 0.01), Optimizer("sgd", 0.01, momentum=0.9)], ids=["adam", "momentum"]
)
def test_it_refuses_what_is_not_plain_sgd(optimizer: Optimizer) -> None:
    with pytest.raises(UsageError, match="plain SGD"):
        made().check_schedule(msgspec.structs.replace(SCHEDULE, optimizer=optimizer))


def test_a_control_variate_that_does_not_follow_from_the_weights_is_refused() -> None:
    method = made()
    work = method.plan(0, [view("a")], PLAIN).assignments["a"]
    sent = method.task_weights(small_model().weights(), work)
    update = {name: value + 0.1 if value.is_floating_point() else value for name, value in sent.items()}
    honest = {name: torch.full_like(value, -0.1 / 0.05 / 3) for name, value in method.c.items()}
    report = msgspec.structs.replace(UNMEASURED, samples=10, batches=3)
    assert method.decode_update(work, report, sent, update, honest) is update
    with pytest.raises(RunError, match="does not follow"):
        method.decode_update(work, report, sent, update, {name: -value for name, value in honest.items()})


@pytest.mark.parametrize("said", [0, 1, 2])
def test_a_control_variate_of_fewer_batches_than_were_asked_for_is_refused(said: int) -> None:
    """It is larger by the batches that the report leaves out, with the same update: with 100 batches 100 times."""
    method = made()
    work = method.plan(0, [view("a")], PLAIN).assignments["a"]
    sent = method.task_weights(small_model().weights(), work)
    update = {name: value + 0.1 if value.is_floating_point() else value for name, value in sent.items()}
    lied = {name: torch.full_like(value, -0.1 / 0.05 / max(1, said)) for name, value in method.c.items()}
    report = msgspec.structs.replace(UNMEASURED, samples=10, batches=said)
    with pytest.raises(RunError, match="does not follow"):
        method.decode_update(work, report, sent, update, lied)
