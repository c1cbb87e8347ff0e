"""Costs by kind of layer: what a step calls, what that costs, and how a reference adds it up."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor, nn

from orchestrator.references.layer_costs import LayerCall, LayerCalls, LayerMeter, WidthLaw, law_at, seconds
from orchestrator.references.work_laws import WorkLaws
from tests.component._fleet import model
from tests.unit._assignments import assignment

CONVOLUTION = "convolution 3x3"
COSTS = {CONVOLUTION: [WidthLaw(4, 4.0, 0.4), WidthLaw(16, 2.0, 0.1)], "update": [WidthLaw(1, 1e-6, 0.0)]}


@pytest.mark.parametrize(
    ("width", "call_s", "unit_s"), [(2, 4.0, 0.4), (4, 4.0, 0.4), (8, 3.0, 0.25), (16, 2.0, 0.1), (64, 2.0, 0.1)]
)
def test_between_two_widths_costs_are_interpolated(width: float, call_s: float, unit_s: float) -> None:
    law = law_at(COSTS[CONVOLUTION], width)
    assert (law.call_s, law.unit_s) == (pytest.approx(call_s), pytest.approx(unit_s))
    assert seconds(COSTS, LayerCall(CONVOLUTION, width, 10)) == pytest.approx(call_s + 10 * unit_s)


def test_what_was_not_measured_is_free() -> None:
    assert seconds(COSTS, LayerCall("norm", 8, 100)) == 0.0


def calls(run: Callable[[], object]) -> dict[str, list[LayerCall]]:
    seen: list[LayerCall] = []
    with LayerCalls(seen.append):
        run()
    return {kind: [call for call in seen if call.kind == kind] for kind in {call.kind for call in seen}}


def pass_through(layer: nn.Module, x: Tensor) -> dict[str, list[LayerCall]]:
    return calls(lambda: layer(x).sum().backward())


def test_a_convolution_counts_its_multiply_adds() -> None:
    found = pass_through(nn.Conv2d(4, 9, 3, padding=1), torch.zeros(2, 4, 5, 5, requires_grad=True))
    units = 2 * 9 * 25 * 4 * 9
    assert found[CONVOLUTION] == [LayerCall(CONVOLUTION, 6.0, units)]
    assert found[CONVOLUTION + " backward"] == [LayerCall(CONVOLUTION + " backward", 6.0, units)]


def test_the_first_layer_needs_no_gradient_of_its_input() -> None:
    assert CONVOLUTION + " last backward" in pass_through(nn.Conv2d(4, 4, 3), torch.zeros(2, 4, 5, 5))
    assert "depthwise last backward" in pass_through(nn.Conv2d(4, 4, 3, groups=4), torch.zeros(2, 4, 5, 5))
    assert "convolution 5x5" in pass_through(nn.Conv2d(4, 4, 7), torch.zeros(2, 4, 9, 9)), "the nearest that is known"


def test_norms_products_and_pools_are_told_apart() -> None:
    x = torch.zeros(2, 4, 6, 6, requires_grad=True)
    assert pass_through(nn.BatchNorm2d(4), x)["norm backward"] == [LayerCall("norm backward", 4, 288)]
    assert {"pool", "pool backward"} <= set(pass_through(nn.MaxPool2d(2), x))
    product = pass_through(nn.Linear(6, 8), torch.zeros(3, 6))["linear"]
    assert product == [LayerCall("linear", 3, 3 * 6 * 8)] * 2, "forward, and the gradient of the weights"


def test_an_optimizers_step_is_counted_by_operation() -> None:
    weight = nn.Parameter(torch.zeros(5))
    weight.grad = torch.ones(5)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    assert calls(optimizer.step)["update"] == [LayerCall("update", 1.0, 5)]


def test_a_meter_counts_only_while_it_is_open() -> None:
    meter = LayerMeter(COSTS)
    layer, x = nn.Conv2d(4, 4, 3), torch.zeros(1, 4, 3, 3)
    layer(x)
    assert meter.seconds() == 0.0
    with meter:
        layer(x)
    assert meter.seconds() == pytest.approx(4.0 + 0.4 * 4 * 4 * 9)
    with meter:
        layer(x)
    assert meter.seconds() == pytest.approx(2 * (4.0 + 0.4 * 4 * 4 * 9))


def test_the_reference_of_layers_is_the_same_every_time_and_grows_with_what_is_trained() -> None:
    batch = torch.zeros(8, *model().input_shape), torch.zeros(8, dtype=torch.int64)
    whole = assignment(objective="output", stages=len(model()))

    def law(**changes: object) -> float:
        wanted = msgspec.structs.replace(whole, **changes)
        return WorkLaws(model(), batch, layers=COSTS).device_law(wanted).seconds(8)

    assert law() == law()
    assert law(objective="head", stages=2) < law(objective="head", stages=4) < law()
    assert law(train_from=3) < law()
