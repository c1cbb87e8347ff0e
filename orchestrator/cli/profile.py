"""`edgebed profile host`: measures the costs of this host, which `edgebed simulate` then takes by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.arguments import BackendOption
from orchestrator.cli.console import log, show
from orchestrator.cli.run import watching
from orchestrator.records.words.formatting import number, seconds
from orchestrator.runs import session
from orchestrator.runs.signals import run_to_end
from orchestrator.simulation import host_costs
from orchestrator.simulation.calibration import Calibration, save_calibration

commands = typer.Typer(help="Measure this host.", no_args_is_help=True)


@commands.command()
def host(
    backend: BackendOption = None,
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
    show(f"Written: {path}")


def _print(costs: Calibration) -> None:
    show("CPU seconds of a batch ÷ the reference's on this host, and of the agent:")
    for name, profile in sorted(costs.profiles.items()):
        show(
            f"  {name}: {number(profile.other)}; task {seconds(profile.update_cpu_s)}, "
            f"upload {seconds(profile.upload_cpu_s)}, reply {seconds(profile.reply_cpu_s)}, "
            f"MB sent {seconds(profile.send_byte_cpu_s * 1e6)}"
        )
    show(f"Server's step ÷ the reference's: {number(costs.server_other)}")
