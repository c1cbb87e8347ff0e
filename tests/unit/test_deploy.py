"""What a run is deployed with: thresholds from the validation part, requests from the test set."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgebed.methods.parts.exits import confidence, exit_logits, thresholds
from edgebed.models.staged import MODELS, seeded
from edgebed.plugin_code import read_plugins
from edgebed.wire.settings import LearningTask
from orchestrator.experiment import load
from orchestrator.files.plugged import codes_of
from orchestrator.rounds.progress import Progress
from orchestrator.runs import session
from orchestrator.runs.data import validation_of
from orchestrator.runs.folder import RunFolder, resolved
from orchestrator.serving import deploy
from orchestrator.serving.service import ServeRequest, serve
from tests.strangers import alone, forget_all

__all__ = ["alone"]

EXPERIMENT = """
name: exits
fleet: {folder}/fleet.yaml
data: {{name: digits, validation: {validation}}}
model: {{name: resnet-tiny, widths: [4, 4, 4]}}
methods:
  - {{name: early-exit, layers: [2, 1], exits: [1], rates: [50, 50]}}
"""
FLEET = "name: tree\ndevices: [{profile: cpu1, count: 2, name: leaf}, {profile: cpu2, name: cloud}]\n"


PLUGIN = """
from edgebed.datasets.digits import Digits
from edgebed.methods.early_exit import EarlyExit


class OwnDigits(Digits):
    name = "own-digits"


class OwnExits(EarlyExit):
    name = "own-exits"
"""


def trained_run(folder: Path, validation: float, changes: dict[str, str] | None = None) -> Path:
    """A run folder as a run leaves it, its weights untrained. `changes`: of the experiment's text."""
    (folder / "fleet.yaml").write_text(FLEET)
    path, text = folder / "experiment.yaml", EXPERIMENT.format(folder=folder, validation=validation)
    for before, after in (changes or {}).items():
        text = text.replace(before, after)
    path.write_text(text)
    experiment = load(path)
    files = RunFolder(folder / "runs" / "trained")
    files.make(resolved(experiment, path, experiment.methods[0], 1.0), plugins=codes_of(experiment.plugins))
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


async def test_a_run_with_plug_ins_is_served_with_its_own_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_exits.py").write_text(PLUGIN)
    own = {"early-exit": "own-exits", "name: digits": "name: own-digits", "model:": "plugins: [own_exits.py]\nmodel:"}
    run = trained_run(tmp_path, 0.1, own)
    kept = {code.name: code.sha256 for code in read_plugins(run / "plugins")}
    (tmp_path / "own_exits.py").write_text("raise SystemError('the edited file is run')")
    forget_all()
    trained = deploy.load_trained(run)
    assert (trained.experiment.data["name"], trained.deployment.cuts[-1]) == ("own-digits", len(trained.model))
    given: list[dict[str, str]] = []

    class Started(Exception):
        pass

    def started(spec: object, *, plugins: Path, **options: object) -> None:
        given.append({code.name: code.sha256 for code in read_plugins(plugins)})
        raise Started

    monkeypatch.setattr(session, "standing_fleet", started)
    with pytest.raises(Started):
        await serve(ServeRequest(run=run, runs=tmp_path / "runs", requests=4), lambda line: None)
    assert given == [kept]
    assert set(kept) == {"own_exits"}
