"""Profiles fitted to artificial boards: how far from the boards' limits, and how unlike them a device under them is.

The boards are processes of this host under a quota, behind a shaped link. So what a profile must find is known. Take it
with the machine to yourself; it takes nine minutes. LOOK_ALIKE_CPUS=0.2 takes the board of 0.2 CPUs only,
LOOK_ALIKE_REPEATS=2 measures each cut twice instead of three times.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from benchmarks._figures import figure, skip
from edgebed.limits.spec import Limits
from edgebed.models.staged import MODELS, seeded
from edgebed.wire.settings import LearningTask
from orchestrator.fleet.spec.profile import BOARD, DeviceSpec, FleetSpec
from orchestrator.look_alike.bench import Job
from orchestrator.look_alike.measure import measure, spread_cuts
from tests.artificial_board import artificial_board

BOARDS = (Limits(0.2, 10_000_000, 20_000_000, 2048), Limits(0.6, 30_000_000, 90_000_000, 2048))
MOST, MOST_STEP = 0.05, 0.10


def take(limits: Limits, job: Job) -> None:
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        try:
            with artificial_board(Path(folder), "pi", limits):
                spec = FleetSpec("pi", "local", 0.0, (DeviceSpec("pi", BOARD, "pi"),), Path(folder) / "fleet.yaml")
                outcome = asyncio.run(measure(spec, "pi", job, "local", lambda line: None))
        finally:
            os.environ.clear()
            os.environ.update(before)
    found, name = outcome.profile.limits, f"board of {limits.cpus:g} CPUs"
    for what, value, wanted in (
        ("CPUs", found.cpus, limits.cpus),
        ("uplink", found.uplink_bit_s, limits.uplink_bit_s),
        ("downlink", found.downlink_bit_s, limits.downlink_bit_s),
    ):
        figure(f"{name}: {what} of the profile, off by", abs(value / wanted - 1), most=MOST, note=f"{value:g}")
    for row in outcome.rows:
        if row.error is not None:
            values = f"{row.board:.4g} and {row.look_alike:.4g} {row.unit}"
            most = MOST_STEP if row.name.startswith(("step", "up", "down")) else None
            figure(f"{name}: {row.name}, look-alike off by", abs(row.error), most=most, note=values)


def main() -> None:
    if os.geteuid() != 0:
        skip("an artificial board needs root")
        return
    net = seeded(lambda: MODELS.create({"name": "resnet-tiny"}, "benchmark").build(LearningTask((1, 8, 8), 10)), 0)
    only = os.environ.get("LOOK_ALIKE_CPUS")
    for limits in (each for each in BOARDS if only in (None, f"{each.cpus:g}")):
        repeats = int(os.environ.get("LOOK_ALIKE_REPEATS", "3"))
        take(limits, Job(net, {"name": "resnet-tiny"}, spread_cuts(len(net), 3), 32, repeats=repeats))


if __name__ == "__main__":
    main()
