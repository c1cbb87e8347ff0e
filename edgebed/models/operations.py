"""The operation counts of FedPMT's table II: what a mini-batch costs where back-propagation stops early. Pure.

An operation is a multiply-add or one element-wise step (§V-A, papers.md §3). For a fully connected layer l with n_l
neurons and a mini-batch of n:

    forward         n·n_l·n_{l-1}, and n·n_l for its activation
    error signal    2n·n_L at the output; n·n_{l+1}·n_l + n·n_l at a hidden layer
    gradient        n·n_l·n_{l-1}
    update          n_l·n_{l-1}

`fcnn_operations` gives the table's figures to the last digit. It therefore repeats an error in the paper's count: at
layer 1 the activation's term of the error signal is n·n_0, where the rule in the text gives n·n_1 (a difference of 4608
operations of 15305968).

`cnn_operations` gives the four figures of CNN-MNIST to the last digit. There a convolution counts c_{l-1}·s²·c_l·m²
forward and twice that backward **without** the factor n, and no activation is counted forward. This count only serves
to reproduce the table. To plan with, use measured costs or those of `edgebed models`.

CNN-CIFAR10's figures do not follow from that rule with the layers of footnote 7. Three changes give them to the last
digit; the paper does not explain them, and they are probably errors:

- conv2 is counted with 20 filters, not 32, although fc1 still has 800 inputs (`CIFAR10_COUNTED_CONVOLUTIONS`);
- fc1's error signal is counted with the output's 10 neurons instead of fc2's 300 (`cifar10_error_signals`);
- fc2's activation is counted as 10·n_l instead of n·n_l (`cifar10_error_signals`).

FedDrop's column is also given to the last digit, with the widths of `dropped`: every hidden fully connected layer has
the printed fraction of its neurons, fractions of a neuron included (93.44 of CNN-MNIST's 128), and convolutions are
whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

FCNN_WIDTHS = (784, 400, 300, 200, 100, 10)


class Convolution(NamedTuple):
    """Channels in and out, side of the kernel, side of the map it gives (before the pool)."""

    channels: int
    filters: int
    kernel: int
    side: int

    def forward(self) -> int:
        """Multiply-adds for one sample."""
        return self.channels * self.kernel**2 * self.filters * self.side**2


MNIST_CONVOLUTIONS = (Convolution(1, 8, 5, 24), Convolution(8, 16, 5, 8))
MNIST_WIDTHS = (256, 128, 10)
CIFAR10_CONVOLUTIONS = (Convolution(3, 16, 5, 28), Convolution(16, 32, 5, 10))
CIFAR10_WIDTHS = (800, 500, 300, 10)

CIFAR10_COUNTED_CONVOLUTIONS = (Convolution(3, 16, 5, 28), Convolution(16, 20, 5, 10))


def cifar10_error_signals(widths: Sequence[float]) -> dict[int, float]:
    """Error signals of fc1 and fc2 of CNN-CIFAR10 as table II counts them, for its batch of 20."""
    return {1: 20 * widths[3] * widths[1] + 20 * widths[1], 2: 20 * widths[3] * widths[2] + 10 * widths[2]}


def dropped(widths: Sequence[int], fraction: float) -> list[float]:
    """Widths of FedDrop's sub-model in table II: every hidden layer at `fraction`, input and output whole."""
    return [widths[0], *(width * fraction for width in widths[1:-1]), widths[-1]]


def fcnn_operations(widths: Sequence[float], batch: int, train_from: int = 0) -> int:
    """Forward and backward of one mini-batch, layers `train_from`+1..L trained, as table II counts it.

    Args:
        widths: n_0..n_L.
        train_from: how many leading layers are not trained (`Assignment.train_from`); at least the last one is.
    """
    forward = sum(batch * after * before + batch * after for before, after in _layers(widths))
    slip = batch * (widths[0] - widths[1]) if train_from == 0 and len(widths) > 2 else 0
    return int(forward + _backward(widths, batch, train_from, {}) + slip)


def cnn_operations(
    convolutions: Sequence[Convolution],
    widths: Sequence[float],
    batch: int,
    train_from: int = 0,
    error_signals: Mapping[int, float] | None = None,
) -> int:
    """The same for convolutions in front of fully connected layers; `train_from` counts through both.

    Args:
        error_signals: operations of the error signal at a fully connected layer l, where not those of the rule.
    """
    forward = float(sum(layer.forward() for layer in convolutions))
    forward += sum(batch * after * before for before, after in _layers(widths))
    backward = sum(2 * layer.forward() for layer in convolutions[train_from:])
    first = max(0, train_from - len(convolutions))
    return int(forward + backward + _backward(widths, batch, first, error_signals or {}))


def _backward(widths: Sequence[float], batch: int, train_from: int, error_signals: Mapping[int, float]) -> float:
    """Error signal, gradient and update of the fully connected layers `train_from`+1..L."""
    last, total = len(widths) - 1, 0.0
    for number in range(train_from + 1, last + 1):
        before, after = widths[number - 1], widths[number]
        error = 2 * batch * after if number == last else batch * widths[number + 1] * after + batch * after
        total += error_signals.get(number, error) + batch * after * before + after * before
    return total


def _layers(widths: Sequence[float]) -> list[tuple[float, float]]:
    return list(pairwise(widths))
