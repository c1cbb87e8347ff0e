"""A simulation that kills its own process, with settings from a JSON file."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgebed.methods.base import CutCost
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment
from orchestrator.experiment import Experiment
from orchestrator.records.recorder import Recorder
from orchestrator.references.work_laws import BatchLaw, WorkLaws
from orchestrator.runs import platform, session
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.resume import resume_request
from orchestrator.simulation import context
from orchestrator.simulation.run import SimulationRequest, resumed, simulate


def after(calls: int, real: Callable[..., Any], *, do: bool) -> Callable[..., Any]:
    """`real`, whose call number `calls` (from 1) kills this process: after it is done, or before."""
    left = [calls]

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        found = real(*args, **kwargs) if left[0] or do else None
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return call


def copying(copies: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    """`RunFolder.save`, after which the folder is as a kill at that moment leaves it: in a folder of its own."""

    def save(folder: RunFolder, *args: Any) -> None:
        real(folder, *args)
        shutil.copytree(folder.path, copies / f"{len(list(copies.glob('*'))):03d}" / folder.path.name)

    return save


def measure_as(speed: float) -> None:
    """What is measured is so many times slower: a later session that measured again would show it."""

    def profile(model: StagedModel, cuts: Sequence[int], *_: object, **__: object) -> dict[int, CutCost]:
        return {cut: CutCost(cut, 1000, 1000 * cut, 0.01 * cut * speed, 0.01 * speed) for cut in cuts}

    class Timed(WorkLaws):
        def _measure_device(self, assignment: Assignment) -> BatchLaw:
            return BatchLaw(0.0, 0.001 * assignment.stages * speed, 0.5)

        _measure_server = _measure_device

    platform.profile_cuts = profile  # type: ignore[assignment]
    context.WorkLaws = Timed  # type: ignore[attr-defined]


def main(file: Path) -> None:
    job: dict[str, Any] = json.loads(file.read_text())
    if job.get("records"):
        Recorder._append = after(job["records"], Recorder._append, do=True)  # type: ignore[method-assign]  # noqa: SLF001
    if job.get("checkpoints"):
        RunFolder.save = after(job["checkpoints"], RunFolder.save, do=False)  # type: ignore[method-assign]
    if job.get("copies"):
        RunFolder.save = copying(Path(job["copies"]), RunFolder.save)  # type: ignore[method-assign]
    measure_as(1.0 if job["first"] else 3.0)
    watch = session.Watch(session.quiet)
    runs, path = Path(job["runs"]), Path(job["path"])
    begun = sorted(runs.glob("*/records.jsonl"))
    if begun:
        simulate(resumed(resume_request(begun[0].parent)), watch)
        return
    experiment = msgspec.convert(job["experiment"], Experiment)
    simulate(SimulationRequest(experiment, path, runs, checkpoint_s=job.get("checkpoint_s")), watch)
