"""A table of a paper as a file: the paper's experiment, what its rows and columns change, its printed figures, and
smaller scales that fit a small machine.

    rows and columns     label -> what they set in the experiment. Mappings are merged, other values are replaced;
                         `options` are added to those of the method, so a row and a column can both set options.
    columns.*.target     the accuracy to reach; columns that differ only in the target share their runs
    columns.*.deadline_of   a row: its slowest device in rounds without a deadline sets `training.deadline_s`
    figures              quantity -> row -> the paper's figure for each column, null if it prints none
    scale, real          the scales `digits` and `real`: `set` makes the experiment smaller; `rows` and `columns` name
                         what runs at that scale. The scale `full` is the file without them.
    expects              what the paper claims: words, or words with a rule (`Claim`) that gives a verdict
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from edgebed.errors import UsageError
from orchestrator.experiment import Experiment, Share
from orchestrator.files.plugged import take_in
from orchestrator.files.yaml_file import convert, load_yaml

Figures = dict[str, list[float | None]]
Settings = dict[str, Any]
ScaleName = Literal["digits", "real", "full"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)

PROBE_ROUNDS = 3
"""Number of rounds without a deadline in which a `deadline_of` is measured."""


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    set: Settings = {}
    target: Share | None = None
    deadline_of: str = ""


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes that make the table fit a machine. The text says what is the same as in the paper and what not."""

    about: str
    set: Settings = {}
    rows: list[str] = []  # empty: all
    columns: dict[str, Column] = {}  # by label of the paper's column; empty: all, unchanged
    seeds: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (1, 2, 3)


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the paper claims of `quantity`: in each of the columns (default: all), each of the rows ÷ the row `than`
    (default: the baseline) lies above `above` and below `below`."""

    text: str
    quantity: str
    rows: Annotated[list[str], msgspec.Meta(min_length=1)]
    than: str = ""
    columns: list[str] = []
    above: float = 0.0
    below: float = math.inf


class Reproduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    title: str
    source: str
    kind: str = "runs"  # runs | tiers | operations | eq1 | gradient-variance
    quantities: list[str] = []
    baseline: str = ""  # the row that ratios are relative to
    experiment: Settings = {}
    rows: dict[str, Settings] = {}
    columns: dict[str, Column] = {}
    figures: dict[str, Figures] = {}
    seeds: tuple[int, ...] = (1, 2, 3)
    scale: Scale
    real: Scale | None = None
    expects: list[str | Claim] = []

    def at(self, scale: ScaleName) -> Scale | None:
        """What changes at this scale; None: the table has no such scale."""
        match scale:
            case "digits":
                return self.scale
            case "real":
                return self.real
            case "full":
                return Scale(about="The paper's own.", seeds=self.seeds)


class Job(msgspec.Struct, frozen=True):
    """One run for the table, used by the columns `columns`. If these have a `deadline_of`, `probe` is an experiment
    with a few rounds of that row without a deadline; its longest round is the deadline of this run. `trained`: else it
    gives values without a run."""

    row: str
    columns: tuple[str, ...]
    seed: int
    experiment: Experiment
    probe: Experiment | None = None
    trained: bool = True


def load_reproduction(path: Path) -> Reproduction:
    """Read a table's file. Raises UsageError: as `experiment.load`; also for an unknown baseline, scaled row or column,
    missing figures, or labels that give one name of a file."""
    table = convert(load_yaml(path), Reproduction, path)
    wrong = [f"the baseline {table.baseline!r}"] if table.rows and table.baseline not in table.rows else []
    for key, scale in {"scale": table.scale, **({"real": table.real} if table.real else {})}.items():
        wrong += [f"{key}.rows: {row!r}" for row in scale.rows if row not in table.rows]
        wrong += [f"{key}.columns: {column!r}" for column in scale.columns if column not in table.columns]
        named = [*table.columns.values(), *scale.columns.values()]
        wrong += [f"deadline_of: {c.deadline_of!r}" for c in named if c.deadline_of not in ("", *table.rows)]
    for claim in claims_of(table):
        wrong += [f"expects: {row!r}" for row in claim.rows if row not in table.rows]
        wrong += [f"expects: {label!r}" for label in claim.columns if label not in table.columns]
        wrong += [f"expects: {name!r}" for name in [claim.quantity] if name not in table.quantities]
    for quantity, figures in table.figures.items():
        for row, values in figures.items():
            if table.rows and (row not in table.rows or len(values) != len(table.columns)):
                wrong.append(f"figures.{quantity}.{row}")
    if wrong:
        raise UsageError(
            f"{path}: no such row or column, or not one figure per column: {'; '.join(wrong)}",
            hint=f"rows are {', '.join(table.rows)}; columns are {', '.join(table.columns)}",
        )
    for labels in (table.rows, table.columns):
        names = Counter(map(slug, labels))
        if alike := [label for label in labels if names[slug(label)] > 1]:
            raise UsageError(
                f"{path}: the files of {', '.join(alike)} would have one name",
                hint="give them labels that differ in a letter from a to z or a digit",
            )
    return table


def claims_of(table: Reproduction) -> list[Claim]:
    """The claims that have a rule."""
    return [claim for claim in table.expects if isinstance(claim, Claim)]


def scaled(table: Reproduction, scale: ScaleName) -> Scale:
    """The scale with the settings of all its columns. Raises UsageError where the table lacks it."""
    found = table.at(scale)
    if found is None:
        raise UsageError(f"{table.title} has no scale {scale!r}", hint="choose digits or full")
    columns = {
        label: Column(
            set=merged(table.columns[label].set, column.set),
            target=column.target,
            deadline_of=column.deadline_of or table.columns[label].deadline_of,
        )
        for label, column in (found.columns or table.columns).items()
    }
    return msgspec.structs.replace(found, rows=found.rows or list(table.rows), columns=columns)


def jobs(table: Reproduction, path: Path, scale: ScaleName, seeds: Sequence[int] | None = None) -> list[Job]:
    """The runs of a table at a scale. Columns with the same settings share one run with the highest of their targets.
    Raises UsageError: the settings of a row or column do not give a valid experiment."""
    at = scaled(table, scale)
    common = merged(table.experiment, at.set)
    found: dict[tuple[str, int, str, str], tuple[list[str], Settings, Settings, float]] = {}
    for seed in dict.fromkeys(seeds or at.seeds):
        for row in at.rows:
            for label, column in at.columns.items():
                last = merged(column.set, {"training": {"seed": seed}})
                settings, of = merged(common, table.rows[row], last), column.deadline_of
                key = (row, seed, json.dumps(settings, sort_keys=True), of)
                probed = merged(common, table.rows[of], last, {"training": {"rounds": PROBE_ROUNDS}}) if of else {}
                labels, _, _, target = found.get(key, ([], settings, probed, 0.0))
                found[key] = ([*labels, label], settings, probed, max(target, column.target or 0.0))
    trained = table.kind == "runs"
    return [
        Job(
            row,
            tuple(labels),
            seed,
            _experiment(settings, target, path),
            _experiment(probed, 0, path) if of else None,
            trained,
        )
        for (row, seed, _, of), (labels, settings, probed, target) in found.items()
    ]


def slug(text: str) -> str:
    """As a file's name."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip(".-")


def merged(*layers: Mapping[str, Any]) -> Settings:
    """Mappings merged from left to right. A mapping with a `name` (a model, a data set) replaces the earlier one."""
    result: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            before = result.get(key)
            if isinstance(value, Mapping) and isinstance(before, Mapping) and "name" not in value:
                result[key] = merged(before, value)
            else:
                result[key] = copy.deepcopy(value)
    return result


def _experiment(settings: Settings, target: float, path: Path) -> Experiment:
    wanted = {"training": {"target_accuracy": target}} if target else {}
    settings = merged({"training": {"max_update_norm": None}}, settings, wanted)  # no paper refuses updates
    options = settings.pop("options", {})
    settings["methods"] = [{**method, **options} for method in settings.get("methods", [])]
    experiment = convert(settings, Experiment, path)
    take_in(experiment.plugins, near=path.parent)
    return experiment
