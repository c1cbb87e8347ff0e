"""`edgebed models`: what each model costs at each cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.table import Table

from edgebed.errors import UsageError, said
from edgebed.models.costs import ModelCosts, model_costs
from edgebed.models.staged import MODELS
from edgebed.wire.settings import LearningTask
from orchestrator.cli.arguments import Classes, Json, Shape, parse_shape
from orchestrator.cli.console import columns, log, print_json, print_whole, show
from orchestrator.files.plugged import take_in, with_networks
from orchestrator.files.yaml_file import parse
from orchestrator.records.words.formatting import NONE, number, percent


def command(
    network: Annotated[
        str,
        typer.Argument(
            help="One model: FILE.py:CLASS of your own, a classifier of torchvision, or one of the list. Default: all."
        ),
    ] = "",
    stages: Annotated[int | None, typer.Option(min=1, max=64, help="Cut NETWORK into at most so many stages.")] = None,
    model: Annotated[
        str,
        typer.Option(
            help="One model of the list.",
            autocompletion=lambda incomplete: [name for name in MODELS.names() if name.startswith(incomplete)],
        ),
    ] = "",
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="<key=value>", help="Change an option of the model: widths=[8,16]. Repeatable."),
    ] = None,
    shape: Shape = "3x32x32",
    data_shape: Annotated[str, typer.Option(hidden=True)] = "",  # what --shape was called in version 0.2
    classes: Classes = 10,
    batch: Annotated[int, typer.Option(min=2, help="Batch size.")] = 100,
    as_json: Json = False,
) -> None:
    """List models with parameters, operations and feature bytes per cut."""
    if model and network:
        raise UsageError(f"{network} and --model {model} are two models", hint="name one model")
    one = spec_of(network, stages) if network else {"name": model} if model else {}
    if options and not one:
        raise UsageError("--set needs a model", hint="name the model that has these options")
    specs = [one | parse_options(options or [])] if one else [{"name": name} for name in MODELS.names()]
    take_in(*with_networks([], specs))
    with log.status("counting"):
        costs = list(_counted(specs, parse_shape(data_shape or shape), classes, batch, refuse=bool(one)))
    if as_json:
        print_json(msgspec.to_builtins(costs))
        return
    for each in costs:
        print_whole(model_table(each))
        if each.uncut:
            show(f"It cannot be cut: {each.uncut}")


def spec_of(network: str, stages: int | None) -> dict[str, Any]:
    """A model as an experiment names it."""
    file, colon, cls = network.rpartition(":")
    if network in MODELS.names():
        if stages is not None:
            raise UsageError(f"--stages: {network} has stages of its own", hint="leave --stages out")
        return {"name": network}
    chosen: dict[str, Any] = {"file": file, "class": cls} if colon else {"torchvision": network}
    return chosen if stages is None else {**chosen, "stages": stages}


def _counted(
    specs: list[dict[str, Any]], shape: tuple[int, ...], classes: int, batch: int, *, refuse: bool
) -> Iterator[ModelCosts]:
    """Costs of each model. A model that cannot take the shape is skipped with a message, or refused if `refuse`."""
    for spec in specs:
        try:
            yield model_costs(MODELS.create(spec, "--model"), LearningTask(shape, classes), batch)
        except UsageError as error:
            if refuse:
                raise
            log.print(f"left out: {said(error)}")


def parse_options(texts: list[str]) -> dict[str, Any]:
    """Parse texts `key=value`, with values in YAML. Raises UsageError."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or key == "name":
            raise UsageError(f"--set {text!r} is not key=value", hint="write key=value, as in widths=[8,16,32]")
        found[key], _ = parse(value, Path(f"--set {text}"))
    return found


def model_table(costs: ModelCosts) -> Table:
    """One row per cut; the last row is the whole model on the device."""
    shape = "x".join(map(str, costs.input_shape))
    table = Table(
        *columns(
            ">cut", "after", "features", ">MB", ">parameters", ">share", ">fwd", ">+ bwd", ">server", no_wrap=True
        ),
        title=f"{costs.name}: {costs.summary}\n{costs.parameters:,} parameters and {costs.head_parameters:,} in heads; "
        f"{shape}, {costs.classes} classes, batches of {costs.batch}",
        caption="per batch: MB (10^6 bytes of float32) of features; GFLOP of\n"
        "the device half with its head, forward and both passes; GFLOP\n"
        "of the server half, both passes. A multiply-add counts as two.\n"
        "share: of the forward operations of all stages, those until the cut.\n"
        "* marks the model's split points",
        box=box.SIMPLE_HEAD,
    )
    total = max(1, sum(stage.forward_flops for stage in costs.stages))
    for cut in costs.cuts:
        table.add_row(
            str(cut.cut),
            f"{cut.after} *" if cut.cut in costs.split_points else cut.after,
            "x".join(map(str, cut.feature_shape)) or NONE,
            number(cut.feature_bytes / 1e6) if cut.feature_shape else NONE,
            f"{cut.device_parameters:,}",
            percent(sum(stage.forward_flops for stage in costs.stages[: cut.cut]) / total),
            number(cut.forward_flops / 1e9),
            number(cut.training_flops / 1e9),
            number(cut.server_flops / 1e9) if cut.feature_shape else NONE,
        )
    return table
