"""Where runs are kept, and how a command line names one."""

from __future__ import annotations

import os
from pathlib import Path

from edgebed.errors import UsageError


def runs_folder() -> Path:
    """EDGEBED_RUNS, or ./runs."""
    return Path(os.environ.get("EDGEBED_RUNS", "runs"))


def find_run(name: str) -> Path:
    """The folder of a run, from its path, its id, or the beginning of one that no other run shares.

    Raises:
        UsageError: there is no such run, or several begin so.
    """
    for folder in (Path(name), runs_folder() / name):
        if (folder / "records.jsonl").is_file():
            return folder
    matches = sorted(path.parent for path in runs_folder().glob("*/records.jsonl") if path.parent.name.startswith(name))
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{len(matches)} runs begin with {name!r}", cure=f"give one of: {_names(matches)}")
    newest = sorted(runs_folder().glob("*/records.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
    known = _names([path.parent for path in newest[:5]])
    cure = f"the newest under {runs_folder()} are: {known}" if known else "give a folder, or set EDGEBED_RUNS"
    raise UsageError(f"there is no run {name!r}", cure=cure)


def _names(folders: list[Path]) -> str:
    return ", ".join(folder.name for folder in folders[:5])
