"""`edgebed run --estimate`: what an experiment would take on this host, from a simulation of its first rounds."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import psutil
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from edgebed.errors import lasting
from orchestrator.cli.console import columns, log, print_json, print_whole, show
from orchestrator.experiment import MOST_ROUNDS, Experiment, Setting
from orchestrator.fleet.host.cores import usable_cores
from orchestrator.fleet.host.cpus import standing, taken_cpus
from orchestrator.fleet.spec.environment import dilation_over
from orchestrator.records.account import load_summary
from orchestrator.records.compare.groups import in_setting
from orchestrator.records.summary import Summary
from orchestrator.records.words.formatting import known, number, seconds
from orchestrator.records.words.vocabulary import origins_text
from orchestrator.runs.feasibility import experiment_fleet
from orchestrator.runs.request import Watch
from orchestrator.runs.session import becomes
from orchestrator.runs.speed import at_wanted_speed
from orchestrator.simulation.run import SimulationRequest, simulate

ROUNDS = 3
"""Rounds that are simulated. Nothing is trained in them; in the first one the devices build the model."""


class Estimate(msgspec.Struct, frozen=True):
    """One method in one setting, over all its rounds and seeds: `wall_s` = the seconds of its rounds × `dilation`.

    Attributes:
        dilation: by the CPUs of this host, without other fleets; None: the fleet is on the nodes of a Swarm.
        reference_s: CPU seconds of the simulated rounds, by where they are known from.
        memory_mib: that all devices on this host may use; `free_mib`: that it has.
    """

    method: str
    seeds: int
    rounds: int
    first_round_s: float
    round_s: float
    dilation: float | None
    wall_s: float | None
    costs: str
    reference_s: dict[str, float]
    memory_mib: int
    free_mib: int


def print_estimate(experiment: Experiment, path: Path, as_json: bool) -> None:
    """Simulate the first rounds of each method in each setting with its first seed, and print what all would take.

    Raises:
        CapacityError: the fleet does not fit this host.
    """
    seeds = experiment.all_seeds
    with log.status("simulating the first rounds"):
        found = [
            one
            for setting, seed in experiment.parts[:: len(seeds)]
            for one in _part(experiment.part(setting, seed), setting, len(seeds), path)
        ]
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    heads = columns("method", ">rounds", ">first round", ">later ones", ">D", ">wall time, at most", "costs")
    table = Table(*heads, box=SIMPLE_HEAD)
    for one in found:
        rounds = str(one.rounds) if one.seeds == 1 else f"{one.seeds} × {one.rounds}"
        cells = (rounds, seconds(one.first_round_s), seconds(one.round_s), known(one.dilation, number))
        costs = origins_text(one.reference_s) or one.costs
        table.add_row(*map(escape, (one.method, *cells, known(one.wall_s, lasting), costs)))
    print_whole(table)
    whole = None if any(one.wall_s is None for one in found) else sum(one.wall_s or 0.0 for one in found)
    show(f"All: {known(whole, lasting)}, without the start of the fleets and their calibration.")
    if others := taken_cpus(standing()):
        show(f"Other fleets hold {number(others)} of {number(usable_cores())} CPUs now: D would be larger beside them.")
    show(f"Memory: the devices may use {found[0].memory_mib} MiB; {found[0].free_mib} MiB are free here.")


def _part(part: Experiment, setting: Setting, seeds: int, path: Path) -> Iterator[Estimate]:
    """Every method of one setting, with the dilation that they share."""
    training, spec = part.training, experiment_fleet(part, path)
    dilation = None
    if spec.backend != "swarm":
        spec = at_wanted_speed(spec)
        fleets = (spec, *(msgspec.structs.replace(each, speed=spec.speed) for each in becomes(part, spec, path)))
        dilation = dilation_over(fleets, part.dilation, usable_cores())
    for options in part.methods:
        summary = msgspec.structs.replace(_first_rounds(part, options, path), setting=setting)
        lengths = [row.round_s for row in summary.rounds]
        later_s, budget_s = fmean(lengths[1:] or lengths), training.budget_s or math.inf
        rounds = min(training.rounds, 1 + math.ceil(min(MOST_ROUNDS, max(0.0, budget_s - lengths[0]) / later_s)))
        yield Estimate(
            method=in_setting(summary),
            seeds=seeds,
            rounds=rounds,
            first_round_s=lengths[0],
            round_s=later_s,
            dilation=dilation,
            wall_s=dilation and seeds * min(budget_s, lengths[0] + later_s * (rounds - 1)) * dilation,
            costs=summary.costs,
            reference_s=summary.reference_s,
            memory_mib=sum(device.profile.limits.memory_mib for device in spec.here),
            free_mib=psutil.virtual_memory().available // 2**20,
        )


def _first_rounds(part: Experiment, options: dict[str, Any], path: Path) -> Summary:
    rounds = min(ROUNDS, part.training.rounds)
    training = msgspec.structs.replace(part.training, rounds=rounds, budget_s=None, stop_at_target=False)
    wanted = msgspec.structs.replace(part, methods=[options], training=training, seeds=None, sweep=None, scenario=None)
    with tempfile.TemporaryDirectory(prefix="edgebed-estimate-") as folder:
        (run,) = simulate(SimulationRequest(wanted, path, Path(folder), learned=[0.0] * 1000), Watch())
        return load_summary(run)
