"""How figures for papers look, which there are, and to what files they go. Loads no drawing library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from edgebed.errors import UsageError
from orchestrator.records.compare.curves import Spread

Width = Literal["column", "page"]


class Look(msgspec.Struct, frozen=True):
    """Width in a two-column paper, whether figures have a title, what the bands of curves show, and whether accuracy
    over time has a logarithmic axis."""

    width: Width = "column"
    title: bool = True
    spread: Spread = "range"
    log: bool = False


LOOK = Look()

PAIRED, REACHED, BOUND, WAITED = "paired-ratio", "target-reached", "bounds", "waits"
"""Figures that not all runs have: of interleaved runs, of runs of which some missed the target, and of those whose
records tell what bounded the rounds."""

OF_RUNS = (
    *("accuracy-time", "accuracy-rounds", "accuracy-bytes", "time-to-target", REACHED, PAIRED, "seconds"),
    *(BOUND, WAITED),
)
"""Figures of several runs."""

OF_ONE_RUN = ("accuracy-time", "accuracy-rounds", "seconds", "round", "gaps", "devices", "cuts", BOUND, WAITED)
"""Figures of one run; `round` is the Gantt of one round."""


def check(paths: Sequence[Path], only: str | None, names: Sequence[str]) -> None:
    """Raises UsageError: no such figure, or a file that cannot be written in any format."""
    if only is not None and only not in names:
        raise UsageError(f"no figure {only!r}", hint=f"one of {', '.join(names)}")
    for path in paths:
        if path.suffix not in (".pdf", ".svg", ".png"):
            raise UsageError(f"{path}: not a name of a PDF, SVG or PNG file", hint="end it in .pdf, .svg or .png")
