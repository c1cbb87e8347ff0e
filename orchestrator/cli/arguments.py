"""Arguments that several commands take alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgebed.errors import UsageError
from edgebed.limits.cpu_quota import Grain
from edgebed.link.connection import parse_url
from orchestrator.broker.own import OwnBroker
from orchestrator.fleet.backends import BACKENDS
from orchestrator.report.look import Width
from orchestrator.runs.find import complete_run

RUN = "A run: its folder, its id under EDGEBED_RUNS (./runs), the beginning of its id, or a pattern such as 'mine*'."
Run = Annotated[str, typer.Argument(metavar="RUN", help=RUN, autocompletion=complete_run)]
Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help=RUN, autocompletion=complete_run)]
SomeRuns = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN...", help=RUN, autocompletion=complete_run, show_default="all runs"),
]

BoardName = Annotated[
    str, typer.Argument(metavar="BOARD", help="A board: its name, its id, or the beginning of its id.")
]

BACKENDS_SHOWN = f"<{'|'.join(BACKENDS)}>"
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar=BACKENDS_SHOWN,
        help="What starts the devices.",
        show_default="that of the fleet file, or local",
    ),
]
DilationOption = Annotated[
    str,
    typer.Option(
        "--dilation",
        metavar="<auto|off|number>",
        help="Divide every limit by this factor; auto: by the least with which the fleet fits this host.",
    ),
]
GrainOption = Annotated[Grain, typer.Option("--grain", help="How a CPU quota is divided over time.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ComparisonJson = Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the results.")]
AllowUncalibrated = Annotated[
    bool, typer.Option("--allow-uncalibrated", help="Go on even if the limits do not hold; every output is marked.")
]

Methods = Annotated[list[str] | None, typer.Option(help="Run only this method of the file. Repeatable.")]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        "--seed",
        metavar="<1,2,3>",
        help="Run each method with this seed, or with each of these, and compare over them.",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="<file|package>",
        help="Methods, models or data sets of your own: a file, a folder, or an installed package. Repeatable.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="<key=value>", help="Change a key of the file: training.rounds=5. Repeatable."),
]
Model = Annotated[str, typer.Option("--model", help="A model; see `edgebed models`.")]
Shape = Annotated[str, typer.Option("--shape", metavar="<CxHxW>", help="Shape of one sample: channels, height, width.")]
Classes = Annotated[int, typer.Option("--classes", min=2, help="Number of classes.")]

PageHost = Annotated[str, typer.Option(help="Address on which the page listens.")]
PagePort = Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any free one.")]
PageToken = Annotated[
    str,
    typer.Option(
        envvar="EDGEBED_TOKEN",
        show_default="a random one",
        help="Token that the page asks for. Prefer the variable EDGEBED_TOKEN: options are visible in `ps`.",
    ),
]

PdfFile = Annotated[Path | None, typer.Option("--pdf", help="Write figures for a paper to this file, one per page.")]
SvgFile = Annotated[Path | None, typer.Option("--svg", help="Write the same figures, one file each: FILE-name.svg.")]
PngFile = Annotated[Path | None, typer.Option("--png", help="Write the same figures, one file each: FILE-name.png.")]
FigureName = Annotated[str | None, typer.Option("--figure", help="Write only this figure, to exactly this file.")]
FigureWidth = Annotated[Width, typer.Option("--width", help="Width of the figures: 3.4 (column) or 7 inches (page).")]
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
        raise UsageError(f"{option} {text!r} is not a list of positive numbers", hint=f"separate them by {separator!r}")
    return values


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse `3x32x32`. Raises UsageError."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() and 0 < int(part) <= 4096 for part in parts):
        raise UsageError(f"--shape {text!r} is not a shape", hint="give channels, height and width, as in 3x32x32")
    return tuple(int(part) for part in parts)


Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="<url>",
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
    if ca and not OwnBroker(url).secure:
        raise UsageError("--broker-ca is for a broker at mqtts://", hint="write --broker mqtts://host:port")
    return OwnBroker(url, str(ca.resolve()) if ca else "", str(users.resolve()) if users else "")
