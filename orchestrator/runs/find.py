"""Where runs are kept, and how a command names a run."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from edgebed.errors import UsageError
from edgebed.typed import nearest
from orchestrator.records.account import load_summary


def runs_folder() -> Path:
    """EDGEBED_RUNS, or ./runs."""
    return Path(os.environ.get("EDGEBED_RUNS", "runs"))


def is_pattern(name: str) -> bool:
    """Whether a name contains a character of shell patterns: * ? [."""
    return any(each in name for each in "*?[")


def find_run(name: str) -> Path:
    """The folder of one run, given its path, its id, the beginning of its id, or a pattern. Raises UsageError: no run
    matches, or several do."""
    matches = _matches(name)
    if len(matches) > 1:
        raise _several(name, matches)
    return matches[0]


def find_runs(names: Sequence[str]) -> list[Path]:
    """The folders of some runs, each once. Names are paths, ids, patterns (`mine*`), or the beginning of one id.

    Raises:
        UsageError: no run matches a name, or several ids begin with a name that is not a pattern.
    """
    found: dict[Path, Path] = {}
    for name in names:
        matches = _matches(name)
        if len(matches) > 1 and not is_pattern(name):
            raise _several(name, matches)
        found |= {folder.resolve(): folder for folder in matches}
    return list(found.values())


def baseline_last(folders: list[Path], baseline: str | None) -> list[Path]:
    """The runs, with those of the baseline at the end. `baseline`: a method, or a run; None changes nothing. Raises
    UsageError if there is no such method or run."""
    if baseline is None:
        return folders
    methods = {folder: load_summary(folder).method for folder in folders}
    own = [folder for folder in folders if methods[folder] == baseline]
    if not own:
        try:
            own = [find_run(baseline)]
        except UsageError:
            known = ", ".join(sorted(set(methods.values())))
            raise UsageError(
                f"{baseline!r} is neither a method of these runs nor a run", hint=f"methods: {known}"
            ) from None
    kept = {folder.resolve() for folder in own}
    return [folder for folder in folders if folder.resolve() not in kept] + own


def _matches(name: str) -> list[Path]:
    """The folder that a name is exactly, otherwise all folders that it matches. Raises UsageError if none does."""
    for folder in (Path(name), runs_folder() / name):
        if _is_run(folder):
            return [folder]
    library = glob.escape(str(runs_folder()))
    where = [f"{library}/{name}", name] if is_pattern(name) else [f"{library}/{glob.escape(name)}*"]
    folders = (Path(path) for each in where for path in sorted(glob.glob(each)))
    matches = {folder.resolve(): folder for folder in folders if _is_run(folder)}
    if matches:
        return list(matches.values())
    known = [folder.name for folder in _newest()]
    if not known:
        raise UsageError(
            f"there is no run {name!r}, neither as a folder nor under {runs_folder().resolve()}",
            hint="give the folder of a run, or set EDGEBED_RUNS to the folder of your runs",
        )
    raise UsageError(
        f"there is no run {name!r} under {runs_folder().resolve()}{nearest(name, known)}",
        hint=f"`edgebed runs` lists them; the newest: {', '.join(known[:5])}",
    )


def _several(name: str, matches: list[Path]) -> UsageError:
    how = "fit" if is_pattern(name) else "begin with"
    names = ", ".join(folder.name for folder in matches[:5])
    return UsageError(f"{len(matches)} runs {how} {name!r}", hint=f"give one of: {names}")


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "records.jsonl").is_file()
    except OSError:
        return False  # no folder can have such a name


def _newest() -> list[Path]:
    """Folders of runs, the newest first."""
    records = sorted(runs_folder().glob("*/records.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in records]


def complete_run(incomplete: str) -> list[str]:
    """Ids of runs that begin with `incomplete`, the newest first, for shell completion."""
    return [folder.name for folder in _newest() if folder.name.startswith(incomplete)]
