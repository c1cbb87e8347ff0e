"""`edgebed init`: writes a folder with a sample experiment, fleet and device profiles, ready to run and change, and the
schemas by which an editor completes and checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edgebed.errors import FileError, UsageError
from orchestrator.cli.console import show
from orchestrator.cli.schema import Kind, schema
from orchestrator.files.shipped import shipped

SCHEMAS: tuple[Kind, ...] = ("experiment", "fleet", "profile")


def command(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; created if missing.")]) -> None:
    """Write a sample experiment, fleet and device profiles into DIR. Existing files are never overwritten."""
    for path in write_sample(folder):
        show(path)
    show(f"Next: edgebed run {folder / 'experiment.yaml'}")


def write_sample(folder: Path) -> list[Path]:
    """Copy the sample into `folder`, with the schemas that it names, and return the written files.

    Raises:
        UsageError: one of the files exists; nothing was written.
        FileError: a file cannot be written.
    """
    sample = shipped("profiles") / "sample"
    copies = {folder / path.relative_to(sample): path.read_bytes() for path in sorted(sample.rglob("*.yaml"))}
    for kind in SCHEMAS:
        copies[folder / f"{kind}.schema.json"] = msgspec.json.format(msgspec.json.encode(schema(kind))) + b"\n"
    there = [path for path in copies if path.exists()]
    if there:
        raise UsageError(f"{there[0]} exists already", hint="name a new folder, or move that file away")
    for copy, content in copies.items():
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        except OSError as error:
            raise FileError.of(error, copy) from None
    return list(copies)
