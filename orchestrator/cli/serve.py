"""`edgebed serve`: the trained exits of a run answer real requests on a throttled fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from edgebed.errors import UsageError
from orchestrator.cli.arguments import (
    AllowUncalibrated,
    BackendOption,
    Broker,
    BrokerCA,
    BrokerUsers,
    Quiet,
    Run,
    own_broker,
)
from orchestrator.cli.console import columns, console, log, print_json, say, show
from orchestrator.records.words.formatting import known, percent, seconds
from orchestrator.runs.find import find_run, runs_folder
from orchestrator.runs.signals import run_to_end
from orchestrator.serving.service import ServeRequest, serve


def command(
    run: Run,
    fleet: Annotated[Path | None, typer.Option(help="Another fleet file, with devices of the same names.")] = None,
    backend: BackendOption = None,
    broker: Broker = None,
    broker_ca: BrokerCA = None,
    broker_users: BrokerUsers = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second at every leaf.", show_default="that of the method's options"),
    ] = None,
    requests: Annotated[int, typer.Option(help="Total number of requests.")] = 400,
    allow_uncalibrated: AllowUncalibrated = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print serving.json.")] = False,
    quiet: Quiet = False,
) -> None:
    """Serve requests on a throttled fleet with the early-exit model of RUN."""
    if rate is not None and not 0 < rate < 1e6:
        raise UsageError(f"--rate {rate:g} is not a number of requests per second", hint="give a number above 0")
    wanted = ServeRequest(
        run=find_run(run),
        runs=runs_folder(),
        requests=requests,
        fleet=fleet,
        backend=backend,
        own_broker=own_broker(broker, broker_ca, broker_users),
        rate=rate,
        allow_uncalibrated=allow_uncalibrated,
    )
    with log.status("starting") as status:

        def notify(line: str) -> None:
            if not quiet:
                say(line)

        def watch(answered: int, lost: int) -> None:
            status.update(f"{answered} of {requests} answered" + (f", {lost} lost" if lost else ""))

        folder, summary = run_to_end(serve(wanted, notify, watch))
    if as_json:
        print_json(summary)
        return
    print_serving(summary)
    show(f"Figures: {folder / 'serving.json'}")


def print_serving(summary: dict[str, Any]) -> None:
    """The tables of exits, nodes and links."""
    for line in headline(summary):
        show(line)
    console.print(_exits(summary))
    console.print(_nodes(summary))
    console.print(_links(summary))


def headline(summary: dict[str, Any]) -> list[str]:
    lines = [
        f"{summary['answered']} of {summary['requests']} requests answered in {_seconds(summary['seconds'])}, "
        f"{_number(summary['throughput_per_s'])}/s of {_number(summary['offered_per_s'])}/s offered; "
        f"accuracy {_percent(summary['accuracy'])} (without fleet and codec {_percent(summary['expected_accuracy'])})",
        f"latency from the arrival at the leaf to the answer: p50 {_seconds(summary['latency_s_p50'])}, "
        f"p99 {_seconds(summary['latency_s_p99'])}",
    ]
    for node, lost in summary["lost_at"].items():
        lines.append(f"lost at {node}: {lost['requests']} requests: {lost['why']}")
    if not summary["calibrated"]:
        lines.append("NOT CALIBRATED: the limits did not hold")
    if (share := summary.get("requests_in_quota_share")) is not None:
        lines.append(f"grain {summary['grain']}: {_percent(share)} of the requests within one period's CPU quota")
    if summary["dilation"] != 1:
        lines.append(f"dilation {summary['dilation']:.3g}: seconds are divided by it, rates multiplied")
    return lines


def _exits(summary: dict[str, Any]) -> Table:
    heads = columns("exit", ">share", ">wanted", ">exp.", ">accuracy", ">p50", ">p99", ">bytes", no_wrap=True)
    table = Table(*heads, title="Exits: share served, wanted, expected; latency; bytes per request")
    for each in summary["exits"]:
        table.add_row(
            f"{each['exit']} (cut {each['cut']})",
            _percent(each["share"]),
            _percent(each["share_wanted"]),
            _percent(each["share_expected"]),
            _percent(each["accuracy"]),
            _seconds(each["latency_s_p50"]),
            _seconds(each["latency_s_p99"]),
            _number(each["bytes_per_request"]),
        )
    return table


def _nodes(summary: dict[str, Any]) -> Table:
    heads = ("node", "parent", ">took", ">answered", ">wait p50", ">wait p99", ">work", ">queue")
    table = Table(*columns(*heads, no_wrap=True), title="Nodes: requests; wait before work, work; longest queue")
    for each in summary["nodes"]:
        table.add_row(
            each["node"],
            each["parent"] or "–",
            str(each["took"]),
            str(each["answered"]),
            _seconds(each["wait_s_p50"]),
            _seconds(each["wait_s_p99"]),
            _seconds(each["work_s_p50"]),
            str(each["most_waiting"]),
        )
    return table


def _links(summary: dict[str, Any]) -> Table:
    heads = columns("node", "link", ">Mbit/s", ">transfers", ">bytes", no_wrap=True)
    table = Table(*heads, title="Links")
    for each in summary["links"]:
        rate = f"{each['rate_bit_s'] / 1e6:g}"
        table.add_row(each["node"], each["direction"], rate, str(each["transfers"]), f"{each['bytes']:,}")
    return table


def _percent(value: float | None) -> str:
    return known(value, percent)


def _seconds(value: float | None) -> str:
    return known(value, seconds)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
