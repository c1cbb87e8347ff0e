"""`edgebed simulate`: runs an experiment on a virtual clock, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from edgebed.errors import UsageError
from orchestrator.cli.arguments import ComparisonJson, Methods, Overrides, Plugins, Quiet, Seeds, overridden
from orchestrator.cli.compare import print_comparison
from orchestrator.cli.run import carry_out
from orchestrator.experiment import only_methods
from orchestrator.fleet.spec.profile import MOST_DEVICES
from orchestrator.runs.feasibility import checked
from orchestrator.runs.find import runs_folder
from orchestrator.simulation.run import SimulationRequest, simulate, sized


def _elsewhere(run: str | None) -> None:
    if run is not None:
        raise UsageError("simulate has no --resume", hint=f"edgebed run --resume {run} continues a simulation, too")


def command(
    experiment: Annotated[Path, typer.Argument(help="The experiment file.")],
    set_: Overrides = None,
    method: Methods = None,
    plugin: Plugins = None,
    seeds: Seeds = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_DEVICES, help="Number of devices; they take the fleet's profiles in turn."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            metavar="<timed|flops|operations|reference NAME>",
            help="Where the seconds of computing come from.",
            show_default="the reference that `speed` names, or timed",
        ),
    ] = None,
    accelerator: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to train.")] = "cpu",
    resume: Annotated[str | None, typer.Option(hidden=True, is_eager=True, callback=_elsewhere)] = None,
    checkpoint_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Least seconds between two checkpoints, from which `edgebed run --resume RUN` continues.",
            show_default="so that they take at most 5 % of the time",
        ),
    ] = None,
    as_json: ComparisonJson = False,
    quiet: Quiet = False,
) -> None:
    """Simulate every method of EXPERIMENT with the code of a real run on a virtual clock."""
    overrides = overridden(set_, seeds, **{"simulation.cost": cost})
    loaded = checked(experiment, overrides, plugin or (), fleet=lambda spec: sized(spec, devices))
    request = SimulationRequest(
        only_methods(loaded, method, experiment),
        experiment.resolve(),
        runs_folder(),
        devices=devices,
        accelerator=accelerator,
        checkpoint_s=checkpoint_s,
    )
    print_comparison(carry_out(request, quiet, None, simulate), as_json=as_json)
