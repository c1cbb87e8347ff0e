"""Arguments that several commands take alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgebed.errors import UsageError
from orchestrator.broker.own import OwnBroker, parse_url
from orchestrator.fleet.backends import choices
from orchestrator.report.look import Width
from orchestrator.runs.find import complete_run

Runs = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs, their ids under EDGEBED_RUNS (./runs), or patterns of ids: 'mine*'.",
        autocompletion=complete_run,
    ),
]

BackendOption = Annotated[str | None, typer.Option("--backend", help=f"{choices()}; overrides the fleet file.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ComparisonJson = Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")]
Quiet = Annotated[bool, typer.Option(help="Print only the results.")]
AllowUncalibrated = Annotated[bool, typer.Option(help="Go on even if the limits do not hold; every output is marked.")]

Seeds = Annotated[
    str | None, typer.Option(metavar="1,2,3", help="Run each method with each of these seeds, and compare over them.")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|PACKAGE",
        help="Methods, models or data sets of your own: a file, a folder, or an installed package. Repeatable.",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the file: training.rounds=5. Repeatable.")
]


PdfFile = Annotated[Path | None, typer.Option("--pdf", help="Write figures for a paper to this file, one per page.")]
SvgFile = Annotated[Path | None, typer.Option("--svg", help="Write the same figures, one file each: FILE-name.svg.")]
PngFile = Annotated[Path | None, typer.Option("--png", help="Write the same figures, one file each: FILE-name.png.")]
FigureName = Annotated[str | None, typer.Option("--figure", help="Write only this figure, to exactly this file.")]
FigureWidth = Annotated[Width, typer.Option("--width", help="Width of the figures: 3.4 inches (column) or 7 (page).")]
Titles = Annotated[bool, typer.Option("--title/--no-title", help="Titles above the figures.")]


def files(*paths: Path | None) -> list[Path]:
    """Those that were given."""
    return [path for path in paths if path is not None]


def numbers(text: str, separator: str, option: str) -> list[float]:
    """Parse positive numbers in an option's text. Raises UsageError."""
    try:
        values = [float(part) for part in text.split(separator)]
    except ValueError:
        values = []
    if not values or not all(0 < value < 1e6 for value in values):
        raise UsageError(f"{option} {text!r}", hint=f"give positive numbers separated by {separator!r}")
    return values


Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        help="Your own broker: mqtts://host:port, or mqtt://host:port on this host. The password comes from "
        "--broker-users or the environment (EDGEBED_BROKER_USER, EDGEBED_BROKER_PASSWORD).",
    ),
]

BrokerCA = Annotated[
    Path | None, typer.Option("--broker-ca", help="The certificate (PEM) that has signed that of your broker.")
]

BrokerUsers = Annotated[
    Path | None,
    typer.Option("--broker-users", help="Users of your broker, one for each device: see `edgebed broker users`."),
]


def overridden(set_: list[str] | None, seeds: str | None, **values: str | None) -> list[str]:
    """The overrides of --set, then those of options that stand for one key each."""
    given = {**values, "seeds": seeds and f"[{seeds}]"}
    return [*(set_ or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]


def own_broker(url: str | None, ca: Path | None, users: Path | None) -> OwnBroker | None:
    """What these options name; None without --broker. Raises UsageError."""
    if url is None:
        if ca or users:
            raise UsageError("--broker-ca and --broker-users need --broker", hint="--broker mqtts://host:port")
        return None
    if "@" in url:
        raise UsageError(
            "--broker has a user or password in it, which every user of this host can see in the list of processes",
            hint="set EDGEBED_BROKER_USER and EDGEBED_BROKER_PASSWORD, or name a file with --broker-users",
        )
    parse_url(url)
    if ca and not url.startswith("mqtts:"):
        raise UsageError("--broker-ca is for a broker at mqtts://", hint="write --broker mqtts://host:port")
    return OwnBroker(url, str(ca.resolve()) if ca else "", str(users.resolve()) if users else "")
