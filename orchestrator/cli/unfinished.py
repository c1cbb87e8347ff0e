"""Messages after an experiment that ended early: what exists of it, and the command that continues it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.cli.console import say
from orchestrator.experiment import Training
from orchestrator.records.words.formatting import accuracy, setting_texts
from orchestrator.runs.find import runs_folder
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.request import Request
from orchestrator.runs.resume import is_finished
from orchestrator.simulation.context import SimulationRequest


def tell_unfinished(request: Request | SimulationRequest, begun: Sequence[Path]) -> None:
    """Print the state of each method and how to continue. `begun`: folders of this command's runs, in order."""
    folders = {**request.begun, **request.finished, **{_place(folder): folder for folder in begun}}
    if not folders:
        say("No run had started: nothing was measured.")
        return
    say("\n".join(["What is kept:", *_lines(request, folders)]))
    going_on = begun[-1] if begun else next(iter(folders.values()))
    say(f"To continue: {resume_command(going_on)}")


def _place(folder: Path) -> int:
    series = RunFolder(folder).read_series()
    return 0 if series is None else series.place


def _lines(request: Request | SimulationRequest, folders: Mapping[int, Path]) -> list[str]:
    """One line per method, setting and seed, as plain text. The run comes last, so that no id is broken in a narrow
    terminal."""
    heads = ("method", "", "rounds", "accuracy", "run")
    rows = [heads]
    experiment = request.experiment
    wanted = [(*part, str(options.get("name"))) for part in experiment.parts for options in experiment.methods]
    for place, (setting, seed, method) in enumerate(wanted):
        training = experiment.part(setting, seed).training
        cells = _cells(training, folders[place]) if place in folders else ("not begun", "–", "–", "")
        whose = [method, *setting_texts(setting), *(() if experiment.seeds is None else (f"seed {seed}",))]
        rows.append((", ".join(whose), *cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(training: Training, folder: Path) -> tuple[str, str, str, str]:
    files = RunFolder(folder)
    progress, state = files.progress(), "finished" if is_finished(files, training) else "unfinished"
    reached = accuracy(progress.accuracy) if progress.round else "–"
    done, of = min(progress.round, training.rounds), f" of {training.rounds}" if training.budget_s is None else ""
    return state, f"{done}{of}", reached, folder.name


def resume_command(folder: Path) -> str:
    """The shell command that continues a run."""
    known = folder.resolve().parent == runs_folder().resolve()
    return f"edgebed run --resume {shlex.quote(folder.name if known else os.fspath(folder))}"
