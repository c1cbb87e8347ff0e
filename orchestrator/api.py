"""Edgebed for programs and notebooks: run or simulate experiments, and read their runs as pandas tables.

The functions are handed on as `edgebed.run`, `edgebed.simulate`, `edgebed.load_run`, `edgebed.load_runs` and
`edgebed.compare`. docs/python.md shows how they are used and lists the columns of all tables.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from edgebed.errors import EdgebedError, UsageError
from orchestrator.analysis.compared import comparison_table
from orchestrator.analysis.loaded_run import Run
from orchestrator.broker.own import OwnBroker
from orchestrator.experiment import UNNAMED, Experiment, from_dict, load, only_methods
from orchestrator.records.account import load_summary
from orchestrator.records.types import SIMULATED
from orchestrator.runs.events import (
    DeviceLeftOut,
    Event,
    EventWatch,
    Line,
    RoundBegan,
    RoundEnded,
    RunBegan,
    RunEnded,
)
from orchestrator.runs.find import baseline_last, find_run, find_runs, runs_folder
from orchestrator.runs.resume import refuse_beside_resume, resume_request
from orchestrator.runs.session import Request, run_experiment
from orchestrator.runs.signals import without_interrupts
from orchestrator.simulation.run import SimulationRequest, resumed
from orchestrator.simulation.run import simulate as simulate_request

__all__ = [
    "DeviceLeftOut",
    "Event",
    "Line",
    "RoundBegan",
    "RoundEnded",
    "Run",
    "RunBegan",
    "RunEnded",
    "compare",
    "load_run",
    "load_runs",
    "run",
    "simulate",
]

AnyPath = str | os.PathLike[str]
AnyRun = AnyPath | Run
AnyExperiment = AnyPath | Mapping[str, Any]
OnEvent = Callable[[Event], object]


def run(
    experiment: AnyExperiment | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    plugins: Sequence[AnyPath] = (),
    methods: str | Sequence[str] = (),
    fleet: AnyPath | None = None,
    runs: AnyPath | None = None,
    backend: str | None = None,
    broker: str | None = None,
    broker_ca: str | Path | None = None,
    broker_users: str | Path | None = None,
    resume: AnyRun | None = None,
    plan: AnyRun | None = None,
    allow_uncalibrated: bool = False,
    on_event: OnEvent | None = None,
) -> list[Run]:
    """Run every method of an experiment on the same throttled fleet, as `edgebed run` does.

    The work is done in a thread of its own, so the function also works in a notebook, where an event loop runs
    already. `on_event` is called in the caller's thread. Ctrl-C, and an exception of `on_event`, end the run, remove
    the fleet, and are then raised.

    Args:
        experiment: the path of an experiment file, or a dict with its keys (docs/experiments.md). Relative paths in a
            dict start at the current folder. None only with `resume`.
        overrides: values in place of the experiment's, such as `{"training.rounds": 5}`.
        plugins: files, folders or installed packages with methods, models or data sets of your own, beside those that
            the experiment names.
        methods: run only these of the experiment's methods.
        fleet: the path of a fleet file, relative to the current folder, or the name of a fleet that comes with Edgebed
            (`dtfl-5`), in place of the experiment's.
        runs: the folder for the runs' folders; EDGEBED_RUNS or ./runs if not given.
        backend: docker, local, software or swarm; that of the fleet file if not given.
        broker, broker_ca, broker_users: a broker of your own, as the options of `edgebed run` have them; here the
            address may contain user and password.
        resume: a run whose experiment is continued, real or simulated: its folder, its id, or a `Run`.
        plan: a run whose recorded assignments the devices are given.
        allow_uncalibrated: run although the measured limits do not hold; every output is marked.
        on_event: is given an event (`Line`, `RunBegan`, `RoundBegan`, `RoundEnded`, `DeviceLeftOut`, `RunEnded`) for
            whatever happens; `print` prints a line for each.

    Returns:
        One `Run` per method, in the order of the experiment's list.

    Raises:
        EdgebedError: with `hint`. `UsageError`: something in the experiment is wrong. `FleetError`, `CapacityError`,
            `LimitError`: no fleet can start. `CalibrationError`: its limits do not hold. `RunError`: the run fails.
    """
    if resume is not None:
        refuse_beside_resume(experiment, plugins, methods, fleet, runs, plan)
        request = resume_request(_folder(resume), overrides)
        if request.backend == SIMULATED:
            return _carry_out(partial(_simulate, resumed(request)), on_event)
    else:
        typed, path = _experiment(experiment, overrides, plugins, methods, fleet)
        request = Request(typed, path, _runs_folder(runs), plan=None if plan is None else _folder(plan))
    own = None if broker is None else OwnBroker(broker, str(broker_ca or ""), str(broker_users or ""))
    request = request.on(backend, own, allow_uncalibrated=allow_uncalibrated)
    return _carry_out(lambda watch: asyncio.run(_run(request, watch)), on_event)


def simulate(
    experiment: AnyExperiment,
    *,
    overrides: Mapping[str, Any] | None = None,
    plugins: Sequence[AnyPath] = (),
    methods: str | Sequence[str] = (),
    fleet: AnyPath | None = None,
    runs: AnyPath | None = None,
    devices: int | None = None,
    cost: str | None = None,
    accelerator: Literal["cpu", "cuda"] = "cpu",
    checkpoint_s: float | None = None,
    on_event: OnEvent | None = None,
) -> list[Run]:
    """Simulate every method of an experiment on a virtual clock, as `edgebed simulate` does. No device runs.

    Args:
        experiment, overrides, plugins, methods, fleet, runs, on_event: as for `run`.
        devices: so many devices, with the fleet's profiles in turn.
        cost: the cost model: `reference NAME`, timed, flops or operations; that of the experiment if not given.
        accelerator: where the halves are computed.
        checkpoint_s: least seconds between two checkpoints, from which `run(resume=…)` goes on; if not given, they
            take a twentieth of the time at most.

    Returns:
        One `Run` per method, in the order of the experiment's list.

    Raises:
        EdgebedError: with `hint`. `UsageError`: something in the experiment is wrong.

    Examples:
        >>> [fedavg] = simulate(
        ...     {
        ...         "name": "small",
        ...         "fleet": "dtfl-5",
        ...         "methods": [{"name": "fedavg"}],
        ...         "training": {"rounds": 2, "batch_size": 32, "seed": 1},
        ...     }
        ... )
        >>> fedavg.rounds["round"].tolist()
        [1, 2]
    """
    costs = {} if cost is None else {"simulation.cost": cost}
    typed, path = _experiment(experiment, {**(overrides or {}), **costs}, plugins, methods, fleet)
    request = SimulationRequest(
        typed,
        path,
        _runs_folder(runs),
        devices=devices,
        accelerator=accelerator,
        checkpoint_s=checkpoint_s,
    )
    return _carry_out(partial(_simulate, request), on_event)


def load_run(run: AnyPath) -> Run:
    """A run that has been made, or is being made, from its folder.

    Args:
        run: its folder, its id, or the beginning or a pattern (`demo-dtfl-*`) of an id that no other run shares. Ids
            are looked for in EDGEBED_RUNS, or in ./runs.

    Raises:
        UsageError: there is no such run, or there are several.

    Examples:
        >>> load_run("demo-dtfl").rounds[["round", "duration_s", "accuracy"]]
           round  duration_s  accuracy
        0      1         1.5       0.2
        1      2         1.5       0.4
        2      3         1.5       0.6
        3      4         1.5       0.8
    """
    return Run(find_run(os.fspath(run)))


def load_runs(runs: AnyPath | Iterable[AnyPath]) -> list[Run]:
    """Runs from their folders, ids, or patterns of ids, each once.

    Args:
        runs: one name as `load_run` takes it, or several. All runs that fit a pattern are taken.

    Raises:
        UsageError: no run fits a name.

    Examples:
        >>> [run.method for run in load_runs("demo-*")]
        ['dtfl', 'fedavg']
    """
    return [Run(folder) for folder in _folders(runs)]


def compare(
    runs: AnyRun | Iterable[AnyRun], *, baseline: AnyRun | None = None, by: Literal["method", "run"] = "method"
) -> pd.DataFrame:
    """The figures that `edgebed compare` prints, as a table: one row per method, or one per run.

    With `by="method"` runs of a method with different seeds are taken together: each figure is a mean, and has two more
    columns, `…_low` and `…_high`, the ends of its 95 % confidence interval (Student's t, three runs or more).
    `speed_up` is the time to target of the baseline ÷ that of the row, over pairs of runs of one seed.

    Args:
        runs: runs, folders, ids or patterns.
        baseline: the method, or the run, that `speed_up` refers to; FedAvg, or the first, if not given.

    Returns:
        The table. Its `attrs["notes"]` is a list of what makes the figures doubtful or hard to compare, and
        `attrs["paired"]` one of dicts: the ratios between methods whose rounds alternated (`interleave: true`).

    Raises:
        UsageError: there is no such run or method.

    Examples:
        >>> compare("demo-*", baseline="fedavg")[["method", "runs", "time_to_target_s", "speed_up"]]
           method  runs  time_to_target_s  speed_up
        0    dtfl     1             5.625       1.0
        1  fedavg     1             5.625       1.0
    """
    named = baseline.path if isinstance(baseline, Run) else baseline
    folders = baseline_last(_folders(runs), None if named is None else os.fspath(named))
    summaries = [load_summary(folder) for folder in folders]
    return comparison_table(summaries, by, None if named is None else summaries[-1])


# ---- what the caller means ----


def _experiment(
    experiment: AnyExperiment | None,
    overrides: Mapping[str, Any] | None,
    plugins: Sequence[AnyPath],
    methods: str | Sequence[str],
    fleet: AnyPath | None,
) -> tuple[Experiment, Path]:
    """The experiment, typed, and the path that its relative paths and the messages about it refer to."""
    if experiment is None:
        raise UsageError("no experiment", hint="give the path of an experiment file, or a dict")
    changes, own = dict(overrides or {}), [os.fspath(each) for each in plugins]
    if fleet is not None:
        changes["fleet"] = os.path.abspath(fleet) if os.path.exists(fleet) else os.fspath(fleet)
    if isinstance(experiment, Mapping):
        path, typed = UNNAMED, from_dict(experiment, changes, own)
    else:
        path, typed = Path(experiment), load(Path(experiment), changes, own)
    names = [methods] if isinstance(methods, str) else methods
    return only_methods(typed, names, path), path if path is UNNAMED else path.resolve()


def _runs_folder(runs: AnyPath | None) -> Path:
    return runs_folder() if runs is None else Path(runs)


def _folder(run: AnyRun) -> Path:
    return run.path if isinstance(run, Run) else find_run(os.fspath(run))


def _folders(runs: AnyRun | Iterable[AnyRun]) -> list[Path]:
    several = [runs] if isinstance(runs, str | os.PathLike | Run) else list(runs)
    return find_runs([os.fspath(each.path if isinstance(each, Run) else each) for each in several])


# ---- the work, in a thread of its own ----


async def _run(request: Request, watch: EventWatch) -> list[Path]:
    watch.attach()
    return await run_experiment(request, watch)


def _simulate(request: SimulationRequest, watch: EventWatch) -> list[Path]:
    """A simulation computes with one thread of torch; afterwards as many are used as before."""
    threads = torch.get_num_threads()
    try:
        return simulate_request(request, watch)
    finally:
        torch.set_num_threads(threads)


def _carry_out(work: Callable[[EventWatch], list[Path]], on_event: OnEvent | None) -> list[Run]:
    """Do the work in a thread; hand its events to `on_event` in this one."""
    watch, outcome = EventWatch(), Future[list[Path]]()
    thread = threading.Thread(target=_work, args=(work, watch, outcome), name="edgebed")
    thread.start()
    try:
        for event in watch.events():
            if on_event is not None:
                on_event(event)
        return [Run(folder) for folder in outcome.result()]
    except BaseException as error:
        with without_interrupts():
            watch.stop()
            thread.join()
        _explain(error, watch.folders)
        raise


def _explain(error: BaseException, folders: Sequence[Path]) -> None:
    """Add to the traceback what can be done, and what there is of the runs."""
    if isinstance(error, EdgebedError) and error.hint:
        error.add_note(f"Hint: {error.hint}")
    if folders:
        error.add_note(f"Runs that had begun: {', '.join(folder.name for folder in folders)}")


def _work(work: Callable[[EventWatch], list[Path]], watch: EventWatch, outcome: Future[list[Path]]) -> None:
    try:
        outcome.set_result(work(watch))
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        watch.close()
