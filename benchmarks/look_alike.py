"""Profiles fitted to two artificial boards: how far from the boards' limits they are, how unlike the boards devices
under them are, and how many times as long a round takes on these look-alikes.

The boards are processes of this host under quotas, behind shaped links, so what a profile must find is known. A profile
is fitted to each as `edgebed boards measure` does it; then `edgebed run` runs DTFL and FedAvg on the boards and on
devices under the profiles, and `edgebed compare` puts the runs side by side. Take it with the machine to yourself; it
takes twelve minutes. LOOK_ALIKE_SHORT=1 measures each board for a minute only. LOOK_ALIKE_FOLDER keeps profiles and
runs, and does not make again what is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks._figures import figure, kept_folder, no_fleets
from edgebed.limits.spec import Limits
from edgebed.models.staged import MODELS, seeded
from edgebed.wire.settings import LearningTask
from orchestrator.files.yaml_file import write_yaml
from orchestrator.fleet.spec.profile import BOARD, DeviceSpec, FleetSpec
from orchestrator.look_alike.bench import Job
from orchestrator.look_alike.figures import profile_values
from orchestrator.look_alike.measure import measure, spread_cuts
from tests.artificial_board import artificial_boards

BOARDS = {"pi-a": Limits(0.2, 10_000_000, 20_000_000, 2048), "pi-b": Limits(0.4, 30_000_000, 90_000_000, 2048)}
MOST, MOST_LIMIT = 0.10, 0.05
ROUNDS = 6
METHODS = ("dtfl", "fedavg")
DEVICES = {
    "boards": [{"board": name} for name in BOARDS],
    "look-alikes": [{"profile": f"{name}.yaml", "name": f"like-{name}"} for name in BOARDS],
}
EXPERIMENT = {
    "model": {"name": "resnet-tiny"},
    "methods": [{"name": name} for name in METHODS],
    "dilation": "off",
    "training": {"rounds": ROUNDS, "stop_at_target": False, "heartbeat_s": 1.0},
}


def job() -> Job:
    net = seeded(lambda: MODELS.create({"name": "resnet-tiny"}, "benchmark").build(LearningTask((1, 8, 8), 10)), 0)
    whole = Job(net, {"name": "resnet-tiny"}, spread_cuts(len(net), 3), 32)
    return msgspec.structs.replace(whole, steps_s=2.0, repeats=1) if os.environ.get("LOOK_ALIKE_SHORT") else whole


def fit(folder: Path, name: str) -> None:
    """Write the profile of a board."""
    spec = FleetSpec(name, "local", 0.0, (DeviceSpec(name, BOARD, name),), folder / "fleet.yaml")
    outcome = asyncio.run(measure(spec, name, job(), "local", lambda line: None))
    found, limits = outcome.profile.limits, BOARDS[name]
    for what, value, wanted in (
        ("CPUs", found.cpus, limits.cpus),
        ("uplink", found.uplink_bit_s, limits.uplink_bit_s),
        ("downlink", found.downlink_bit_s, limits.downlink_bit_s),
    ):
        figure(f"{name}: {what} of the profile, off by", abs(value / wanted - 1), most=MOST_LIMIT, note=f"{value:g}")
    for row in outcome.rows:
        if row.error is not None:
            values = f"{row.board:.4g} and {row.look_alike:.4g} {row.unit}"
            most = MOST if row.name.startswith(("step", "up", "down")) else None
            figure(f"{name}: {row.name}, look-alike off by", abs(row.error), most=most, note=values)
    (folder / f"{name}.yaml").write_bytes(write_yaml(profile_values(outcome.profile)))


def run(folder: Path, kind: str) -> None:
    """The methods on one of DEVICES."""
    fleet = {"name": kind, "backend": "local", "devices": DEVICES[kind]}
    (folder / f"fleet-{kind}.yaml").write_text(json.dumps(fleet))
    path = folder / f"{kind}.yaml"
    path.write_text(json.dumps({"name": kind, "fleet": f"fleet-{kind}.yaml", **EXPERIMENT}))
    edgebed("run", str(path))


def edgebed(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "orchestrator", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"edgebed {' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    if no_fleets():
        return
    with kept_folder("LOOK_ALIKE_FOLDER") as folder, tempfile.TemporaryDirectory() as state:
        before = dict(os.environ)
        os.environ.update(XDG_STATE_HOME=state, EDGEBED_RUNS=str(folder / "runs"))
        try:
            with artificial_boards(Path(state), BOARDS):
                for name in BOARDS:
                    if not (folder / f"{name}.yaml").exists():
                        fit(folder, name)
                if not _runs(folder, "boards"):
                    run(folder, "boards")
            if not _runs(folder, "look-alikes"):
                run(folder, "look-alikes")
            tell([*_runs(folder, "boards"), *_runs(folder, "look-alikes")])
        finally:
            os.environ.clear()
            os.environ.update(before)


def tell(runs: list[str]) -> None:
    compared = json.loads(edgebed("compare", *runs, "--json"))
    took = {(row["method"], row["run"].startswith("boards-")): row["round_s_median"] for row in compared["rows"]}
    for method in METHODS:
        like, real = took[method, False], took[method, True]
        values = f"{like:.3g} and {real:.3g} s"
        figure(f"{method}: a round on look-alikes ÷ on boards, off by", abs(like / real - 1), most=MOST, note=values)
    for note in compared["notes"]:
        print(f"  compare: {note}")


def _runs(folder: Path, kind: str) -> list[str]:
    return sorted(str(path.parent) for path in folder.glob(f"runs/{kind}-*/summary.json"))
