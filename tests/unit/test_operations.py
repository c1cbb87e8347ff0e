"""FedPMT's table II, figure by figure, and the rule by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from edgebed.models.operations import (
    CIFAR10_CONVOLUTIONS,
    CIFAR10_COUNTED_CONVOLUTIONS,
    CIFAR10_WIDTHS,
    FCNN_WIDTHS,
    MNIST_CONVOLUTIONS,
    MNIST_WIDTHS,
    Convolution,
    cifar10_error_signals,
    cnn_operations,
    dropped,
    fcnn_operations,
)
from edgebed.models.staged import MODELS, StagedModel
from edgebed.wire.settings import LearningTask


def build(name: str, shape: tuple[int, ...]) -> StagedModel:
    return MODELS.create({"name": name}).build(LearningTask(shape, 10))


@pytest.mark.parametrize(("train_from", "printed"), list(enumerate([15_305_968, 9_779_760, 7_496_160, 6_473_760])))
def test_the_figures_of_fcnn_are_exact(train_from: int, printed: int) -> None:
    assert fcnn_operations(FCNN_WIDTHS, 12, train_from) == printed


@pytest.mark.parametrize(("train_from", "printed"), list(enumerate([1_828_336, 1_597_936, 1_188_336, 745_456])))
def test_the_figures_of_cnn_mnist_are_exact(train_from: int, printed: int) -> None:
    assert cnn_operations(MNIST_CONVOLUTIONS, MNIST_WIDTHS, 12, train_from) == printed


@pytest.mark.parametrize(
    ("train_from", "printed"), list(enumerate([28_068_800, 26_187_200, 24_587_200, 16_077_200, 12_864_200]))
)
def test_the_figures_of_cnn_cifar10_are_exact_with_the_three_departures_alone(train_from: int, printed: int) -> None:
    assert cifar10_as_printed(CIFAR10_WIDTHS, train_from) == printed
    assert cnn_operations(CIFAR10_CONVOLUTIONS, CIFAR10_WIDTHS, 20, train_from) > printed


def cifar10_as_printed(widths: Sequence[float], train_from: int = 0) -> int:
    return cnn_operations(CIFAR10_COUNTED_CONVOLUTIONS, widths, 20, train_from, cifar10_error_signals(widths))


@pytest.mark.parametrize(("fraction", "printed"), [(0.54, 6_431_556), (0.61, 7_579_990), (0.73, 9_717_454)])
def test_feddrops_figures_of_fcnn_are_exact(fraction: float, printed: int) -> None:
    assert fcnn_operations(dropped(FCNN_WIDTHS, fraction), 12) == printed


@pytest.mark.parametrize(("fraction", "printed"), [(0.1, 1_047_049), (0.26, 1_185_944), (0.73, 1_593_950)])
def test_feddrops_figures_of_cnn_mnist_are_exact(fraction: float, printed: int) -> None:
    assert cnn_operations(MNIST_CONVOLUTIONS, dropped(MNIST_WIDTHS, fraction), 12) == printed


@pytest.mark.parametrize(
    ("fraction", "printed"), [(0.4, 12_885_200), (0.54, 16_031_980), (0.88, 24_677_840), (0.93, 26_069_215)]
)
def test_feddrops_figures_of_cnn_cifar10_are_exact(fraction: float, printed: int) -> None:
    assert cifar10_as_printed(dropped(CIFAR10_WIDTHS, fraction)) == printed


def test_the_rule_equals_a_count_by_hand() -> None:
    """3 inputs, 4 hidden, 2 outputs, batch 5; the first layer not trained, so that the slip plays no part."""
    forward = 5 * (3 * 4 + 4 * 2) + 5 * (4 + 2)
    output = 2 * 5 * 2 + 5 * 4 * 2 + 4 * 2
    assert fcnn_operations((3, 4, 2), 5, 1) == forward + output
    hidden = 5 * 2 * 4 + 5 * 3 + 5 * 3 * 4 + 3 * 4  # 5*3 is the slip: n·n_0
    assert fcnn_operations((3, 4, 2), 5) == forward + output + hidden
    convolution = Convolution(2, 3, 3, 4)
    assert convolution.forward() == 2 * 9 * 3 * 16
    conv_hidden = 5 * 2 * 4 + 5 * 4 + 5 * 3 * 4 + 3 * 4
    both = cnn_operations([convolution], (3, 4, 2), 5)
    assert both == 3 * convolution.forward() + 5 * (3 * 4 + 4 * 2) + output + conv_hidden


def test_the_layers_counted_are_those_of_the_models() -> None:
    fcnn = build("fcnn", (1, 28, 28))
    assert [(784,), *map(fcnn.feature_shape, range(1, 5))] == [(width,) for width in FCNN_WIDTHS[:-1]]
    for name, shape, convolutions, widths in (
        ("cnn-mnist", (1, 28, 28), MNIST_CONVOLUTIONS, MNIST_WIDTHS),
        ("cnn-cifar10", (3, 32, 32), CIFAR10_CONVOLUTIONS, CIFAR10_WIDTHS),
    ):
        model, state = build(name, shape), build(name, shape).state_dict()
        for number, layer in enumerate(convolutions, 1):
            weight = state[f"conv{number}.conv.weight"]
            assert tuple(weight.shape) == (layer.filters, layer.channels, layer.kernel, layer.kernel)
            assert model.feature_shape(number) == (layer.filters, layer.side // 2, layer.side // 2)
        for number, (before, after) in enumerate(pairwise(widths), 1):
            assert tuple(state[f"fc{number}.fc.weight"].shape) == (after, before)
