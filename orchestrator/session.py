"""The composition root: the only place that joins real parts. A standing fleet, and the runs on it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import CalibrationError
from edgebed.link.mqtt import Address, MqttLink
from edgebed.link.transfer import Port
from edgebed.methods.base import METHODS
from edgebed.wire.messages import Control
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.broker import Broker, open_broker
from orchestrator.calibration import Calibration, calibrate
from orchestrator.data import Prepared, prepare_data
from orchestrator.experiment import Experiment
from orchestrator.feasible import check_fleet, check_methods
from orchestrator.fleet.backends import open_backend
from orchestrator.fleet.environment import dilation_over
from orchestrator.fleet.host import usable_cores
from orchestrator.fleet.profile import FleetSpec, dilation_of, fleet_of, load_profile
from orchestrator.fleet.temporary import OwnedFolder
from orchestrator.method_run import MethodRun, host_facts
from orchestrator.outputs import try_folder
from orchestrator.request import Request, Say, Watch, quiet
from orchestrator.resuming import resume_request
from orchestrator.roster import Roster
from orchestrator.rounds.replay import read_replay
from orchestrator.run_folder import RunFolder
from orchestrator.standing import Standing

JOIN_TIMEOUT_S = 180.0


@contextlib.asynccontextmanager
async def standing_fleet(
    spec: FleetSpec,
    *,
    backend: str | None = None,
    dilation: str | float = "auto",
    broker_url: str | None = None,
    shards: Mapping[str, Path] | None = None,
    heartbeat_s: float = 5.0,
    say: Say = quiet,
) -> AsyncIterator[Standing]:
    """A fleet whose agents have joined and whose limits are on; everything is removed at the end.

    Raises:
        CapacityError, FleetError, LimitError, LinkError: with cause and cure.
    """
    factor = dilation_of(spec, dilation, usable_cores())
    fleet_id = f"f{uuid.uuid4().hex[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(OwnedFolder(f"edgebed-{fleet_id}-"))
        fleet = open_backend(spec, backend or spec.backend, fleet_id, say)
        stack.push_async_callback(fleet.close)
        say(f"preparing {len(spec.devices)} devices ({fleet.backend}, limits held by {fleet.enforcement})")
        addresses = await fleet.prepare()
        broker = await stack.enter_async_context(open_broker(addresses, broker_url))
        standing = Standing(fleet_id, spec, fleet, factor, heartbeat_s, lambda name: load_profile(name, spec.path))
        await _connect(standing, broker, stack)
        standing.broker = broker
        access = {name: broker.access(fleet.host_of(name)) for name in standing.names}
        await fleet.start(access, shards or _idle_shards(standing.names, folder))
        say(f"waiting for {len(standing.names)} agents to join over MQTT ({broker.kind})")
        await standing.roster.wait_joined(JOIN_TIMEOUT_S)
        for name in standing.names:
            await standing.put_on_limits(name, "start")
        say(f"limits are on; dilation {factor:.3g}")
        yield standing


async def _connect(standing: Standing, broker: Broker, stack: contextlib.AsyncExitStack) -> None:
    """Open the orchestrator's two connections, and join port, roster and fleet to each other."""
    access = broker.access("127.0.0.1")
    address = Address(access.host, access.port, access.username, access.password)
    client = f"{standing.fleet_id}-{ORCHESTRATOR}"
    control, data = MqttLink(address, f"{client}-control"), MqttLink(address, f"{client}-data")
    standing.port = Port(
        ORCHESTRATOR,
        Topics(standing.fleet_id),
        control,
        data,
        deliver=standing.deliver,
        admit=standing.admit,
        on_control=lambda peer, message: standing.roster.on_control(peer, message),
        on_progress=standing.progress,
        known=standing.knows,
        on_dropped=standing.dropped,
    )
    standing.control = control
    standing.roster = Roster(standing.names, _say_over(standing.port), standing.record)
    standing.roster.listen(standing.on_device)
    standing.fleet.on_exit(standing.on_exit)
    standing.port.start()
    for link in (control, data):
        await link.open()
        stack.push_async_callback(link.close)
    stack.push_async_callback(standing.port.close)
    stack.push_async_callback(standing.close)


def _say_over(port: Port) -> Callable[[str, Control], None]:
    return port.control


def _idle_shards(names: list[str], folder: Path) -> dict[str, Path]:
    """Shards for a fleet that stands without a run: each device has a file of its own, of two samples."""
    shards = {name: folder / f"{name}.safetensors" for name in names}
    for path in shards.values():
        write_idle_shard(path)
    return shards


# ---- runs ----


async def run_experiment(request: Request, watch: Watch) -> list[Path]:
    """Run every method of an experiment, one after the other on the same standing fleet; returns the run folders.

    Raises:
        EdgebedError: with cause and cure; what can be seen beforehand is told before the fleet starts.
    """
    experiment = request.experiment
    spec = fleet_of(request.path, experiment.fleet)
    check_fleet(experiment, spec, request.path)
    for folder in (request.runs, *request.begun.values()):
        try_folder(folder)
    if request.plan is not None:
        read_replay(request.plan / "records.jsonl").check(experiment.training.rounds, len(experiment.methods))
    with OwnedFolder("edgebed-data-") as shards:
        profiles = {device.name: device.profile.name for device in spec.devices}
        prepared = prepare_data(experiment, list(profiles), shards, profiles, request.path)
        watch.say(prepared.describe())
        check_methods(experiment, list(profiles), prepared.input_shape, prepared.classes, request.path)
        async with standing_fleet(
            spec,
            backend=request.backend,
            dilation=_dilation(experiment, spec),
            broker_url=request.broker_url,
            shards=prepared.shards,
            heartbeat_s=experiment.training.heartbeat_s,
            say=watch.say,
        ) as standing:
            calibration = await calibrate_fleet(standing, request.allow_uncalibrated, watch.say)
            return await run_methods(request, standing, prepared, calibration, watch)


def _dilation(experiment: Experiment, spec: FleetSpec) -> float:
    """One factor for all rounds of the experiment, whatever profiles they bring."""
    return dilation_over(
        spec,
        experiment.environment,
        lambda name: load_profile(name, spec.path),
        experiment.training.seed,
        experiment.training.rounds,
        experiment.dilation,
        usable_cores(),
    )


async def run_methods(
    request: Request, standing: Standing, prepared: Prepared, calibration: Calibration, watch: Watch
) -> list[Path]:
    """Run every method of the experiment in turn on a fleet that stands already; returns the run folders."""
    listed, series = request.experiment.methods, request.series or uuid.uuid4().hex[:12]
    methods = [METHODS.create(options, f"{request.path}: methods[{i}]") for i, options in enumerate(listed)]
    standing.labels = prepared.label_counts
    folders = []
    for place, (method, options) in enumerate(zip(methods, listed, strict=True)):
        if place in request.finished:
            folders.append(request.finished[place])
            continue
        run = MethodRun(request, series, place, standing, prepared, method, options, calibration, watch)
        folders.append(run.folder.path)
        await run.execute()
    return folders


async def calibrate_fleet(standing: Standing, allow_uncalibrated: bool, say: Say) -> Calibration:
    """The short calibration before every run. Raises CalibrationError naming what does not hold."""
    say("calibrating")
    result = await calibrate(standing.fleet, standing.limits, standing.prober, short=True, on_row=standing.record)
    failed = [row for row in result.rows if row.judged and not row.passed]
    if not result.passed and not allow_uncalibrated:
        worst = "; ".join(
            f"{r.device} {r.quantity} {r.condition}: {r.error:+.1%} {r.cause}".strip() for r in failed[:5]
        )
        raise CalibrationError(
            f"the limits do not hold on {len({r.device for r in failed})} devices: {worst}",
            cure="see `edgebed calibrate`; --allow-uncalibrated runs all the same and marks every output",
        )
    say(f"calibration: {'passed' if result.passed else 'FAILED, allowed'}")
    return result


__all__ = [
    "Request",
    "RunFolder",
    "Say",
    "Watch",
    "host_facts",
    "quiet",
    "resume_request",
    "run_experiment",
    "standing_fleet",
]
