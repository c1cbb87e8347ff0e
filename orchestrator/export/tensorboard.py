"""TensorBoard event files of a run: accuracy, loss, rounds, stragglers."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.export import load
from orchestrator.export.curves import Point, about, began_s
from orchestrator.records.summary import Summary


class TensorBoard:
    """One event file in a folder. "Relative" in TensorBoard shows seconds of training. Raises UsageError where
    tensorboard is not installed."""

    def __init__(self, summary: Summary, folder: str) -> None:
        load("tensorboard", "TensorBoard")
        self._writer = load("torch.utils.tensorboard", "TensorBoard").SummaryWriter(folder)

    def write(self, points: Iterable[Point]) -> None:
        for tag, value, step, wall_s in points:
            self._writer.add_scalar(tag, value, step, walltime=wall_s)
        self._writer.flush()

    def close(self, summary: Summary) -> None:
        text = "  \n".join(f"{key}: {value}" for key, value in about(summary).items())
        self._writer.add_text("run", text, 0, walltime=began_s(summary))
        self._writer.close()
