"""A table of a paper from its cells: computes those that are missing, and checks those that are there."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

from edgebed.errors import RunError, UsageError, counted
from orchestrator.files.output import try_folder
from orchestrator.papers.agreement import differ_at_start, differences
from orchestrator.papers.cells import (
    Cell,
    Kept,
    kept,
    outcome,
    place,
    read_cell,
    saved_by,
    settings_of,
    write_cell,
)
from orchestrator.papers.compute import Start, WorkerRequest
from orchestrator.papers.entries import Measured, Selection, about, tables_of, values_of, wanted, wanted_jobs
from orchestrator.papers.learnings import find, has_trajectory, key_of, remember
from orchestrator.papers.tables import Job, Reproduction
from orchestrator.papers.workers import Task, Workers, own
from orchestrator.runs.request import Notify


class Place(msgspec.Struct, frozen=True):
    """Where cells are, and where their runs are."""

    results: Path
    work: Path


def reproduce(
    table: Reproduction,
    path: Path,
    selection: Selection,
    at: Place,
    *,
    most: int,
    fresh: bool,
    notify: Notify,
    share: bool = False,
) -> Measured:
    """Compute the cells that are not there, or no longer count, and read all.

    Args:
        path: of the table's file.
        most: processes at a time.
        fresh: compute those that count again, too.
        share: train once for cells that learn the same (`learnings`).

    Raises:
        FileError: the results cannot be written; nothing is computed.
        RunError: a cell could not be computed; the others are there.
    """
    todo = wanted_jobs(table, path, selection)
    missing: list[tuple[Job, Task]] = []
    for job, found in _with_kept(table, path, selection, at.results, todo):
        anew = fresh or found.why.startswith("stale")
        task = msgspec.structs.replace(_task(path, selection, job, at, share=share), anew=anew)
        if fresh or found.why:
            missing.append((job, task))
        elif share and found.cell is not None:
            _remember(found.cell, task)
        if found.why and found.path.exists():
            notify(f"computed again: {found.told}")
    notify(f"{counted(len(todo), 'cell')}: {len(todo) - len(missing)} there, {len(missing)} to compute")
    if missing:
        try_folder(at.results)
    waves = _waves(missing, path, at.results, notify) if share else [[task for _, task in missing]]
    _compute(waves, most, notify)
    return measured(table, path, selection, at.results)


def _remember(cell: Cell, task: Task) -> None:
    """Keep what a cell has learned that was computed without `share`, if its run is still there."""
    if cell.learned is None and not has_trajectory(Path(task.request.results), cell.settings):
        for run in Path(task.request.work).glob("run/*"):
            remember(Path(task.request.results), cell, run)


def _waves(
    missing: Sequence[tuple[Job, Task]], path: Path, results: Path, notify: Notify
) -> tuple[list[Task], list[Task]]:
    """The tasks that learn, and after them those that take what these, or cells that are there, have learned."""
    learning, later = list[Task](), list[Task]()
    keys, alone = set[str](), set[str]()
    for job, task in missing:
        settings = settings_of(job, path)
        try:
            key = key_of(settings)
        except UsageError as error:
            alone.add(f"{job.row}: {error}")
            learning.append(task)
            continue
        shared = key in keys or find(results, settings, file_of(task)) is not None
        (later if shared else learning).append(task)
        keys.add(key)
    for line in sorted(alone):
        notify(line)
    return learning, later


def _compute(waves: Iterable[Sequence[Task]], most: int, notify: Notify) -> None:
    """Compute one wave after the other. Raises RunError where cells were not computed; the others are there."""
    if failed := _failures(waves, most, notify):
        raise RunError(
            f"{counted(len(failed), 'cell')} not computed: {'; '.join(failed)}", hint="the same command goes on"
        )


def _failures(waves: Iterable[Sequence[Task]], most: int, notify: Notify) -> list[str]:
    """Compute one wave after the other; returns a line for each cell that failed."""
    return [line for tasks in waves if tasks for line in asyncio.run(Workers(tasks, most, notify).run())]


def measured(table: Reproduction, path: Path, selection: Selection, results: Path) -> Measured:
    """The table from the cells that count."""
    scale, todo = wanted(table, selection), wanted_jobs(table, path, selection)
    found = _with_kept(table, path, selection, results, todo)
    done = [(job, outcome(each.cell)) for job, each in found if each.cell is not None and not each.why]
    values, how = values_of(table, scale, done), f"simulated, scale {selection.scale}"
    saved = saved_by([each.cell for _, each in found if each.cell is not None and not each.why])
    seeds = selection.seeds or scale.seeds
    if not set(scale.seeds) <= set(seeds):  # a verdict on these is not the table's
        how += f", {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))} alone"
    return Measured(values, tables_of(table, scale, values), how, about(scale, todo, simulated=True), saved, seeds)


def _with_kept(
    table: Reproduction, path: Path, selection: Selection, results: Path, todo: Iterable[Job]
) -> list[tuple[Job, Kept]]:
    return [(job, kept(results, path.stem, selection.scale, job, path)) for job in todo]


def _task(
    path: Path, selection: Selection, job: Job, at: Place, *, only_first: bool = False, share: bool = False
) -> Task:
    """The task of a job. Its folder is that of its settings and this kind of CPU, on which alone it may go on."""
    key = msgspec.json.encode((settings_of(job, path), torch.backends.cpu.get_cpu_capability()))
    name = place(path.stem, selection.scale, job.row, job.columns[0], job.seed).with_suffix("")
    work = at.work / f"{name}-{hashlib.sha256(key).hexdigest()[:8]}"
    request = WorkerRequest(
        str(path.resolve()),
        selection.scale,
        job.row,
        job.columns[0],
        job.seed,
        str(work.resolve()),
        str(at.results.resolve()),
        only_first,
        share,
    )
    return Task(f"{path.stem} {job.row}, {', '.join(job.columns)}, seed {job.seed}", request)


# ---- checks ----


class Checked(msgspec.Struct, frozen=True):
    """What a check says of a cell; `why` it does not hold, "": it does."""

    name: str
    why: str


def check(
    tables: Sequence[tuple[Path, Reproduction, Selection]],
    at: Place,
    *,
    sample: int | None,
    seed: int,
    most: int,
    notify: Notify,
) -> list[Checked]:
    """Compute cells again: the first rounds of all that are there, or `sample` of them, drawn by `seed`, wholly. A cell
    whose first rounds are no longer the same becomes stale; one whose first rounds are the same again counts again.
    `at`: `work` is emptied. Raises RunError: another check computes there."""
    again = Place(at.work / "results", at.work)
    found: list[Checked] = []
    todo: list[tuple[Cell, Task]] = []
    with own(at.work, anew=True) as mine:
        if not mine:
            raise RunError(f"another check computes in {at.work}", hint="wait for its end")
        for path, table, selection in tables:
            for job, there in _with_kept(table, path, selection, at.results, wanted_jobs(table, path, selection)):
                task = _task(path, selection, job, again, only_first=sample is None)
                if there.cell is not None and (not there.why or there.cell.stale):
                    todo.append((there.cell, task))
                elif there.path.exists():
                    found.append(Checked(task.name, there.why))
        if sample is not None:
            todo = random.Random(seed).sample(todo, min(sample, len(todo)))
        failed = _failures([[task for _, task in todo]], most, notify)
        compare = _compare_start if sample is None else _compare_whole
        for cell, task in todo:
            why = [line.removeprefix(f"{task.name}: ") for line in failed if line.startswith(f"{task.name}: ")]
            found.append(Checked(task.name, "; ".join(why or compare(cell, task, at.results, again.results))))
    return found


def _compare_whole(cell: Cell, task: Task, results: Path, again: Path) -> list[str]:
    return differences(cell, read_cell(again / file_of(task)))


def _compare_start(cell: Cell, task: Task, results: Path, again: Path) -> list[str]:
    """Compare the first rounds, and mark the cell by it where this CPU can tell. What has no rounds is compared
    wholly."""
    if cell.figures is None:
        return _compare_whole(cell, task, results, again)
    start = msgspec.json.decode((Path(task.request.work) / "first_rounds.json").read_bytes(), type=Start)
    exact = cell.exact and cell.made.torch_simd == torch.backends.cpu.get_cpu_capability()
    why = differ_at_start(cell, start.rounds, start.figures, exact=exact)
    stale = f"{datetime.now(UTC).date().isoformat()}: {', '.join(why)}" if why else ""
    if exact and bool(stale) != bool(cell.stale):
        write_cell(results, msgspec.structs.replace(cell, stale=stale))
    return why


def file_of(task: Task) -> Path:
    """The file of its cell, below the folder of results."""
    request = task.request
    return place(Path(request.table).stem, request.scale, request.row, request.column, request.seed)
