"""The files of the papers' tables: every one makes experiments, and mistakes in one are named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from edgebed.errors import UsageError
from edgebed.methods.base import METHODS, Context
from edgebed.models.staged import MODELS
from edgebed.wire.settings import Augment, LearningTask
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.papers.cells import settings_of
from orchestrator.papers.compute import refuse_measured, with_deadline
from orchestrator.papers.learnings import key_of
from orchestrator.papers.tables import SCALES, Job, ScaleName, jobs, load_reproduction, merged
from orchestrator.testing.rounds import SCHEDULE, view

TABLES = sorted((Path(__file__).parents[2] / "profiles" / "experiments" / "papers").glob("*.yaml"))

SMALL = """
title: t
source: s
quantities: [time_to_target_s]
baseline: a
experiment: {name: x, fleet: f.yaml, methods: [{name: fedavg}], training: {rounds: 9}}
rows: {a: {}, b: {training: {epochs: 2}}}
columns:
  easy: {target: 0.5}
  hard: {target: 0.7}
  other: {set: {data: {name: mnist}}, target: 0.5}
figures: {time_to_target_s: {a: [1, 2, 3], b: [4, null, 6]}}
scale: {about: small, set: {training: {rounds: 3}}, seeds: [1, 2]}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "table.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("scale", SCALES)
def test_every_table_makes_experiments_of_things_that_exist(path: Path, scale: ScaleName) -> None:
    table = load_reproduction(path)
    assert table.figures or table.kind == "runs"
    if not table.rows or table.at(scale) is None:
        return
    found = jobs(table, path, scale)
    assert {job.row for job in found} >= {table.baseline}
    for job in found:
        assert load_fleet((path.parent / job.experiment.fleet).resolve()).devices
        MODELS.create(job.experiment.model)
        for method in job.experiment.methods:
            METHODS.create(method)
        if table.kind == "runs":
            refuse_measured(job.experiment, path)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_real_data_is_named_as_it_is(path: Path) -> None:
    """CIFAR-10 as JPEG is not CIFAR-10, and no path of one machine stands in a table."""
    table = load_reproduction(path)
    for job in jobs(table, path, "real") if table.real else ():
        data = job.experiment.data
        assert data["name"] == "mnist" or (data["title"], data["path"]) == ("CIFAR-10 (JPEG)", "cifar10-jpeg.npz")
        assert ("CIFAR-10 (JPEG)" in table.real.about if table.real else False) == (data["name"] != "mnist")


@pytest.mark.parametrize("path", [path for path in TABLES if "dtfl" in path.stem], ids=lambda path: path.stem)
def test_dtfl_s_tables_have_one_server_and_one_optimizer_at_every_scale(path: Path) -> None:
    """As their authors' code has it: weight decay and amsgrad at every scale, augmentation where the data allow it."""
    table = load_reproduction(path)
    small, full = (jobs(table, path, scale) if table.rows else [] for scale in ("digits", "full"))
    for job in (*small, *full):
        like = next(each for each in full if each.row == job.row)
        assert costs_of(job) == costs_of(like)
        assert (job.experiment.training.optimizer.weight_decay, job.experiment.training.optimizer.amsgrad) == (
            5e-4,
            True,
        )
        assert (job.experiment.simulation.as_if is None) == (job in full)
    assert all(job.experiment.training.augment == Augment(crop=4, flip=True, cutout=16) for job in full)
    assert all(job.experiment.training.augment == Augment() for job in small), "the digits are no photographs"


def costs_of(job: Job) -> tuple[object, ...]:
    """What an experiment says of the speed of devices and server."""
    wanted = job.experiment.simulation
    return wanted.cost, wanted.device_flops, wanted.server_flops, wanted.server_slots, wanted.server_time


FIGURE_2 = {
    "fedpmt-feddrop": 4,
    "fedpmt-feddrop-fcnn-i2": 2,
    "fedpmt-feddrop-cnn-mnist": 4,
    "fedpmt-feddrop-cnn-mnist-i2": 2,
    "fedpmt-feddrop-cnn-cifar10": 5,
    "fedpmt-feddrop-cnn-cifar10-i2": 2,
}
"""FedPMT's figure 2 by file: |I|, which is the number of compute levels (§V-B)."""


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", FIGURE_2)
def test_every_round_of_fedpmt_s_figure_2_has_each_width_equally_often(name: str, scale: ScaleName) -> None:
    """8 devices of MNIST, 10 of CIFAR-10, on as many compute levels as there are widths."""
    path = next(each for each in TABLES if each.stem == name)
    job = next(each for each in jobs(load_reproduction(path), path, scale) if each.row == "fedpmt")
    experiment = job.experiment
    method = METHODS.create(experiment.methods[0])
    model = MODELS.create(experiment.model).build(LearningTask((3, 32, 32) if "cifar" in name else (1, 28, 28), 10))
    method.setup(Context(experiment.model, model, {}, server_slots=1))
    devices = load_fleet((path.parent / experiment.fleet).resolve()).devices
    views = [view(each.name, 300, each.profile.limits.cpus) for each in devices]
    drawn = method.draw(0, views, experiment.training.sample, 1)
    if scale != "digits":
        assert (len(views), len(drawn)) == (100, 10 if "cifar" in name else 8)
    plan = method.plan(0, drawn, SCHEDULE)
    counts = Counter(each.train_from for each in plan.assignments.values())
    assert counts == dict.fromkeys(range(FIGURE_2[name]), len(drawn) // FIGURE_2[name])


def test_columns_that_differ_in_their_target_alone_share_a_run(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    found = jobs(load_reproduction(path), path, "digits")
    assert [(job.row, job.columns, job.seed) for job in found] == [
        (row, columns, seed) for seed in (1, 2) for row in "ab" for columns in (("easy", "hard"), ("other",))
    ]
    assert [job.experiment.training.target_accuracy for job in found[:2]] == [0.7, 0.5]
    assert found[2].experiment.training.epochs == 2
    assert found[0].experiment.training.rounds == 3
    assert jobs(load_reproduction(path), path, "full")[0].experiment.training.rounds == 9


def test_a_named_thing_replaces_another_whole() -> None:
    assert merged(
        {"data": {"name": "a", "path": "p"}, "x": {"y": 1, "z": 2}}, {"data": {"name": "b"}, "x": {"y": 3}}
    ) == {
        "data": {"name": "b"},
        "x": {"y": 3, "z": 2},
    }


@pytest.mark.parametrize(
    ("find", "put", "names"),
    [
        ("baseline: a", "baseline: c", "the baseline 'c'"),
        ("b: [4, null, 6]", "b: [4]", "figures.time_to_target_s.b"),
        ("seeds: [1, 2]", "rows: [z]", "scale.rows: 'z'"),
        ("title: t", "titel: t", "no key 'titel' here; did you mean 'title'"),
    ],
)
def test_a_mistake_in_a_table_is_named(tmp_path: Path, find: str, put: str, names: str) -> None:
    with pytest.raises(UsageError, match=names.replace("`", ".")):
        load_reproduction(write(tmp_path, SMALL.replace(find, put)))


def test_a_deadline_is_that_of_another_row(tmp_path: Path) -> None:
    """FedPMT's table III: rows with a deadline are given the rounds without one that it is measured in."""
    text = SMALL.replace("hard: {target: 0.7}", "hard: {target: 0.7, deadline_of: b}")
    path = write(tmp_path, text)
    found = {(job.row, job.columns): job for job in jobs(load_reproduction(path), path, "digits", [4])}
    assert found["a", ("easy",)].probe is None
    probe = found["a", ("hard",)].probe
    assert probe is not None
    assert (probe.training.rounds, probe.training.epochs, probe.training.seed) == (3, 2, 4)
    assert probe.training.deadline_s is None
    assert with_deadline(found["a", ("hard",)].experiment, 26.4).training.deadline_s == 26.5
    with pytest.raises(UsageError, match="deadline_of: 'z'"):
        load_reproduction(write(tmp_path, text.replace("deadline_of: b", "deadline_of: z")))


def test_both_cases_of_dtfl_s_table_1_learn_each_tier_once() -> None:
    keys: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
    for name in ("dtfl-table1", "dtfl-table1-eq5"):
        (path,) = (each for each in TABLES if each.stem == name)
        for job in jobs(load_reproduction(path), path, "real", [1]):
            keys.setdefault(key_of(settings_of(job, path)), []).append((name, job.row, job.columns))
    assert {len(same) for same in keys.values()} == {4}
    assert len(keys) == 7
