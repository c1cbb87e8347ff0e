"""`edgebed dashboard`: a web page of running and finished runs."""

from __future__ import annotations

from edgebed.errors import UsageError
from orchestrator.cli.arguments import PageHost, PagePort, PageToken, SomeRuns
from orchestrator.cli.console import show
from orchestrator.dashboard.run_list import Wanted
from orchestrator.dashboard.serve import PageAddress, serve
from orchestrator.runs.find import find_runs, runs_folder

SHORTEST_TOKEN = 20
"""Characters: nothing slows down who tries one token after the other."""


def command(runs: SomeRuns = None, host: PageHost = "127.0.0.1", port: PagePort = 0, token: PageToken = "") -> None:
    """Show runs in a browser, running or finished. Ctrl-C ends the page and does not affect the runs."""
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
