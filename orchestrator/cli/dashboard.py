"""`edgebed dashboard`: a web page of running and finished runs."""

from __future__ import annotations

from typing import Annotated

import typer

from edgebed.errors import UsageError
from orchestrator.cli.console import show
from orchestrator.dashboard.run_list import Wanted
from orchestrator.dashboard.serve import PageAddress, serve
from orchestrator.runs.find import complete_run, find_runs, runs_folder

SHORTEST_TOKEN = 20
"""Characters: nothing slows down who tries one token after the other."""


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders of runs, their ids, or patterns of ids. Default: all under EDGEBED_RUNS.",
            autocompletion=complete_run,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 0,
    token: Annotated[
        str,
        typer.Option(
            envvar="EDGEBED_TOKEN",
            help="Token to ask visitors for; random by default. `ps` does not show EDGEBED_TOKEN.",
        ),
    ] = "",
) -> None:
    """Show RUNS in a browser, running or finished. Ctrl-C ends the page and does not affect the runs."""
    if token and len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"this token has fewer than {SHORTEST_TOKEN} characters", hint="leave it out: a random one is made"
        )
    folders = tuple(find_runs(runs or []))
    if not folders and not runs_folder().is_dir():
        raise UsageError(f"the folder of runs {runs_folder()} does not exist", hint="name runs, or set EDGEBED_RUNS")
    wanted = Wanted(folders) if folders else Wanted(library=runs_folder())
    serve(wanted, PageAddress(host, port, token), _notify)


def _notify(address: str) -> None:
    show(f"Page: {address}")
    show("Ctrl-C ends it.")
