"""`edgebed check`: all mistakes of an experiment or fleet file at once, each with its place and cure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.arguments import Overrides
from orchestrator.cli.console import log, show
from orchestrator.files.yaml_file import load_yaml
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.runs.feasibility import checked


def command(
    file: Annotated[Path, typer.Argument(help="An experiment file, or a fleet file.")],
    set_: Overrides = None,
) -> None:
    """Tell all mistakes in FILE, its fleet, data, model and methods; start nothing. Exit code 2 if there are any."""
    document = load_yaml(file)
    if "devices" in document and "methods" not in document:
        spec = load_fleet(file)
        show(f"{file}: no mistakes; {len(spec.devices)} devices")
        return
    with log.status("reading the data, building the models"):
        experiment = checked(file, set_, everything=True)
    runs = len(experiment.parts) * len(experiment.methods)
    show(f"{file}: no mistakes; {runs} run{'s' if runs > 1 else ''}")
