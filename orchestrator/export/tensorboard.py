"""TensorBoard event files of a run: accuracy, loss, rounds, stragglers. The step is the round."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.export.extras import load

Summary = dict[str, Any]
Point = tuple[str, float, int, float]
"""Tag, value, step, seconds on the time axis."""


def points(summary: Summary) -> Iterator[Point]:
    """Every number of every round."""
    named = {
        "accuracy/test": summary["accuracy"],
        "loss/test": summary["loss"],
        "round/seconds": summary["round_s"],
        "round/straggler_gap_s": summary["straggler_gaps_s"],
        "round/waited_device_s": summary["waited_s"],
        "round/merged": summary["merged"],
        "round/timeline_residual": summary["timeline_residual"],
    }
    named |= {f"extra/{name}": values for name, values in summary["extra"].items()}
    named |= {f"cut/{device}": values for device, values in summary["cut"].items()}
    named |= {f"device_s/{device}": values for device, values in summary["actual_s"].items()}
    for index in range(summary["rounds"]):
        for tag, values in named.items():
            if values[index] is not None:
                yield tag, float(values[index]), index + 1, summary["elapsed_s"][index]


def write_tensorboard(summary: Summary, folder: Path) -> None:
    """Write one event file into `folder`. Wall times are the run's start plus the time axis (divided by the dilation),
    so "relative" in TensorBoard shows seconds of training.

    Raises:
        UsageError: tensorboard is not installed.
    """
    load("tensorboard", "TensorBoard")
    writer = load("torch.utils.tensorboard", "TensorBoard").SummaryWriter(str(folder))
    start = datetime.fromisoformat(summary["started"]).timestamp()
    for tag, value, step, at_s in points(summary):
        writer.add_scalar(tag, value, step, walltime=start + at_s)
    about = {key: summary[key] for key in ("run", "method", "seed", "enforcement", "dilation", "calibrated", "ended")}
    writer.add_text("run", "  \n".join(f"{key}: {value}" for key, value in about.items()), 0, walltime=start)
    writer.close()
