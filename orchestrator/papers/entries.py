"""The part of a table that is wanted, and its entries from the figures of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from edgebed.errors import UsageError
from edgebed.plugins import called
from orchestrator.papers.tables import Job, Reproduction, Scale, ScaleName, jobs, scaled
from orchestrator.records.compare.quantities import RunFigures, quantity
from orchestrator.records.compare.ratios import Entry, entries

FreeValues = dict[str, dict[str, Annotated[float, msgspec.Meta(ge=0, lt=1e12)]]]
"""Values of one seed and column without a run, by quantity and row."""

Values = dict[str, dict[tuple[str, str, int], float | None]]
"""By quantity, then by row, column and seed. None: the run did not reach it."""


class Selection(msgspec.Struct, frozen=True):
    """The part of a table that is wanted. Empty: all. `part`: the i-th of n equal parts of its cells, i from 1."""

    scale: ScaleName = "digits"
    seeds: Sequence[int] = ()
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    part: tuple[int, int] = (1, 1)


class Measured(msgspec.Struct, frozen=True):
    """The values and entries of a table by quantity, how they were made, their scale, what sharing saved, the seeds."""

    values: Values
    tables: dict[str, list[Entry]]
    how: str
    about: str
    saved: str = ""
    seeds: Sequence[int] = ()


def wanted(table: Reproduction, selection: Selection) -> Scale:
    """The scale with the rows and columns that are wanted; the baseline always is. Raises UsageError."""
    at = scaled(table, selection.scale)
    unknown = [row for row in selection.rows if row not in at.rows]
    unknown += [column for column in selection.columns if column not in at.columns]
    if unknown:
        raise UsageError(
            f"the table has no row or column {', '.join(map(repr, unknown))}",
            hint=f"rows are {', '.join(at.rows)}; columns are {', '.join(at.columns)}",
        )
    return msgspec.structs.replace(
        at,
        rows=[row for row in at.rows if not selection.rows or row in selection.rows or row == table.baseline],
        columns={c: at.columns[c] for c in at.columns if not selection.columns or c in selection.columns},
    )


def wanted_jobs(table: Reproduction, path: Path, selection: Selection) -> list[Job]:
    """The runs that are wanted. Raises UsageError."""
    at = wanted(table, selection)
    found = [
        job
        for job in jobs(table, path, selection.scale, selection.seeds)
        if job.row in at.rows and set(job.columns) & set(at.columns)
        if table.kind == "runs" or job.row == table.baseline  # one pass gives all rows
    ]
    number, of = selection.part
    return found[number - 1 :: of]


def values_of(table: Reproduction, at: Scale, runs: Iterable[tuple[Job, RunFigures | FreeValues]]) -> Values:
    """The quantities of the runs, and values that are known without one."""
    values: Values = {name: {} for name in table.quantities}
    for job, figures in runs:
        for column in set(job.columns) & set(at.columns):
            for name, found in values.items():
                if isinstance(figures, RunFigures):
                    found[job.row, column, job.seed] = quantity(name, figures, at.columns[column].target)
                else:
                    found |= {(row, column, job.seed): value for row, value in figures.get(name, {}).items()}
    return values


def tables_of(table: Reproduction, at: Scale, values: Values) -> dict[str, list[Entry]]:
    """The entries of every quantity, with the paper's figures."""
    return {
        name: entries(found, at.rows, list(at.columns), table.baseline, printed(table, name))
        for name, found in values.items()
    }


def printed(table: Reproduction, name: str) -> dict[str, Mapping[str, float | None]]:
    """The paper's figures of a quantity, by row and column."""
    return {row: dict(zip(table.columns, found, strict=True)) for row, found in table.figures.get(name, {}).items()}


def about(at: Scale, todo: Sequence[Job], *, simulated: bool) -> str:
    """What was run, in words: the scale, and the source of the times and bytes of a simulation."""
    text = " ".join(at.about.split())
    as_if = todo[0].experiment.simulation.as_if if todo and simulated else None
    if as_if is None or called(as_if.model) == called(todo[0].experiment.model):
        return text
    return (
        f"{text} Seconds and bytes are those of {called(as_if.model)} on {as_if.train_samples} samples in batches "
        f"of {as_if.batch_size} (simulation.as_if); accuracies and rounds are those of the model that was trained."
    )
