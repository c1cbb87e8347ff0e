"""TensorBoard event files of a run: accuracy, loss, rounds, stragglers. The step is the round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from orchestrator.export import load
from orchestrator.records.summary import Summary

Point = tuple[str, float, int, float]
"""Tag, value, step, seconds on the time axis."""


def points(summary: Summary) -> Iterator[Point]:
    """Every number of every round."""
    rounds = summary.rounds
    named: dict[str, Sequence[float | None]] = {
        "accuracy/test": [row.accuracy for row in rounds],
        "loss/test": [row.loss for row in rounds],
        "round/seconds": [row.round_s for row in rounds],
        "round/straggler_gap_s": [row.straggler_gaps_s for row in rounds],
        "round/waited_device_s": [row.waited_s for row in rounds],
        "round/merged": [row.merged for row in rounds],
        "round/timeline_residual": [row.timeline_residual for row in rounds],
    }
    named |= {f"extra/{name}": [row.extra.get(name) for row in rounds] for name in summary.extra_names}
    named |= {f"cut/{name}": device.cut for name, device in summary.devices.items()}
    named |= {f"device_s/{name}": device.actual_s for name, device in summary.devices.items()}
    for index, row in enumerate(rounds):
        for tag, values in named.items():
            if (value := values[index]) is not None:
                yield tag, float(value), index + 1, row.elapsed_s


def write_tensorboard(summary: Summary, folder: Path) -> None:
    """Write one event file into `folder`. Wall times are the run's start plus the time axis (divided by the dilation),
    so "relative" in TensorBoard shows seconds of training.

    Raises:
        UsageError: tensorboard is not installed.
    """
    load("tensorboard", "TensorBoard")
    writer = load("torch.utils.tensorboard", "TensorBoard").SummaryWriter(str(folder))
    start = datetime.fromisoformat(summary.started).timestamp()
    for tag, value, step, at_s in points(summary):
        writer.add_scalar(tag, value, step, walltime=start + at_s)
    wanted = ("run", "method", "seed", "enforcement", "dilation", "calibrated", "ended")
    about = {name: getattr(summary, name) for name in wanted}
    writer.add_text("run", "  \n".join(f"{key}: {value}" for key, value in about.items()), 0, walltime=start)
    writer.close()
