"""FedPMT's table II: counted operations, which must be equal to the printed ones."""

from __future__ import annotations

from collections.abc import Callable

from edgebed.models import operations
from orchestrator.papers.tables import Reproduction

COUNTS: dict[str, Callable[[int], int]] = {
    "fcnn batch 12": lambda n: operations.fcnn_operations(operations.FCNN_WIDTHS, 12, n),
    "cnn-mnist batch 12": lambda n: operations.cnn_operations(
        operations.MNIST_CONVOLUTIONS, operations.MNIST_WIDTHS, 12, n
    ),
    "cnn-cifar batch 20": lambda n: operations.cnn_operations(
        operations.CIFAR10_COUNTED_CONVOLUTIONS,
        operations.CIFAR10_WIDTHS,
        20,
        n,
        operations.cifar10_error_signals(operations.CIFAR10_WIDTHS),
    ),
}


def counted(table: Reproduction) -> dict[str, list[tuple[int, float | None]]]:
    """Ours and the printed count by network, for 0, 1, … layers without a backward pass."""
    return {
        label: [(count(layers), paper) for layers, paper in enumerate(figures["operations"])]
        for label, count in COUNTS.items()
        if (figures := table.figures.get(label))
    }
