"""`edgebed run`: runs an experiment on a throttled fleet, or continues an interrupted run."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO, TypeVar

import typer

from edgebed.errors import EdgebedError, UsageError
from orchestrator.cli.arguments import (
    AllowUncalibrated,
    BackendOption,
    Broker,
    BrokerCA,
    BrokerUsers,
    ComparisonJson,
    Methods,
    Overrides,
    PageHost,
    PagePort,
    PageToken,
    Plugins,
    Quiet,
    Seeds,
    overridden,
    own_broker,
)
from orchestrator.cli.compare import print_comparison
from orchestrator.cli.console import log, say
from orchestrator.cli.estimate import print_estimate
from orchestrator.cli.live import LiveWatch
from orchestrator.cli.notice import notice
from orchestrator.cli.unfinished import tell_unfinished
from orchestrator.dashboard.serve import PageAddress
from orchestrator.dashboard.subprocess_server import page_beside
from orchestrator.experiment import only_methods
from orchestrator.files.output import try_file, try_folder
from orchestrator.records.shown.loglines import LogLines
from orchestrator.records.types import SIMULATED, Record
from orchestrator.runs import session
from orchestrator.runs.feasibility import checked
from orchestrator.runs.find import complete_run, find_run, runs_folder
from orchestrator.runs.request import Listener, Notify
from orchestrator.runs.resume import refuse_beside_resume, resume_request
from orchestrator.runs.session import run_experiment
from orchestrator.runs.signals import run_to_end
from orchestrator.simulation.run import SimulationRequest, resumed, simulate

R = TypeVar("R", session.Request, SimulationRequest)

SpeedOption = Annotated[
    str | None,
    typer.Option(
        metavar="<host|reference NAME>",
        help="Whose speed a device's CPU second has: this host's, or that of a recorded core.",
        show_default="that of the fleet file, or host",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Continue the experiment of RUN; --set training.rounds=… extends it.",
        autocompletion=complete_run,
    ),
]
PlanOf = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Repeat the assignments that RUN recorded.", autocompletion=complete_run),
]
LogFile = Annotated[Path | None, typer.Option(help="Append a line per event with run, round and device as key=value.")]
NotifyUrl = Annotated[
    str | None,
    typer.Option(metavar="<url>", help="When all is over, or has failed, send a POST with the results to this URL."),
]


def command(
    experiment: Annotated[Path | None, typer.Argument(help="The experiment file; none with --resume.")] = None,
    backend: BackendOption = None,
    broker: Broker = None,
    broker_ca: BrokerCA = None,
    broker_users: BrokerUsers = None,
    set_: Overrides = None,
    plugin: Plugins = None,
    seeds: Seeds = None,
    speed: SpeedOption = None,
    method: Methods = None,
    resume: Resume = None,
    plan: PlanOf = None,
    allow_uncalibrated: AllowUncalibrated = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Start nothing; print the dilation, time and memory it would take.")
    ] = False,
    as_json: ComparisonJson = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    notify: NotifyUrl = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Serve the live page and print its address.")] = False,
    dashboard_host: PageHost = "127.0.0.1",
    dashboard_port: PagePort = 0,
    dashboard_token: PageToken = "",
) -> None:
    """Run every method of EXPERIMENT on the same throttled fleet, and compare them. `--resume RUN` continues one."""
    own = own_broker(broker, broker_ca, broker_users)
    request = _request(experiment, overridden(set_, seeds, speed=speed), plugin, method, resume, plan)
    if estimate:
        print_estimate(request.experiment, request.path, as_json)
        return
    if request.backend == SIMULATED:
        if backend or own or dashboard:
            text = f"{resume} is a simulation: it has no fleet, no broker and no live page"
            raise UsageError(text, hint="leave out --backend, --broker and --dashboard")
        print_comparison(carry_out(resumed(request), quiet, log_file, simulate), as_json=as_json)
        return
    request = request.on(backend, own, allow_uncalibrated=allow_uncalibrated)
    if log_file is not None:
        try_file(log_file)
    try_folder(request.runs)
    place = PageAddress(dashboard_host, dashboard_port, dashboard_token)
    page = page_beside(runs_folder(), request.experiment.name, place, say)
    with notice(notify, request.experiment.name, say) as ended, page if dashboard else contextlib.nullcontext() as tell:
        folders = carry_out(request, quiet, log_file, partial(_run, ended, tell))
    if dashboard:
        say(
            f"The page ended with the run. To see it again: edgebed dashboard {' '.join(each.name for each in folders)}"
        )
    print_comparison(folders, as_json=as_json)


def _run(folders: list[Path], tell: Notify | None, request: session.Request, watch: session.Watch) -> list[Path]:
    """Run the experiment on a fleet.

    Args:
        folders: gets those of the runs that have begun.
        tell: is told the lines that `watch` is told, and why the run fails.
    """
    watch.folders = folders
    if tell is not None:
        watch.notify = both(watch.notify, tell)
    try:
        return run_to_end(run_experiment(request, watch))
    except EdgebedError as error:
        watch.notify = tell or session.quiet
        watch.notify(f"failed: {error}")
        raise


def both(one: Notify, other: Notify) -> Notify:
    """Tells the line to both."""

    def notify(line: str) -> None:
        one(line)
        other(line)

    return notify


def _request(
    experiment: Path | None,
    set_: list[str] | None,
    plugins: list[str] | None,
    method: list[str] | None,
    resume: str | None,
    plan: str | None,
) -> session.Request:
    """What to run: an experiment, or the rest of one."""
    if resume is not None:
        refuse_beside_resume(experiment, plugins, method, plan)
        return resume_request(find_run(resume), set_)
    if experiment is None:
        raise UsageError("no experiment was named", hint="give an experiment file; `edgebed init DIR` writes one")
    loaded = only_methods(checked(experiment, set_, plugins or ()), method, experiment)
    followed = None if plan is None else find_run(plan)
    return session.Request(loaded, experiment.resolve(), runs_folder(), plan=followed)


def carry_out(
    request: R, quiet: bool, log_file: Path | None, work: Callable[[R, session.Watch], list[Path]]
) -> list[Path]:
    """Do the runs. If they end early, print what exists and how to continue."""
    watch = None
    live = isinstance(request, session.Request)  # the live view runs on the machine's clock
    try:
        with watching(quiet, log_file, live=live) as watch:
            return work(request, watch)
    except (KeyboardInterrupt, EdgebedError, OSError) as error:
        if watch is not None and (watch.folders or isinstance(error, KeyboardInterrupt)):
            tell_unfinished(request, watch.folders)
        raise


@contextlib.contextmanager
def watching(quiet: bool, log_file: Path | None = None, *, live: bool = True) -> Iterator[session.Watch]:
    """A live view on a terminal, plain lines elsewhere, nothing if quiet; also log lines if a log file is given."""
    with contextlib.ExitStack() as stack:
        watch = session.Watch(session.quiet if quiet else say)
        if live and not quiet and log.is_terminal:
            watch = stack.enter_context(LiveWatch(log))
        if log_file is not None:
            watch.listeners.append(_logging(stack.enter_context(log_file.open("a", encoding="utf-8", buffering=1))))
        yield watch


def _logging(file: TextIO) -> Listener:
    """Writes a line with the time into the file, for the records that have one."""
    lines = defaultdict[Path, LogLines](LogLines)

    def tell(folder: Path, record: Record) -> None:
        text = lines[folder].line(record)
        if text is not None:
            file.write(f"time={datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")

    return tell
