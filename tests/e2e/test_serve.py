"""`edgebed serve` on a real local fleet: nothing is quicker than its links; a dead node is named; what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgebed.errors import UsageError
from edgebed.limits.throttle import burst_bytes
from edgebed.models.staged import MODELS, seeded
from edgebed.wire.settings import LearningTask
from orchestrator.experiment import load
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.host_records import Served
from orchestrator.records.reader import read
from orchestrator.rounds.progress import Progress
from orchestrator.runs import session
from orchestrator.runs.folder import RunFolder, resolved
from orchestrator.serving import deploy
from orchestrator.serving.service import ServeRequest, serve_on
from tests.component._faults import pid_of
from tests.e2e.cli import cli

pytestmark = pytest.mark.root

UP_MBIT_S, DOWN_MBIT_S = 4, 8
PROFILE = f"cpus: 0.4\nuplink_mbit_s: {UP_MBIT_S}\ndownlink_mbit_s: {DOWN_MBIT_S}\nmemory_mib: 1024\n"
FLEET = """
name: tree
devices:
  - {{profile: {folder}/node.yaml, count: 2, name: leaf}}
  - {{profile: {folder}/node.yaml, name: cloud}}
"""
EXPERIMENT = """
name: exits
fleet: {folder}/fleet.yaml
model: {{name: resnet-tiny, widths: [64, 8, 8]}}
methods:
  - {{name: early-exit, layers: [2, 1], exits: [1], rates: [50, 50]}}
training: {{rounds: 1, heartbeat_s: 0.5, liveness_s: 10}}
"""


def trained_run(folder: Path) -> Path:
    """A run folder as a run leaves it, its weights untrained: serving does not mind."""
    (folder / "node.yaml").write_text(PROFILE)
    (folder / "fleet.yaml").write_text(FLEET.format(folder=folder))
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT.format(folder=folder))
    experiment = load(path)
    files = RunFolder(folder / "runs" / "trained")
    files.path.mkdir(parents=True)
    files.experiment.write_bytes(resolved(experiment, path, experiment.methods[0], 1.0))
    files.records.touch()
    model = seeded(lambda: MODELS.create(experiment.model).build(LearningTask((1, 8, 8), 10)), 0)
    nodes = {"nodes": ["leaf-1", "leaf-2", "cloud"]}
    files.save(model.weights(), Progress(round=1, method=nodes), {})
    return files.path


def least_ns(sizes: Sequence[tuple[int, int]]) -> float:
    """What transfers of so many bytes at so many Mbit/s take at least, after what a link lets pass at once."""
    return sum(8e3 * max(0, size - burst_bytes(rate * 10**6)) / rate for size, rate in sizes)


@pytest.mark.alone
def test_the_command_serves_and_no_forwarded_request_is_quicker_than_its_links(tmp_path: Path) -> None:
    trained_run(tmp_path)
    with cli(tmp_path, "serve", "trained", "--backend", "local", "--requests", "60", "--rate", "8", "--json") as run:
        code, out, err = run.wait()
        assert code == 0, err
        summary: dict[str, Any] = json.loads(out)
        (folder,) = tmp_path.glob("runs/exits-serve-*")
    served = [record for record in read(folder / "records.jsonl") if isinstance(record, Served)]
    assert (summary["answered"], summary["lost"], len(served)) == (60, 0, 60)
    forwarded = [record for record in served if len(record.hops) == 2]
    assert 10 < len(forwarded) < 50, "half of the requests, or so"
    for record in forwarded:
        leaf, cloud = record.hops
        least = least_ns([(leaf.up_bytes, UP_MBIT_S), (cloud.down_bytes, DOWN_MBIT_S)])
        assert least > 40e6, "16 KB at 4 and 8 Mbit/s"
        assert cloud.queued_ns - leaf.done_ns >= 0.99 * least_ns([(leaf.up_bytes, UP_MBIT_S)])
        assert cloud.done_ns - leaf.queued_ns >= 0.99 * least
    assert summary["accuracy"] == summary["expected_accuracy"], "float32 features lose nothing"
    assert [each["share"] for each in summary["exits"]] == [each["share_expected"] for each in summary["exits"]]
    assert summary["exits"][1]["latency_s_p50"] > summary["exits"][0]["latency_s_p50"]
    assert summary["calibrated"]
    assert {"serving.json", "summary.json", "report.html", "trace.json"} <= {path.name for path in folder.iterdir()}


async def test_a_node_that_is_killed_is_named_with_its_requests(tmp_path: Path) -> None:
    run = trained_run(tmp_path)
    trained = deploy.load_trained(run)
    request = ServeRequest(run=run, runs=run.parent, requests=60, rate=5.0)
    (tmp_path / "shards").mkdir()
    opening = session.standing_fleet(
        load_fleet(tmp_path / "fleet.yaml"),
        backend="local",
        shards=deploy.write_requests(trained, tmp_path / "shards"),
        heartbeat_s=0.5,
    )
    async with opening as controller, asyncio.timeout(60):

        def watch(answered: int, lost: int) -> None:
            if answered == 10 and not lost:
                os.kill(pid_of(controller, "cloud"), signal.SIGKILL)

        folder, summary = await serve_on(request, trained, controller, True, watch)
    assert summary["lost"] > 0
    assert summary["answered"] + summary["lost"] == 60
    assert list(summary["lost_at"]) == ["cloud"]
    assert summary["ended"] == f"{summary['lost']} requests lost"
    assert (folder / "serving.json").is_file()


def test_a_run_without_exits_is_refused_before_a_fleet_starts(tmp_path: Path) -> None:
    run = trained_run(tmp_path)
    text = (run / "experiment.yaml").read_text()
    (run / "checkpoint.safetensors").unlink()
    with pytest.raises(UsageError, match="no finished round"):
        deploy.load_trained(run)
    start = text.index("methods:")
    (run / "experiment.yaml").write_text(text[:start] + "methods: [{name: fedavg}]\n" + text[text.index("training:") :])
    with pytest.raises(UsageError, match="trained no exits"):
        deploy.load_trained(run)
