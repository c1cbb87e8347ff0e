"""`edgebed tiers`: measures how a tier's time depends on the cut but not on the CPU quota (DTFL, table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

import torch
import typer
from rich.table import Table

from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import UsageError
from edgebed.models.staged import MODELS, StagedModel, seeded
from edgebed.wire.settings import Codec, LearningTask, Optimizer
from orchestrator.cli.arguments import BACKENDS_SHOWN, Classes, Json, Model, Shape, numbers, parse_shape
from orchestrator.cli.console import columns, log, print_json, print_whole
from orchestrator.fleet.backends import DEFAULT
from orchestrator.fleet.ownership import OwnedFolder
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec
from orchestrator.papers import tiers
from orchestrator.records.words.formatting import fixed, number
from orchestrator.runs import session
from orchestrator.runs.signals import run_to_end
from orchestrator.training.costs import profile_cuts


def command(
    model: Model = "resnet56",
    quotas: Annotated[str, typer.Option(metavar="<0.2,0.5>", help="CPU quotas.")] = "0.2,0.5,1.0",
    count: Annotated[
        int, typer.Option("--tiers", help="Measure so many of the deepest cuts. 7 gives two tables of six.")
    ] = 6,
    backend: Annotated[str, typer.Option(metavar=BACKENDS_SHOWN, help="What starts the device.")] = DEFAULT,
    batch: Annotated[int, typer.Option(help="Batch size. A step must last many quota periods of 100 ms.")] = 100,
    repeats: Annotated[int, typer.Option(help="Tasks per tier and quota; the median is used.")] = 3,
    shape: Shape = "3x32x32",
    classes: Classes = 10,
    as_json: Json = False,
) -> None:
    """Measure the device-side time of every tier at several CPU quotas, beside table 2 of the DTFL paper."""
    shares = numbers(quotas, ",", "--quotas")
    plugin, task = MODELS.create({"name": model}, "--model"), LearningTask(parse_shape(shape), classes)
    plugin.check_takes(task)
    net = seeded(lambda: plugin.build(task), 0)
    cuts = list(range(len(net) - count, len(net)))
    if count < 1 or cuts[0] < 1:
        raise UsageError(f"--tiers {count}: {model} has {len(net)} stages", hint=f"give 1 to {len(net) - 1}")
    measurements = run_to_end(_measure(net, model, cuts, shares, backend, batch, repeats))
    costs = profile_cuts(net, cuts, batch, Codec(), Optimizer(), torch.device("cpu"))
    readings = [_reading(measurements, {cut: costs[cut].server_s for cut in some}) for some in tiers.readings(cuts)]
    if as_json:
        print_json({**readings[-1], "readings": readings, "raw": measurements})
        return
    for reading in readings:
        _print(reading, paper=model == "resnet56" and len(reading["cuts"]) == len(tiers.PAPER_DEVICE))


class Reading(TypedDict):
    """The table over some cuts, relative to the first of them: by quota, its spread, and the server's row."""

    cuts: list[int]
    device: dict[float, list[float]]
    spread: list[tuple[float, float]]
    server: list[float]


def _reading(measurements: Sequence[tiers.Measurement], server_s: Mapping[int, float]) -> Reading:
    cuts = list(server_s)
    device = tiers.normalised([each for each in measurements if each.cut in server_s])
    server = [server_s[cut] / server_s[cuts[0]] for cut in cuts]
    return {"cuts": cuts, "device": device, "spread": tiers.spread(device), "server": server}


async def _measure(
    net: StagedModel, model: str, cuts: list[int], quotas: list[float], backend: str, batch: int, repeats: int
) -> list[tiers.Measurement]:
    limits = Limits(cpus=max(quotas), uplink_bit_s=100_000_000, downlink_bit_s=100_000_000, memory_mib=4096)
    spec = FleetSpec(
        name="tiers",
        backend=backend,
        reserve_cpus=0.5,
        devices=(DeviceSpec("tier-device", ProfileSpec("tiers", limits, "edgebed tiers")),),
        path=Path.cwd(),
    )
    with OwnedFolder("edgebed-data-") as folder, log.status("starting") as status:
        shard = folder / "shard.safetensors"
        write_idle_shard(shard, samples=batch, task=net.task)
        fleet = session.standing_fleet(
            spec, backend=backend, dilation="off", shards={"tier-device": shard}, notify=status.update
        )
        async with fleet as controller:
            return await tiers.measure_tiers(
                controller,
                net,
                {"name": model},
                cuts=cuts,
                quotas=quotas,
                batch_size=batch,
                repeats=repeats,
                on_task=lambda quota, cut: status.update(f"quota {number(quota)}: cut {cut}"),
            )


def _print(reading: Reading, *, paper: bool) -> None:
    heads = columns("", *(f">tier {tier}" for tier in range(1, len(reading["cuts"]) + 1)))
    out = Table(*heads, title=f"Time of a tier, relative to tier 1; cuts {reading['cuts'][0]} to {reading['cuts'][-1]}")
    for quota, row in reading["device"].items():
        out.add_row(f"device, {number(quota)} CPU", *(fixed(value, 2) for value in row))
    out.add_row("device, mean ± sd over quotas", *(f"{fixed(m, 2)} ± {fixed(s, 2)}" for m, s in reading["spread"]))
    if paper:
        out.add_row("device, DTFL table 2", *(fixed(value, 2) for value in tiers.PAPER_DEVICE))
    out.add_row("server", *(fixed(value, 2) for value in reading["server"]))
    if paper:
        out.add_row("server, DTFL table 2", *(fixed(value, 2) for value in tiers.PAPER_SERVER))
    print_whole(out)
