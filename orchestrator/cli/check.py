"""`edgebed check`: all mistakes of an experiment, fleet or profile file at once, each with its place and cure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgebed.errors import counted
from orchestrator.cli.arguments import Overrides, Plugins
from orchestrator.cli.console import log, show
from orchestrator.files.yaml_file import load_yaml
from orchestrator.fleet.spec.profile import ProfileFile, load_fleet, load_profile
from orchestrator.records.words.formatting import number
from orchestrator.runs.feasibility import checked


def command(
    file: Annotated[Path, typer.Argument(help="An experiment, fleet or profile file.")],
    set_: Overrides = None,
    plugin: Plugins = None,
) -> None:
    """Tell all mistakes in FILE, its fleet, data, model and methods; start nothing. Exit code 2 if there are any."""
    document = load_yaml(file)
    if "devices" in document and "methods" not in document:
        spec = load_fleet(file)
        show(f"{file}: no mistakes; {counted(len(spec.devices), 'device')}")
        return
    if not document.keys() & {"methods", "fleet"} and document.keys() & set(ProfileFile.__struct_fields__[3:]):
        show(f"{file}: no mistakes; cpus: {number(load_profile(str(file.absolute()), file).limits.cpus, 4)}")
        return
    with log.status("reading the data, building the models"):
        experiment = checked(file, set_, plugin or (), everything=True)
    runs = len(experiment.parts) * len(experiment.methods)
    show(f"{file}: no mistakes; {counted(runs, 'run')}")
