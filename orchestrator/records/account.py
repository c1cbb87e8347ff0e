"""The account of a run, from the records of its folder: its state with all records, its summary, the files of both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from edgebed.errors import UsageError
from orchestrator.files.output import replace
from orchestrator.records.crossing import time_to
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState
from orchestrator.records.live.settling import explained
from orchestrator.records.live.summing import summary_of
from orchestrator.records.reader import read
from orchestrator.records.summary import Summary
from orchestrator.records.types import Record


def whole(records: Iterable[Record]) -> RunState:
    """The state of a run with an index of all its records. Its rounds are explained as `explained` passes. Raises
    UsageError: the records do not say how the run began."""
    state = RunState(whole=True)
    reduce(state, ((0, record) for record in records))
    if not state.sessions:
        raise UsageError("there are no records", hint="the run ended before it began: see its output")
    return state


def summarise(records: Iterable[Record]) -> Summary:
    """The summary of a run from its records; linear in their number. Raises UsageError as `whole`."""
    return explained_summary(whole(records))


def explained_summary(state: RunState) -> Summary:
    """The summary of a state that has all records, and whose rounds are not explained yet."""
    for _ in explained(state):
        pass
    return summary_of(state)


def write_summary(folder: Path) -> Summary:
    """Write `summary.json` and `calibration.json` of a run from its records, and return the summary."""
    state = whole(read(folder / "records.jsonl"))
    summary = explained_summary(state)
    write_account(folder, state, summary)
    return summary


def write_account(folder: Path, state: RunState, summary: Summary) -> None:
    """The same files from what is at hand already."""
    _write(folder / "summary.json", summary.as_dict())
    _write(folder / "calibration.json", state.calibration)


def load_summary(folder: Path) -> Summary:
    """The summary of a run: the file, or from the records where those say more. Raises UsageError: there are no records
    either."""
    if (stored := stored_summary(folder)) is not None:
        return stored
    records = folder / "records.jsonl"
    if not records.is_file():
        raise UsageError(f"{folder} holds no run", hint="give the folder of a run: it holds records.jsonl")
    return summarise(read(records))


def stored_summary(folder: Path) -> Summary | None:
    """`summary.json`; None where there is none, where the records are newer (a run that goes on), or where it is torn
    or of a version that knew less: the records say the same."""
    records, file = folder / "records.jsonl", folder / "summary.json"
    try:
        if file.stat().st_mtime >= records.stat().st_mtime:
            found = Summary.of_dict(msgspec.json.decode(file.read_bytes(), type=dict[str, Any]))
            reached_s = time_to(((row.elapsed_s, row.accuracy) for row in found.rounds), found.target_accuracy)
            return msgspec.structs.replace(
                found, time_to_target_s=reached_s
            )  # earlier versions gave the end of that round
    except (OSError, LookupError, ValueError, RecursionError):
        pass
    return None


def _write(path: Path, value: Any) -> None:
    replace(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
