"""`edgebed profile host`: measures the costs of this host, which `edgebed simulate` then takes by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.arguments import Backend
from orchestrator.cli.console import console, log
from orchestrator.cli.run import watching
from orchestrator.records.words.formatting import number, seconds
from orchestrator.runs import session
from orchestrator.runs.signals import run_to_end
from orchestrator.simulation import host_costs
from orchestrator.simulation.calibration import Calibration, save_calibration


def register(app: typer.Typer) -> None:
    profile = typer.Typer(help="Measure this host.", no_args_is_help=True)
    profile.command("host")(host)
    app.add_typer(profile, name="profile")


def host(
    backend: Backend = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each method.")] = 3,
    save: Annotated[
        Path | None, typer.Option(help="Write the costs to this file, instead of the host's folder.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Print only the result.")] = False,
) -> None:
    """Run four methods on five devices for a few rounds, and keep what this host adds to the reference costs.

    `edgebed simulate` then uses these costs where an experiment names no others. About a minute."""
    with tempfile.TemporaryDirectory(prefix="edgebed-profile-") as folder:
        with watching(quiet, live=False) as watch:
            runs = run_to_end(session.run_experiment(host_costs.request(Path(folder), backend, rounds), watch))
        with log.status("fitting costs"):
            costs = host_costs.from_runs(runs)
    if save is not None:
        save_calibration(costs, save)
    path = save or host_costs.keep(costs)
    _print(costs)
    console.print(f"Written: {path}", soft_wrap=True, highlight=False)


def _print(costs: Calibration) -> None:
    console.print("CPU seconds of a batch ÷ the reference's on this host, and of the agent:", highlight=False)
    for name, profile in sorted(costs.profiles.items()):
        console.print(
            f"  {name}: {number(profile.other)}; task {seconds(profile.update_cpu_s)}, "
            f"upload {seconds(profile.upload_cpu_s)}, reply {seconds(profile.reply_cpu_s)}, "
            f"MB sent {seconds(profile.send_byte_cpu_s * 1e6)}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"Server's step ÷ the reference's: {number(costs.server_other)}", highlight=False)
