"""Serving, from a run's folder to `serving.json`: fleet, the nodes' tasks, requests, records."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from edgebed.errors import UsageError
from edgebed.pacing import HOST
from edgebed.plugin_code import write_plugins
from orchestrator.boards.members import with_facts
from orchestrator.broker.own import OwnBroker
from orchestrator.experiment import Experiment
from orchestrator.files.output import replace, try_folder
from orchestrator.files.plugged import codes_of
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.ownership import OwnedFolder
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet
from orchestrator.records.host_records import Served
from orchestrator.records.reader import read
from orchestrator.records.recorder import Recorder
from orchestrator.records.run_index import sort
from orchestrator.records.serving_summary import summarise_serving
from orchestrator.records.types import (
    ClockOffset,
    Ending,
    Evaluated,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
)
from orchestrator.report import write_results
from orchestrator.runs import session
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.real_platform import host_facts
from orchestrator.runs.request import Notify
from orchestrator.serving import deploy
from orchestrator.serving.router import Router

Watching = Callable[[int, int], None]


class ServeRequest(msgspec.Struct, frozen=True):
    """The options of the command line.

    Attributes:
        run: the folder of the run whose exits are to serve.
        fleet: another fleet file; its devices must have the same names as the run's.
        rate: requests per second at every leaf; None: from the method's options.
        requests: the total.
    """

    run: Path
    runs: Path
    requests: int
    fleet: Path | None = None
    backend: str | None = None
    own_broker: OwnBroker | None = None
    rate: float | None = None
    allow_uncalibrated: bool = False


async def serve(
    request: ServeRequest, notify: Notify, watch: Watching = lambda answered, lost: None
) -> tuple[Path, dict[str, Any]]:
    """Serve, and write the results.

    Returns:
        The new run folder and its summary (`serving.json`).

    Raises:
        UsageError: before anything is started, if the run has no exits or the fleet has other devices.
    """
    try_folder(request.runs)
    trained = deploy.load_trained(request.run)
    experiment = trained.experiment
    spec = with_facts(load_fleet(request.fleet or (request.run / experiment.fleet).resolve()))
    _check_names(trained, spec)
    check_speed(experiment, spec, notify)
    with OwnedFolder("edgebed-serve-") as folder:
        plugins = folder / "plugins" if (codes := codes_of(experiment.plugins)) else None
        if plugins:
            write_plugins(codes, plugins)
        async with session.standing_fleet(
            spec,
            backend=request.backend,
            dilation="auto" if request.fleet else experiment.dilation,
            own_broker=request.own_broker,
            shards=deploy.write_requests(trained, folder),
            heartbeat_s=experiment.training.heartbeat_s,
            grain=experiment.grain,
            notify=notify,
            plugins=plugins,
        ) as controller:
            calibration = await session.calibrate_fleet(controller, request.allow_uncalibrated, notify)
            return await serve_on(request, trained, controller, calibration.passed, watch)


def _check_names(trained: deploy.TrainedRun, spec: FleetSpec) -> None:
    nodes, devices = set(trained.deployment.tree.parents), {device.name for device in spec.devices}
    if nodes != devices:
        raise UsageError(
            f"the tree of {trained.run} has the nodes {', '.join(sorted(nodes))}, the fleet {spec.name} the devices "
            f"{', '.join(sorted(devices))}",
            hint="give --fleet a file whose devices have the names of the nodes",
        )


def check_speed(experiment: Experiment, spec: FleetSpec, notify: Notify) -> None:
    """Requests are served at the speed of the host: no reference has recorded what a request takes."""
    if spec.wanted_speed != HOST:
        raise UsageError(
            f"the fleet {spec.name} wants speed: {spec.wanted_speed}, but no reference knows what a request takes",
            hint="serve at the speed of this host: a fleet file with speed: host, or without the key (--fleet)",
        )
    if experiment.speed not in (None, HOST):
        notify(f"the run was held to the {experiment.speed}; its requests are served at the speed of this host")


async def serve_on(
    request: ServeRequest, trained: deploy.TrainedRun, controller: FleetController, calibrated: bool, watch: Watching
) -> tuple[Path, dict[str, Any]]:
    """The same on a running fleet whose shards are the requests of `deploy.write_requests`."""
    service = deploy.prepare(trained, request.requests, request.rate, controller.dilation)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    files = RunFolder(request.runs / f"{trained.experiment.name}-serve-{stamp}-{uuid.uuid4().hex[:4]}")
    try_folder(files.path)
    recorder = Recorder(files.records)
    started_ns = time.monotonic_ns()
    recorder.record(_run_started(files.path.name, trained, controller, calibrated))
    for record in controller.facts():
        recorder.record(record)
    recorder.record(_round_started(trained, service, controller))
    router = Router(
        controller.endpoint,
        recorder.record,
        deploy.posts(service, trained, files.path.name, _offsets(controller)),
        service.labels,
        liveness_s=trained.experiment.training.liveness_s * controller.dilation,
        watch=watch,
    )
    controller.attach(recorder.record)
    why: str = "interrupted"
    ending: Ending = "interrupted"
    try:
        with controller.driven(controller.names, router):
            why, ending = await recorder.guard(router.run()), "finished"
    except Exception as error:
        why, ending = f"error: {error}", "failed"
        raise
    finally:
        _conclude(recorder, files, started_ns, why, ending)
        try:
            await controller.membership.flush()
        finally:
            controller.attach(None)
            recorder.close()
            summary = _write(files.path)
    return files.path, summary


def _conclude(recorder: Recorder, files: RunFolder, started_ns: int, why: str, ending: Ending) -> None:
    """Write the last records: serving counts as one round, with the accuracy over the answered requests."""
    served = [record for record in read(files.records) if isinstance(record, Served)]
    now = time.monotonic_ns()
    recorder.record(RoundFinished(now, 0, (now - started_ns) / 1e9, (), why))
    if served:
        accuracy = sum(record.right for record in served) / len(served)
        recorder.record(Evaluated(now, 0, accuracy, float("nan"), 0.0))
    recorder.last(RunFinished(time.monotonic_ns(), why, ending))


def _write(folder: Path) -> dict[str, Any]:
    records = read(folder / "records.jsonl")
    summary = summarise_serving(sort(records), records)
    replace(folder / "serving.json", msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    write_results(folder)
    return summary


def _offsets(controller: FleetController) -> dict[str, int]:
    """Every device's clock minus the orchestrator's, in ns, as last measured."""
    found = {fact.device: fact.offset_ns for fact in controller.facts() if isinstance(fact, ClockOffset)}
    return {name: found.get(name, 0) for name in controller.names}


def _run_started(run: str, trained: deploy.TrainedRun, controller: FleetController, calibrated: bool) -> RunStarted:
    return RunStarted(
        at_ns=time.monotonic_ns(),
        wall=datetime.now(UTC).isoformat(timespec="seconds"),
        run=run,
        experiment=trained.experiment.name,
        method="serve",
        seed=trained.experiment.training.seed,
        backend=controller.backend_name,
        enforcement=str(controller.enforcement),
        dilation=controller.dilation,
        grain=controller.grain,
        calibrated=calibrated,
        resumed_from=0,
        target_accuracy=1.0,
        host=host_facts(),
        devices=controller.infos(),
    )


def _round_started(trained: deploy.TrainedRun, service: deploy.Service, controller: FleetController) -> RoundStarted:
    tree, deployment = trained.deployment.tree, trained.deployment
    arrivals = {
        node: each.arrivals.rate * controller.dilation
        for node, each in service.assignments.items()
        if each.arrivals is not None and each.arrivals.count
    }
    serving: dict[str, object] = {
        "source": trained.run,
        "requests": len(service.labels),
        "parents": tree.parents,
        "exits": tree.exits,
        "cuts": deployment.cuts,
        "shares": deployment.shares,
        "thresholds": trained.thresholds,
        "arrivals": arrivals,
        "expected_accuracy": service.expected.accuracy,
        "expected_shares": service.expected.shares,
    }
    return RoundStarted(
        at_ns=time.monotonic_ns(),
        round=0,
        planned_s=0.0,
        lr=0.0,
        devices=tuple(sorted(service.assignments)),
        assignments=service.assignments,
        notes={"serving": serving},
    )
