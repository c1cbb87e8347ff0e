"""`edgebed run`: an experiment on a throttled fleet, or the rest of an interrupted run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.markup import escape

from edgebed.errors import UsageError
from orchestrator import session
from orchestrator.cli.compare import print_comparison
from orchestrator.cli.console import console, log
from orchestrator.cli.folders import find_run, runs_folder
from orchestrator.cli.live import LiveWatch
from orchestrator.dashboard.beside import page_beside
from orchestrator.dashboard.serve import Place
from orchestrator.experiment import Experiment, load
from orchestrator.records.loglines import LogLines
from orchestrator.records.types import Record


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    experiment: Annotated[Path | None, typer.Argument(help="The experiment file.")] = None,
    backend: Annotated[str | None, typer.Option(help="docker, local or software; overrides the fleet file.")] = None,
    broker: Annotated[str | None, typer.Option(help="mqtt://user:password@host:port of a broker of your own.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of the file: training.rounds=5. Repeatable.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Run only these methods of the file. Repeatable.")] = None,
    resume: Annotated[str | None, typer.Option(help="A run to go on with: its folder or its id.")] = None,
    allow_uncalibrated: Annotated[
        bool, typer.Option(help="Run although the limits do not hold; every output is marked.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Print only the results.")] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Append a line per event, with run, round and device as key=value.")
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve the live page; its address is printed.")
    ] = False,
    dashboard_host: Annotated[str, typer.Option(help="See `edgebed dashboard --host`.")] = "127.0.0.1",
    dashboard_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 0,
    dashboard_token: Annotated[
        str,
        typer.Option(
            envvar="EDGEBED_TOKEN", help="See `edgebed dashboard --token`; or in EDGEBED_TOKEN, which ps does not show."
        ),
    ] = "",
) -> None:
    """Run every method of an EXPERIMENT on the same throttled fleet, and compare them."""
    options: dict[str, Any] = {
        "backend": backend,
        "broker_url": broker,
        "allow_uncalibrated": allow_uncalibrated,
    }
    if resume is not None:
        if experiment is not None or set_ or method:
            raise UsageError("--resume takes the experiment from the run's folder", cure="give --resume RUN alone")
        request = session.resume_request(find_run(resume), runs_folder(), **options)
    elif experiment is None:
        raise UsageError("no experiment", cure="give an experiment file, such as profiles/experiments/demo.yaml")
    else:
        loaded = load(experiment, set_)
        request = session.Request(_only(loaded, method, experiment), experiment.resolve(), runs_folder(), **options)
    place = Place(dashboard_host, dashboard_port, dashboard_token)
    page = page_beside(runs_folder(), request.experiment.name, place, _say)
    with page if dashboard else contextlib.nullcontext(), _watching(quiet, log_file) as watch:
        folders = asyncio.run(until_signal(session.run_experiment(request, watch)))
    if dashboard:
        again = " ".join(folder.name for folder in folders)
        _say(f"The page has ended with the run; to look again: edgebed dashboard {again}")
    print_comparison(folders, as_json=as_json)
    if not as_json:
        for folder in folders:
            console.print(f"Report: {folder / 'report.html'}", soft_wrap=True, highlight=False)


def _say(line: str) -> None:
    log.print(line, highlight=False, soft_wrap=True)


def _only(experiment: Experiment, names: list[str] | None, path: Path) -> Experiment:
    """The experiment with only the named methods."""
    if not names:
        return experiment
    chosen = [m for m in experiment.methods if m.get("name") in names]
    if len({m["name"] for m in chosen}) < len(set(names)):
        raise UsageError(
            f"{path} has no method {', '.join(sorted(set(names) - {str(m['name']) for m in chosen}))}",
            cure=f"it has: {', '.join(str(m.get('name')) for m in experiment.methods)}",
        )
    return msgspec.structs.replace(experiment, methods=chosen)


async def until_signal(work: Any) -> Any:
    """Like the work itself, but SIGTERM ends it as cleanly as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def _watching(quiet: bool, log_file: Path | None = None) -> Iterator[session.Watch]:
    """A live view on a terminal, plain lines without one, nothing where quiet; log lines besides, where wanted."""
    with contextlib.ExitStack() as stack:
        watch = session.Watch(session.quiet if quiet else _line)
        if not quiet and log.is_terminal:
            watch = stack.enter_context(LiveWatch(log))
        if log_file is not None:
            tell = _both(watch.record, stack.enter_context(log_file.open("a", encoding="utf-8", buffering=1)))
            setattr(watch, "record", tell)  # noqa: B010
        yield watch


def _line(line: str) -> None:
    log.print(escape(line), highlight=False, soft_wrap=True)


def _both(record: Callable[[Record], None], file: TextIO) -> Callable[[Record], None]:
    """Tells `record`, and writes a line with the time into the file."""
    lines = LogLines()

    def tell(one: Record) -> None:
        record(one)
        text = lines.line(one)
        if text is not None:
            file.write(f"time={datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")

    return tell
