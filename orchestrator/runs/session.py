"""The composition root of real runs: makes the parts of a standing fleet and its runs, and connects them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import CalibrationError, counted
from edgebed.methods.base import METHODS
from edgebed.plugin_code import read_plugins, write_plugins
from edgebed.wire.messages import Assignment
from orchestrator.boards.authority import Authority
from orchestrator.boards.backend import BoardsBackend
from orchestrator.boards.boards_broker import BoardsBroker
from orchestrator.boards.members import with_facts
from orchestrator.broker.open_broker import Broker
from orchestrator.broker.own import OwnBroker
from orchestrator.calibration.calibrate import Calibration, calibrate
from orchestrator.dashboard.tail import refresh
from orchestrator.experiment import Experiment, Grain
from orchestrator.files.output import try_folder
from orchestrator.files.plugged import changes, codes_of
from orchestrator.files.timed_host import timed
from orchestrator.fleet.base import Backend
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.host.cpus import Admitted, Claim, admit
from orchestrator.fleet.mixed import many_hosts
from orchestrator.fleet.named import Opening, backend_class
from orchestrator.fleet.ownership import OwnedFolder
from orchestrator.fleet.spec.environment import fleets_over
from orchestrator.fleet.spec.profile import FleetSpec, load_profile
from orchestrator.records.words.formatting import percent
from orchestrator.records.words.vocabulary import HELD, OF_HOST, held_by, server_note, threads_note
from orchestrator.rounds.replay import read_replay
from orchestrator.runs import speed as device_speed
from orchestrator.runs.data import Prepared, prepare_data
from orchestrator.runs.feasibility import check_fleet, check_methods, experiment_fleet
from orchestrator.runs.interleave import groups, play
from orchestrator.runs.opened_fleet import OpenedFleet, claim_boards
from orchestrator.runs.platform import Platform, RunRequest
from orchestrator.runs.real_platform import real_platform
from orchestrator.runs.request import Notify, parts
from orchestrator.runs.request import Request as Request
from orchestrator.runs.request import Watch as Watch
from orchestrator.runs.request import quiet as quiet
from orchestrator.runs.resume import dilation_of
from orchestrator.runs.run import MethodRun, start_model
from orchestrator.scenario.files import load_scenario
from orchestrator.training.process import TrainerProcess

JOIN_TIMEOUT_S = 180.0

Ask = Callable[[Sequence[FleetSpec]], Admitted]
"""`Backend.admit` for a fleet: what it will be in the course of the run -> what it gets."""


@contextlib.asynccontextmanager
async def standing_fleet(
    spec: FleetSpec,
    *,
    backend: str | None = None,
    dilation: str | float = "auto",
    own_broker: OwnBroker | None = None,
    shards: Mapping[str, Path] | None = None,
    heartbeat_s: float = 5.0,
    grain: Grain = "pacing",
    notify: Notify = quiet,
    becomes: Sequence[FleetSpec] = (),
    work: Assignment | None = None,
    plugins: Path | None = None,
) -> AsyncIterator[FleetController]:
    """Context manager: a fleet whose agents have joined and whose limits are on. It is removed at the end. Long
    computations on this host pause meanwhile.

    Args:
        spec: as `with_facts` gives it.
        becomes: other fleets that this one becomes, because its devices change profiles; as `with_facts` gives them.
            The dilation fits them too.
        work: a task of the experiment, by which it is measured what the devices need to keep a reference's time.
        plugins: folder of the plug-ins that the agents use, as `write_plugins` has put them there.

    Raises:
        CapacityError, FleetError, LimitError, LinkError: with cause and hint.
    """
    spec = await asyncio.to_thread(device_speed.at_wanted_speed, spec)
    kind = backend_class(backend or spec.backend) if spec.here else None
    name, choose = (BoardsBackend.name, admit) if kind is None else (backend or spec.backend, kind.admit)
    fleet_id = f"f{uuid.uuid4().hex[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(timed(notify))
        boards = claim_boards(stack, spec, fleet_id)
        ask = functools.partial(choose, name, fleet_id, setting=dilation)
        admitted = await _admit(stack, ask, device_speed.before_measuring((spec, *becomes), name, dilation))
        if admitted.others:
            notify(str(admitted))
        folder = stack.enter_context(OwnedFolder(f"edgebed-{fleet_id}-"))

        def open_here(here: FleetSpec) -> Backend:
            assert kind is not None
            return kind.open(Opening(here, fleet_id, admitted, folder, Authority, notify, plugins))

        opened = await OpenedFleet.open(stack, spec, fleet_id, boards, notify, open_here, plugins)
        stack.push_async_callback((devices := opened.backend).close)
        held = held_by(devices.enforcement, spec.unlimited, spec.limited_boards)
        notify(f"preparing {counted(len(spec.devices), 'device')} ({devices.name}, {held})")
        broker = await opened.open_broker(stack, await devices.prepare(), own_broker)
        controller = await _connect(stack, opened, broker, admitted, heartbeat_s, grain, plugins)
        access = {device.name: broker.access(devices.host_of(device.name), device.name) for device in spec.here}
        await devices.start(access, shards or _idle_shards(controller.names, folder))
        notify(f"waiting for {counted(len(controller.names), 'agent')} to join over MQTT ({broker.kind})")
        await _joined_and_limited(controller)
        if spec.speed.reference:
            measured = await device_speed.measured_speed(controller, work, notify)
            await _adopt(stack, controller, measured, ask, admitted.claim, becomes)
        for line in _limits_in_words(controller):
            notify(line)
        yield controller


async def _joined_and_limited(controller: FleetController) -> None:
    await controller.membership.wait_joined(JOIN_TIMEOUT_S)
    for device in controller.names:
        await controller.put_on_limits(device, "start")


def _limits_in_words(controller: FleetController) -> Iterator[str]:
    spec, factor, set_by = controller.spec, controller.dilation, controller.dilation_by
    yield f"limits are on; dilation {factor:.3g}{f', set by {set_by}' if set_by else ''}"
    yield f"speed: {spec.wanted_speed}. {HELD if spec.speed.reference else OF_HOST}"
    yield from filter(None, (server_note(factor, spec.server_cpus), threads_note(factor, spec.one_thread)))


async def _adopt(
    stack: contextlib.AsyncExitStack,
    controller: FleetController,
    spec: FleetSpec,
    ask: Ask,
    claim: Claim,
    becomes: Sequence[FleetSpec],
) -> None:
    """Admit the fleet once more, with the speed that was measured, and have its devices keep it. On several hosts they
    were measured when it was placed."""
    if (hosts := many_hosts(controller.backend)) is not None:
        await controller.adopt(spec, *hosts.dilation())
        return
    fleets = [spec, *(msgspec.structs.replace(each, speed=spec.speed) for each in becomes)]
    admitted = await _admit(stack, ask, fleets)
    claim.close(renewed=True)
    await controller.adopt(spec, admitted.dilation, admitted.set_by)


async def _admit(stack: contextlib.AsyncExitStack, ask: Ask, fleets: Sequence[FleetSpec]) -> Admitted:
    """As `admit`; `stack` gives the claim back at its end, also if the caller is cancelled meanwhile."""
    asking = asyncio.create_task(asyncio.to_thread(ask, fleets))

    async def give_back() -> None:
        await asyncio.wait([asking])
        if asking.exception() is None:
            asking.result().claim.close()

    stack.push_async_callback(give_back)
    return await asyncio.shield(asking)


async def _connect(
    stack: contextlib.AsyncExitStack,
    opened: OpenedFleet,
    broker: Broker | BoardsBroker,
    admitted: Admitted,
    heartbeat_s: float,
    grain: Grain,
    plugins: Path | None,
) -> FleetController:
    """The controller of a fleet that is prepared, with its two connections open; `stack` closes all of them."""
    hosts = many_hosts(opened.backend)
    factor, set_by = (admitted.dilation, admitted.set_by) if hosts is None else hosts.dilation()
    controller = FleetController(
        opened.fleet_id,
        opened.spec,
        opened.backend,
        broker,
        opened.link(broker, "control"),
        opened.link(broker, "data"),
        lambda name: load_profile(name, opened.spec.path),
        dilation=factor,
        dilation_by=set_by,
        heartbeat_s=heartbeat_s * factor,
        grain=grain,
        plugins={code.name: code.sha256 for code in (read_plugins(plugins) if plugins else ())},
    )
    for link in (controller.control, controller.data):
        await link.open()
        stack.push_async_callback(link.close)
    stack.push_async_callback(controller.endpoint.close)
    stack.push_async_callback(controller.close)
    return controller


def _idle_shards(names: list[str], folder: Path) -> dict[str, Path]:
    """Shards for a fleet without a run: a file of two samples for each device."""
    shards = {name: folder / f"{name}.safetensors" for name in names}
    for path in shards.values():
        write_idle_shard(path)
    return shards


# ---- runs ----


async def run_experiment(request: Request, watch: Watch) -> list[Path]:
    """Run every method of an experiment on the same standing fleet, setting by setting and seed by seed; returns the
    run folders. Raises EdgebedError: with cause and hint. Mistakes in the experiment are found before the fleet
    starts."""
    folders = [part.over or await _run_part(part, watch) for part in parts(request)]
    return [folder for found in folders for folder in found]


async def _run_part(request: Request, watch: Watch) -> list[Path]:
    experiment = request.experiment
    if request.part_text:
        watch.notify(request.part_text)
    spec = with_facts(experiment_fleet(experiment, request.path))
    check_fleet(experiment, spec, request.path)
    for folder in (request.runs, *request.begun.values()):
        try_folder(folder)
    if request.plan is not None:
        read_replay(request.plan / "records.jsonl").check(experiment.training.rounds, len(experiment.methods))
    codes = codes_of(experiment.plugins)
    for line in changes(codes):
        watch.notify(line)
    with OwnedFolder("edgebed-data-") as shards:
        plugins = shards / "plugins" if codes else None
        if plugins:
            write_plugins(codes, plugins)
        profiles = {device.name: device.profile.name for device in spec.devices}
        prepared = prepare_data(experiment, list(profiles), shards, profiles, request.path)
        watch.notify(prepared.describe())
        check_methods(experiment, list(profiles), prepared.task, request.path)
        async with (
            TrainerProcess.started(plugins) as trainer,  # it loads torch while the fleet starts
            standing_fleet(
                spec,
                backend=request.backend,
                dilation=dilation_of(request),
                becomes=becomes(experiment, spec, request.path),
                own_broker=request.own_broker,
                shards=prepared.shards,
                heartbeat_s=experiment.training.heartbeat_s,
                grain=experiment.grain,
                notify=watch.notify,
                work=device_speed.whole_task(experiment, prepared.task),
                plugins=plugins,
            ) as controller,
        ):
            calibration = await calibrate_fleet(controller, request.allow_uncalibrated, watch.notify)
            return await run_methods(request, controller, prepared, calibration, watch, trainer)


def becomes(experiment: Experiment, spec: FleetSpec, path: Path) -> list[FleetSpec]:
    """Every fleet that the experiment makes of `spec` by changing profiles, and the extremes of its scenario."""
    training = experiment.training
    fleets = fleets_over(
        spec,
        experiment.environment,
        lambda name: load_profile(name, spec.path),
        training.seed,
        training.rounds,
        None if experiment.scenario is None else load_scenario(experiment.scenario, path),
    )
    return [with_facts(each) for each in fleets]


async def run_methods(
    request: Request,
    controller: FleetController,
    prepared: Prepared,
    calibration: Calibration,
    watch: Watch,
    trainer: TrainerProcess | None = None,
) -> list[Path]:
    """Run every method of the experiment on a standing fleet, one after the other or interleaved. Returns the run
    folders in the order of the methods. `trainer`: a process that has been started. Default: one for this call."""
    async with contextlib.AsyncExitStack() as stack:
        if trainer is None:
            trainer = await stack.enter_async_context(TrainerProcess.started())
        await trainer.ready()
        carrier = await real_platform(stack, controller, calibration.passed, trainer)
        return await _run_methods(request, controller, prepared, carrier, watch)


async def _run_methods(
    request: Request, controller: FleetController, prepared: Prepared, carrier: Platform, watch: Watch
) -> list[Path]:
    experiment = request.experiment
    request = msgspec.structs.replace(request, series=request.series or uuid.uuid4().hex[:12])
    methods = [METHODS.create(options, f"{request.path}: methods[{i}]") for i, options in enumerate(experiment.methods)]
    controller.labels = prepared.label_counts
    folders = dict(request.finished)
    for group in groups(methods, experiment.interleave, experiment.training.seed):
        runs = {
            number: MethodRun(
                RunRequest(
                    request,
                    place,
                    methods[place],
                    prepared,
                    start_model(experiment, prepared, request.path, methods[place]),
                    interleaved=len(group) > 1,
                    plan=request.plan,
                    each_piece=request.each_piece,
                ),
                carrier,
                watch,
            )
            for number, place in enumerate(group)
            if place not in request.finished
        }
        folders |= {group[number]: run.folder.path for number, run in runs.items()}
        try:
            await play(runs, len(group), experiment.training.seed, controller.fleet_id)
        finally:
            for run in runs.values():
                refresh(run.folder.path)
    return [folders[place] for place in range(len(methods))]


async def calibrate_fleet(controller: FleetController, allow_uncalibrated: bool, notify: Notify) -> Calibration:
    """The short calibration before a run. Raises CalibrationError with the limits that do not hold."""

    def tell(share: float, left_s: float) -> None:
        if left_s:
            notify(f"calibrating: {percent(share, 0)} done, about {left_s:.0f} s left")

    result = await calibrate(
        controller.backend,
        controller.limits,
        controller.membership,
        short=True,
        ceilings=bool(controller.spec.speed.reference),
        on_row=controller.record,
        on_item=tell,
    )
    failed = [row for row in result.rows if row.judged and not row.passed]
    if not result.passed and not allow_uncalibrated:
        worst = "; ".join(
            f"{r.device} {r.quantity} {r.condition}: {r.error:+.1%} {r.cause}".strip() for r in failed[:5]
        )
        raise CalibrationError(
            f"the limits do not hold on {len({r.device for r in failed})} devices: {worst}",
            hint="run `edgebed calibrate` for details; --allow-uncalibrated runs anyway and marks every output",
        )
    notify(f"calibration: {'passed' if result.passed else 'FAILED, allowed'}")
    return result
