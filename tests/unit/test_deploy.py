"""What a run is deployed with: thresholds from the validation part, requests from the test set."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgebed.methods.parts.exits import confidence, exit_logits, thresholds
from edgebed.models.staged import MODELS, seeded
from edgebed.wire.settings import LearningTask
from orchestrator.experiment import load
from orchestrator.rounds.progress import Progress
from orchestrator.runs.data import validation_of
from orchestrator.runs.folder import RunFolder, resolved
from orchestrator.serving import deploy

EXPERIMENT = """
name: exits
fleet: {folder}/fleet.yaml
data: {{name: digits, validation: {validation}}}
model: {{name: resnet-tiny, widths: [4, 4, 4]}}
methods:
  - {{name: early-exit, layers: [2, 1], exits: [1], rates: [50, 50]}}
"""
FLEET = "name: tree\ndevices: [{profile: cpu1, count: 2, name: leaf}, {profile: cpu2, name: cloud}]\n"


def trained_run(folder: Path, validation: float) -> Path:
    """A run folder as a run leaves it, its weights untrained."""
    (folder / "fleet.yaml").write_text(FLEET)
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT.format(folder=folder, validation=validation))
    experiment = load(path)
    files = RunFolder(folder / "runs" / "trained")
    files.path.mkdir(parents=True)
    files.experiment.write_bytes(resolved(experiment, path, experiment.methods[0], 1.0))
    model = seeded(lambda: MODELS.create(experiment.model).build(LearningTask((1, 8, 8), 10)), 0)
    files.save(model.weights(), Progress(round=1, method={"nodes": ["leaf-1", "leaf-2", "cloud"]}), {})
    return files.path


@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_requests_are_of_the_whole_test_set_where_thresholds_come_from_a_validation_part(
    validation: float, tmp_path: Path
) -> None:
    trained = deploy.load_trained(trained_run(tmp_path, validation))
    tested = len(trained.data.test_y)
    held = validation_of(trained.data)
    if held is None:
        assert len(trained.pool) == tested - tested // 2
        return
    assert sorted(trained.pool.tolist()) == list(range(tested))
    sure = confidence(exit_logits(trained.model, trained.weights, trained.deployment.cuts, held[0], deploy.CPU))
    assert trained.thresholds == thresholds(sure, trained.deployment.shares)
