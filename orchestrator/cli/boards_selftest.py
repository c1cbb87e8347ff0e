"""`edgebed boards selftest`: tries a board as a run would, and writes all that was found into one file for others."""

from __future__ import annotations

import datetime as dt
import platform
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from edgebed.errors import EdgebedError, UsageError
from edgebed.wire.reading import BoardReading
from orchestrator.boards.members import with_facts
from orchestrator.boards.registry import Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.cli.arguments import BoardName
from orchestrator.cli.console import log, show
from orchestrator.experiment import load
from orchestrator.files.output import keep, try_file
from orchestrator.files.yaml_file import write_yaml
from orchestrator.fleet.backends import DEFAULT
from orchestrator.fleet.host.checkup import check
from orchestrator.fleet.host.facts import gather
from orchestrator.fleet.named import backend_class
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.account import load_summary
from orchestrator.records.host_records import BoardReadings
from orchestrator.records.reader import read
from orchestrator.records.run_index import sort
from orchestrator.records.types import DeviceDone, DeviceJoined, Record
from orchestrator.references.recording import record as make_reference
from orchestrator.runs import session
from orchestrator.runs.find import runs_folder
from orchestrator.runs.request import Notify, Request, Watch
from orchestrator.runs.signals import run_to_end

EXPERIMENT = """\
name: selftest
fleet: free.yaml
data: {name: digits, train_samples: 320, test_samples: 100}
model: {name: resnet56}  # an update of 2.4 MB, in which a rate can be measured
methods: [{name: fedavg}, {name: splitfed}]
training: {rounds: 3, batch_size: 32, heartbeat_s: 1, stop_at_target: false}
"""
LIMITED = {"cpus": 0.5, "uplink_mbit_s": 20, "downlink_mbit_s": 20, "memory_mib": 1024}
NAMES_A_HOST = ("host", "hostname", "pid")
"""Texts that stay out of the file: they say which board it is, not of what kind."""
ADDRESSES = (
    *(r"\w+://\S+", r"\b\d{1,3}(?:\.\d{1,3}){3}\b", r"\b(?:[\da-fA-F]{1,4}:){5,7}[\da-fA-F]{1,4}\b"),
    *(r"\b[\da-fA-F]{1,4}(?::[\da-fA-F]{1,4})*::[\da-fA-F:]*", r"\b[A-Za-z][\w-]*(?:\.[\w-]+)+:\d+\b"),
    *(r"/(?:home|Users)/[^/\s]+", r"\bhost='[^']*'", r"(?<=synchronised with )\S+"),
)
"""Parts of texts that do so: URLs, addresses of IP and Ethernet, HOST:PORT, home folders, time servers."""


def selftest_board(
    name: BoardName,
    output: Annotated[Path | None, typer.Option(help="The file.", show_default="NAME.selftest.json")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Try a board and write what was found into one file: installation, torch, sensors, limits, rate over TLS, cost of
    its work, three rounds of FedAvg and SplitFed. Exit code 1 if a part failed; the file then says why.

    Send the file to the project if you own a board that docs/boards.md does not name as tried."""
    board = Store(ServiceFolder.of_user()).read().find(name)
    path = output or Path(f"{board.name}.selftest.json")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="--force overwrites it, --output names another file")
    try_file(path)
    with tempfile.TemporaryDirectory(prefix="edgebed-selftest-") as folder, log.status("starting") as status:
        parts = dict(_parts(Path(folder), board.name, board.facts, lambda line: status.update(escape(line))))
    about = {"date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}", "edgebed": metadata.version("edgebed")}
    told = without_names(parts, platform.node(), board.facts.get("host", ""))
    keep(path, msgspec.json.format(msgspec.json.encode(about | told), indent=1) + b"\n")
    failed = [part for part, found in parts.items() if "error" in found]
    for part in parts:
        show(
            f"{'FAILED' if part in failed else 'ok    '} {part}{': ' + parts[part]['error'] if part in failed else ''}"
        )
    show(f"Written: {path}")
    if failed:
        raise typer.Exit(1)


def _parts(folder: Path, name: str, facts: dict[str, str], notify: Notify) -> Iterator[tuple[str, dict[str, Any]]]:
    """The parts of the file, each as soon as it is known. One that fails is its error and hint."""
    write_files(folder, name)
    yield "install", facts
    yield "orchestrator", _tried(_host)
    rounds = _tried(lambda: _rounds(folder, notify))
    runs = [read(each) for each in sorted((folder / "runs").glob("*/records.jsonl"))]
    yield "rounds", rounds
    records = [record for run in runs for record in run]
    joined = [each.host for each in records if isinstance(each, DeviceJoined)]
    rates = [
        each.link_bytes_s / 1e6 for each in records if isinstance(each, DeviceDone) and 0 < each.link_bytes_s < inf
    ]
    missing = {"error": "no task of the board was finished", "hint": "the part `rounds` says why"}
    yield "torch", joined[-1] if joined else missing
    yield "sensors", sensors(records)
    yield "tls", {"mb_s": rates} if rates else missing  # of each update, over MQTT and TLS; 10^6 bytes
    yield "reference", _tried(lambda: msgspec.to_builtins(make_reference(name, [sort(run) for run in runs], {}, {})))
    yield "limits", _tried(lambda: run_to_end(_limits(folder / "limited.yaml", notify)))


def _tried(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return part()
    except EdgebedError as error:
        return {"error": str(error), "hint": error.hint}


def write_files(folder: Path, name: str) -> None:
    """The experiment, and two fleets of the board: as it is, and held to limits."""
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    (folder / "half.yaml").write_bytes(write_yaml(LIMITED))
    for fleet, more in (("free", {}), ("limited", {"profile": "half.yaml", "limit": True})):
        values = {"name": fleet, "devices": [{"board": name, **more}]}
        (folder / f"{fleet}.yaml").write_bytes(write_yaml(values))


def _host() -> dict[str, Any]:
    rows = check(gather(runs_folder()), backend_class(DEFAULT).needs, 0)
    return {each.name: each.lack or each.found for each in rows} | {"machine": platform.machine()}


def _rounds(folder: Path, notify: Notify) -> dict[str, Any]:
    path = folder / "experiment.yaml"
    request = Request(load(path), path, folder / "runs", allow_uncalibrated=True, each_piece=True)
    runs = run_to_end(session.run_experiment(request, Watch(notify)))
    return {summary.method: summary.as_dict() for summary in map(load_summary, runs)}


def sensors(records: Sequence[Record]) -> dict[str, Any]:
    """By quantity: how many readings had it, and the last one; `readings` is the number of all."""
    found = [each for record in records if isinstance(record, BoardReadings) for each in record.readings]
    known = {key: [getattr(each, key) for each in found] for key in BoardReading.__struct_fields__[1:]}
    there = {key: [each for each in values if each not in (None, ())] for key, values in known.items()}
    told = {key: {"readings": len(values), "last": values[-1]} for key, values in there.items() if values}
    return {"readings": len(found), **told}


async def _limits(fleet: Path, notify: Notify) -> dict[str, Any]:
    async with session.standing_fleet(with_facts(load_fleet(fleet)), dilation="off", notify=notify) as controller:
        calibration = await session.calibrate_fleet(controller, True, notify)
    return {"passed": calibration.passed, "rows": msgspec.to_builtins(calibration.rows)}


def without_names(value: Any, *hosts: str) -> Any:
    """The same without what says which board and which host it is; `hosts`: their names."""
    own = "|".join([*(rf"\b{re.escape(host)}\b" for host in hosts if host), *ADDRESSES])
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in NAMES_A_HOST or not isinstance(each, str)}
        return {key: without_names(each, *hosts) for key, each in kept.items()}
    if isinstance(value, list | tuple):
        return [without_names(each, *hosts) for each in value]
    return re.sub(own, "…", value) if isinstance(value, str) else value
