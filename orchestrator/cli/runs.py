"""`edgebed runs`: lists runs, selected by pattern, method, experiment or state, and sorted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from orchestrator.cli.arguments import Json, SomeRuns
from orchestrator.cli.console import columns, console, log, print_json, print_whole
from orchestrator.dashboard.run_list import make_card
from orchestrator.records.recorder import is_being_written
from orchestrator.records.types import Ending
from orchestrator.records.words.formatting import accuracy, known, seconds, setting_texts
from orchestrator.runs.find import is_pattern, runs_folder

Status = Literal["running", "finished", "interrupted", "failed", "killed"]
Key = Literal["id", "experiment", "method", "rounds", "accuracy", "time", "backend", "started", "status"]


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Seconds are divided by the dilation. `setting`: its values of what its experiment sweeps; `ended`: what
    the records say about the end."""

    id: str
    experiment: str
    method: str
    setting: dict[str, Any]
    seed: int
    rounds: int
    accuracy: float | None
    time_to_target_s: float | None
    backend: str
    started: str
    status: Status
    ended: str


def command(
    runs: SomeRuns = None,
    method: Annotated[str, typer.Option(help="Only runs of this method; a pattern.")] = "*",
    experiment: Annotated[str, typer.Option(help="Only runs of this experiment; a pattern.")] = "*",
    status: Annotated[Status | None, typer.Option(help="Only runs in this state.")] = None,
    sort: Annotated[Key, typer.Option(help="Sort by this column.")] = "started",
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    as_json: Json = False,
) -> None:
    """List the runs under EDGEBED_RUNS (./runs), the newest last."""
    folder = runs_folder()
    with log.status("reading runs"):
        rows = [row for path in sorted(folder.glob("*/records.jsonl")) if (row := read_row(path)) is not None]
    found = arranged(chosen(rows, runs or [], method, experiment, status), sort, reverse=reverse)
    if as_json:
        print_json(msgspec.to_builtins(found))
    elif found:
        print_whole(_table(found))
    else:
        console.print(f"None of {len(rows)} runs under {folder} matches." if rows else f"No runs under {folder} yet.")


_FROM_CARD = ("experiment", "method", "setting", "seed", "rounds", "accuracy", "time_to_target_s", "backend", "started")


def read_row(records: Path) -> ListedRun | None:
    """Read the beginning and end of the records, and the summary if it is up to date. None if this is not a run."""
    try:
        card = make_card(records)
        if card is None:
            return None
        return ListedRun(
            id=records.parent.name,
            **{key: card[key] for key in _FROM_CARD},
            status=status_of(card["ending"], writing=is_being_written(records)),
            ended=card["ended"],
        )
    except OSError:
        return None  # deleted meanwhile, or not readable by this user


def status_of(ending: Ending | None, *, writing: bool) -> Status:
    """The state of a run. `ending`: what the last record says, None if there is no end; `writing`: an orchestrator
    still writes."""
    if writing and ending != "finished":
        return "running"
    return ending or "killed"


def chosen(
    rows: Iterable[ListedRun], patterns: Sequence[str], method: str, experiment: str, status: Status | None
) -> list[ListedRun]:
    """Rows that match all filters, and a pattern if there are any. Of a path its last part counts."""
    names = [Path(each).name for each in patterns]
    wanted = [each if is_pattern(each) else f"{each}*" for each in names] or ["*"]
    return [
        row
        for row in rows
        if any(fnmatchcase(row.id, each) for each in wanted)
        and fnmatchcase(row.method, method)
        and fnmatchcase(row.experiment, experiment)
        and status in (None, row.status)
    ]


def arranged(rows: Iterable[ListedRun], key: Key, *, reverse: bool) -> list[ListedRun]:
    """Rows sorted by a column. Rows without a value come last in both directions."""
    field = "time_to_target_s" if key == "time" else key

    def value(row: ListedRun) -> Any:
        return getattr(row, field)

    known = sorted((row for row in rows if value(row) is not None), key=lambda row: row.started)
    return [*sorted(known, key=value, reverse=reverse), *(row for row in rows if value(row) is None)]


def _table(rows: Sequence[ListedRun]) -> Table:
    heads = (
        "id",
        "experiment",
        "method",
        ">seed",
        ">rounds",
        ">accuracy",
        ">time to target",
        "backend",
        "started",
        "status",
    )
    table = Table(*columns(*heads), box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        reached = known(row.accuracy, accuracy)
        time = known(row.time_to_target_s, seconds)
        method = ", ".join((row.method, *setting_texts(row.setting)))
        cells = (row.id, row.experiment, method, str(row.seed), str(row.rounds), reached, time, row.backend)
        table.add_row(*map(escape, (*cells, row.started[:16].replace("T", " "), row.status)))
    return table
