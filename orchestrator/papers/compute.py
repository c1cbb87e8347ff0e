"""Computes one cell of a table in this process: the module that a worker's process runs (`workers`).

The run's folder stays under the folder of work until the cell is written, so that an interrupted cell goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil
from pathlib import Path

import msgspec
import torch

from edgebed.errors import EdgebedError, UsageError
from edgebed.methods.base import METHODS
from edgebed.models.staged import Weights, digest
from orchestrator.experiment import Experiment
from orchestrator.files.output import keep
from orchestrator.papers.cells import FIRST_ROUNDS, Cell, FirstRounds, Made, Source, place, settings_of, write_cell
from orchestrator.papers.entries import FreeValues
from orchestrator.papers.gradient_variance import variances_of
from orchestrator.papers.learnings import check_same, find, remember, source_of
from orchestrator.papers.tables import Job, ScaleName, jobs, load_reproduction
from orchestrator.records.account import load_summary
from orchestrator.records.compare.quantities import RunFigures, figures_of
from orchestrator.records.summary import Summary
from orchestrator.rounds.job import RoundResult
from orchestrator.rounds.progress import Progress
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.request import Watch
from orchestrator.runs.resume import resume_request
from orchestrator.simulation.run import SimulationRequest, resumed, simulate

PR_SET_PDEATHSIG = 1
"""Has the kernel send a signal to this process when the one that started it ends."""


class WorkerRequest(msgspec.Struct, frozen=True):
    """A cell to compute: the argument of a worker's process, as JSON."""

    table: str  # the table's file
    scale: ScaleName
    row: str
    column: str  # the first of those that share the cell
    seed: int
    work: str  # folder of its runs; what is there already is used
    results: str  # the folder that the cell is written to
    only_first: bool = False  # compute the first rounds only, and write them to `first_rounds.json` in `work`
    # take what another cell has learned, if it is there, and keep what this one learns (`learnings`)
    share: bool = False


class RoundDone(msgspec.Struct, frozen=True):
    """A line that a worker prints: how far its cell is. `rounds`: the most that it takes."""

    round: int
    rounds: int
    accuracy: float


class Start(msgspec.Struct, frozen=True):
    """The first rounds of a cell's run: their weights, and their figures."""

    rounds: FirstRounds
    figures: RunFigures


class Enough(Exception):
    """Ends a run after its first rounds."""


class CellWatch(Watch):
    """Keeps the digests of the first rounds' weights in a file, and tells every round."""

    def __init__(self, file: Path, rounds: int, tell: Callable[[RoundDone], None], *, only_first: bool = False) -> None:
        super().__init__()
        self._file, self._rounds, self._tell, self._only_first = file, rounds, tell, only_first

    def merged(self, folder: Path, weights: Weights, progress: Progress) -> None:
        known = self.first_rounds()
        if len(known.digests) < min(progress.round, FIRST_ROUNDS):
            known.digests.append(digest(weights))
            known.norms.append(norm(weights))
            keep(self._file, msgspec.json.encode(known))

    def round(self, method: str, progress: Progress, result: RoundResult, seconds: float, dilation: float) -> None:
        self._tell(RoundDone(progress.round, self._rounds, progress.accuracy))
        if self._only_first and progress.round >= FIRST_ROUNDS:
            raise Enough

    def first_rounds(self) -> FirstRounds:
        if not self._file.exists():
            return FirstRounds()
        return msgspec.json.decode(self._file.read_bytes(), type=FirstRounds)


def norm(weights: Weights) -> float:
    squares = (value.detach().double().square().sum().item() for _, value in sorted(weights.items()))
    return float(sum(squares) ** 0.5)


def compute(request: WorkerRequest, tell: Callable[[RoundDone], None]) -> None:
    """Compute a cell and write it, or its first rounds. Raises EdgebedError."""
    path, work, began_s = Path(request.table), Path(request.work), time.monotonic()
    job = job_of(request)
    experiment = job.experiment
    if load_reproduction(path).kind == "gradient-variance":
        _write(request, job, began_s, "none: nothing is trained", values=_variances(experiment, path))
        return
    refuse_measured(experiment, path)
    if request.share and _timed_again(request, job, began_s):
        return
    if job.probe is not None:
        longest = longest_round_s(load_summary(run_or_go_on(job.probe, path, work / "probe", Watch())))
        experiment = with_deadline(experiment, longest)
    watch = CellWatch(work / "weights.json", experiment.training.rounds, tell, only_first=request.only_first)
    if request.only_first:
        figures = _first_figures(experiment, path, work, watch)
        keep(work / "first_rounds.json", msgspec.json.encode(Start(watch.first_rounds(), figures)))
        return
    run = run_or_go_on(experiment, path, work / "run", watch)
    summary = load_summary(run)
    cell = _write(
        request,
        job,
        began_s,
        summary.costs,
        deadline_s=experiment.training.deadline_s,
        first_rounds=watch.first_rounds(),
        figures=figures_of(summary),
    )
    if request.share:
        remember(Path(request.results), cell, run)


def _timed_again(request: WorkerRequest, job: Job, began_s: float) -> bool:
    """Write the cell with the learning of another one, if there is one that it may share."""
    path, results = Path(request.table), Path(request.results)
    settings = settings_of(job, path)
    try:
        found = find(results, settings, place(path.stem, request.scale, job.row, job.columns[0], job.seed))
    except UsageError:
        return False
    if found is None:
        return False
    known, cell = found
    folder = Path(request.work) / "timed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (run,) = simulate(SimulationRequest(job.experiment, path.resolve(), folder, learned=known.tested), Watch())
    learned = source_of(settings, cell)
    check_same(known, run, cuts=learned.same == "bits")
    summary = load_summary(run)
    _write(
        request,
        job,
        began_s,
        summary.costs,
        first_rounds=cell.first_rounds,
        figures=figures_of(summary),
        learned=learned,
    )
    return True


def _write(
    request: WorkerRequest,
    job: Job,
    began_s: float,
    costs: str,
    *,
    deadline_s: float | None = None,
    first_rounds: FirstRounds | None = None,
    figures: RunFigures | None = None,
    values: FreeValues | None = None,
    learned: Source | None = None,
) -> Cell:
    """Write a cell. `began_s`: when its computing began, on the clock of `time.monotonic`."""
    cell = Cell(
        table=Path(request.table).stem,
        scale=request.scale,
        row=job.row,
        columns=job.columns,
        seed=job.seed,
        settings=settings_of(job, Path(request.table)),
        deadline_s=deadline_s,
        first_rounds=first_rounds or FirstRounds(),
        figures=figures,
        values=values or {},
        made=_made(costs, began_s, Path(request.work)),
        learned=learned,
    )
    write_cell(Path(request.results), cell)
    return cell


def _variances(experiment: Experiment, path: Path) -> FreeValues:
    """The variances of the gradients: the rows are the exits, from 1."""
    torch.set_num_threads(1)
    found = [msgspec.structs.asdict(each) for each in variances_of(experiment, path)]
    return {name: {f"exit {exit}": each[name] for exit, each in enumerate(found, 1)} for name in found[0]}


def _first_figures(experiment: Experiment, path: Path, work: Path, watch: CellWatch) -> RunFigures:
    shutil.rmtree(work / "run", ignore_errors=True)
    with contextlib.suppress(Enough):
        run_or_go_on(experiment, path, work / "run", watch)
    return figures_of(load_summary(watch.folders[-1]))


def job_of(request: WorkerRequest) -> Job:
    path = Path(request.table)
    for job in jobs(load_reproduction(path), path, request.scale, [request.seed]):
        if (job.row, job.columns[0]) == (request.row, request.column):
            return job
    raise UsageError(f"{path} has no cell {request.row}, {request.column}", hint="the file has changed: start again")


def run_or_go_on(experiment: Experiment, path: Path, folder: Path, watch: Watch) -> Path:
    """The run of the experiment in `folder`: one that has ended, one that goes on, or a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in sorted(folder.iterdir()):
        files = RunFolder(run)
        if files.ending() == "finished":
            return run
        if files.simulation.is_file() and files.records.is_file():
            (run,) = simulate(resumed(resume_request(run)), watch)
            return run
        shutil.rmtree(run)
    (run,) = simulate(SimulationRequest(experiment, path.resolve(), folder), watch)
    return run


def refuse_measured(experiment: Experiment, path: Path) -> None:
    """Raises UsageError where seconds would be measured on this host: the same cell would differ from host to host."""
    simulation = experiment.simulation
    if simulation.cost in (None, "timed", "reference"):
        raise UsageError(
            f"{path}: simulation.cost is {simulation.cost or 'left out'}, which is measured on this host",
            hint="a cell needs counted costs: flops or operations, or those of a `reference NAME`",
        )
    needing = [each["name"] for each in experiment.methods if METHODS.create(each).needs_costs]
    if needing and simulation.cost == "operations":
        raise UsageError(
            f"{path}: {needing[0]} plans with the costs of the cuts, which `operations` does not count",
            hint="choose flops",
        )


def longest_round_s(summary: Summary) -> float:
    """Seconds of the longest round of a run."""
    return max(after - before for before, after in pairwise([0.0, *(row.elapsed_s for row in summary.rounds)]))


def with_deadline(experiment: Experiment, longest_s: float) -> Experiment:
    """The experiment with a deadline that a device of `longest_s` seconds just meets: a little longer, like 26.5 s for
    26.4 s in FedPMT's paper. It is rounded to five digits, so that equal measurements give equal experiments."""
    deadline_s = float(f"{longest_s * 26.5 / 26.4:.5g}")
    training = msgspec.structs.replace(experiment.training, deadline_s=deadline_s)
    return msgspec.structs.replace(experiment, training=training)


def _made(costs: str, began_s: float, work: Path) -> Made:
    used = resource.getrusage(resource.RUSAGE_SELF)
    disk = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    return Made(
        torch_simd=torch.backends.cpu.get_cpu_capability(),
        versions={
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "numpy", "edgebed")},
        },
        threads=torch.get_num_threads(),
        commit=_commit(),
        costs=costs,
        date=datetime.now(UTC).date().isoformat(),
        hours=round((time.monotonic() - began_s) / 3600, 4),
        cpu_hours=round((used.ru_utime + used.ru_stime) / 3600, 4),
        memory_mib=used.ru_maxrss // 1024,
        disk_mib=ceil(disk / 2**20),
    )


def _commit() -> str:
    """Of the source tree, with `-dirty` where it was changed apart from results and pages, which computing itself
    changes; "" where git knows none."""
    git = ["git", "-C", str(Path(__file__).parent)]
    source = [":/", ":(top,exclude)results", ":(top,exclude)docs"]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *source], check=False).returncode == 0
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("" if same else "-dirty")


def main() -> int:
    """Compute the cell that the argument describes. Every round is a line of JSON on stdout; what a plug-in prints goes
    to stderr."""
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # in the order in which it is printed
    if (libc := ctypes.CDLL(None)) and hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    request = msgspec.json.decode(sys.argv[1], type=WorkerRequest)

    def tell(done: RoundDone) -> None:
        print(msgspec.json.encode(done).decode(), file=told)

    try:
        compute(request, tell)
    except EdgebedError as error:
        print(f"{error} ({error.hint})" if error.hint else error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
