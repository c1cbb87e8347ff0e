"""`edgebed data`: lists the data sets, and shows how an experiment divides its data among the devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from edgebed.datasets.base import DATASETS
from orchestrator.cli.arguments import Json, Overrides
from orchestrator.cli.console import console, log, print_json
from orchestrator.experiment import load
from orchestrator.fleet.spec.profile import fleet_of
from orchestrator.runs.data import count_labels, label_table, share_out


def command(
    experiment: Annotated[
        Path | None, typer.Argument(help="The experiment file. Without it, data sets are listed.")
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """List the data sets, or show how many samples of each class every device of an experiment gets."""
    if experiment is None:
        _list(as_json)
        return
    wanted = load(experiment, overrides)
    devices = [device.name for device in fleet_of(experiment, wanted.fleet).devices]
    with log.status("reading the data"):
        title, split, shares = share_out(wanted, devices, experiment)
    counts = count_labels(split.train_y, shares, len(split.class_names))
    if as_json:
        print_json({"data": title, "classes": split.class_names, "devices": counts, "test": len(split.test_y)})
    else:
        console.print(label_table(title, split.class_names if split.train_y.ndim == 1 else ["sequences"], counts))


def _list(as_json: bool) -> None:
    classes = DATASETS.classes()
    if as_json:
        print_json([{"name": name, "summary": cls.summary} for name, cls in classes.items()])
        return
    table = Table("name", "what it is", "options", title="Data sets")
    for name, cls in classes.items():
        table.add_row(name, cls.summary, ", ".join(cls.Options.__struct_fields__))
    console.print(table)
