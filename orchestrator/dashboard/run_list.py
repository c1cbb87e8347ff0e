"""The runs that a page may show: found in folders, each with a card for the list, opened on demand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgebed.errors import UsageError, printable
from edgebed.plugins import called
from orchestrator.dashboard.files import of_folder
from orchestrator.dashboard.tail import RecordTail
from orchestrator.files.plain import read_plain
from orchestrator.files.yaml_file import MOST_BYTES, parse
from orchestrator.records import types as t
from orchestrator.records.crossing import time_to
from orchestrator.records.older_words import ending_of
from orchestrator.records.reader import decode
from orchestrator.records.words.drawing import thinned

TAIL = 128 << 10
"""Bytes at the end of the records that a card is made from."""

SILENT_S = 120.0
"""A run whose records have not grown for so long may have been killed."""


SPARK_POINTS = 40
"""Points of the small curve of a card, at most about."""


OF_START = ("run", "experiment", "method", "setting", "backend", "enforcement", "dilation", "calibrated", "seed")
"""Fields of `RunStarted` that a card has."""


class Wanted(msgspec.Struct, frozen=True):
    """Which runs. Those of `folders`; of `library` (a folder of runs), those that grew after `since` (Unix time) and
    are of `experiment`, where these are given."""

    folders: tuple[Path, ...] = ()
    library: Path | None = None
    since: float = 0.0
    experiment: str = ""


class RunList:
    """Runs by id: the name of their folder, with a number where two have the same."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._paths: dict[str, Path] = {}
        self._cards: dict[str, tuple[tuple[float, int, float], dict[str, Any]]] = {}
        self._about: dict[str, dict[str, Any]] = {}
        self._open: dict[str, RecordTail] = {}
        for folder in wanted.folders:
            self._add(folder)

    def path(self, run: str) -> Path | None:
        return self._paths.get(run)

    def tail(self, run: str) -> RecordTail | None:
        """The run's tail, made at the first call (which reads its index)."""
        path = self._paths.get(run)
        if path is None:
            return None
        if run not in self._open:
            self._open[run] = RecordTail(path)
        return self._open[run]

    def scan(self) -> None:
        """Look for new runs in the library."""
        library = self._wanted.library
        if library is None:
            return
        known = set(self._paths.values())
        for records in sorted(library.glob("*/records.jsonl")):
            if records.parent not in known and self._is_wanted(records):
                self._add(records.parent)

    def _is_wanted(self, records: Path) -> bool:
        try:
            stat = records.stat()
        except OSError:
            return False  # deleted while we looked
        if stat.st_mtime < self._wanted.since or not stat.st_size:
            return False
        first = _first(records)
        return first is not None and self._wanted.experiment in ("", first.experiment)

    def _add(self, folder: Path) -> None:
        run, number = folder.resolve().name, 2
        while run in self._paths:
            run, number = f"{folder.resolve().name}~{number}", number + 1
        self._paths[run] = folder

    def cards(self) -> list[dict[str, Any]]:
        """The list of runs, the newest first."""
        self.scan()
        cards = [card for run, path in self._paths.items() if (card := self._card(run, path)) is not None]
        return sorted(cards, key=lambda card: card["started"], reverse=True)

    def _card(self, run: str, folder: Path) -> dict[str, Any] | None:
        records = folder / "records.jsonl"
        try:
            stat = records.stat()
        except OSError:
            return None
        key = (stat.st_mtime, stat.st_size, _summary_mtime(folder))
        if run not in self._cards or self._cards[run][0] != key:
            card = make_card(records)
            if card is None:
                return None
            if run not in self._about:
                self._about[run] = about(folder)
            self._cards[run] = (key, {"id": run, **card, **self._about[run], "files": of_folder(folder)})
        card = self._cards[run][1]
        silent = time.time() - stat.st_mtime
        state = "ended" if card["ended"] else "running" if silent < SILENT_S else "silent"
        return {**card, "state": state}


def _first(records: Path) -> t.RunStarted | None:
    try:
        with records.open("rb") as file:
            record = decode(file.readline())
    except OSError:
        return None  # deleted since it was found
    return record if isinstance(record, t.RunStarted) else None


def make_card(records: Path) -> dict[str, Any] | None:
    """What the list shows of a run, from the two ends of its records."""
    first = _first(records)
    if first is None:
        return None
    rounds, finished = 0, None
    accuracies: list[float] = []
    try:
        last = _last_records(records)
    except OSError:
        return None
    for record in last:
        match record:
            case t.RoundFinished() | t.RoundStarted():
                rounds = record.round + isinstance(record, t.RoundFinished)
            case t.Evaluated():
                accuracies.append(record.accuracy)
            case t.RunFinished():
                finished = record
            case t.RunStarted():
                first, finished = record, None
    known = _summary(records)
    return {
        **{name: getattr(first, name) for name in OF_START},
        "started": first.wall,
        "devices": len(first.devices),
        "rounds": rounds,
        "accuracy": accuracies[-1] if accuracies else None,
        "spark": spark(accuracies if known is None else known.accuracy),
        "time_to_target_s": None if known is None else known.time_to_target_s,
        "ended": "" if finished is None else finished.why,
        "ending": None if finished is None else ending_of(finished),
    }


class _Summary(msgspec.Struct):
    target_accuracy: float
    elapsed_s: list[float] = []
    accuracy: list[float | None] = []

    @property
    def time_to_target_s(self) -> float | None:
        return time_to(zip(self.elapsed_s, self.accuracy, strict=False), self.target_accuracy)


def _summary_mtime(folder: Path) -> float:
    try:
        return (folder / "summary.json").stat().st_mtime
    except OSError:
        return 0.0


def _summary(records: Path) -> _Summary | None:
    """The summary, where that is newer than the records."""
    try:
        if _summary_mtime(records.parent) < records.stat().st_mtime:
            return None
        return msgspec.json.decode(records.with_name("summary.json").read_bytes(), type=_Summary)
    except (OSError, msgspec.DecodeError):
        return None


def spark(accuracies: Sequence[float | None]) -> list[float]:
    """A short curve, with its last point."""
    found = [accuracy for accuracy in accuracies if accuracy is not None]
    return [round(accuracy, 3) for accuracy in thinned(found, SPARK_POINTS)]


def about(folder: Path) -> dict[str, Any]:
    """Names of model and data set in the experiment file of a run, and how many rounds it may have; empty and None
    where it is not there or no such file."""
    try:
        path = folder / "experiment.yaml"
        found, _ = parse(read_plain(path, MOST_BYTES).decode(), path)
        training = found.get("training", {})
        rounds = None if training.get("budget_s") else training.get("rounds")
        names = {"model": printable(called(found["model"])), "data": printable(str(found["data"]["name"]))}
        return names | {"of": rounds if isinstance(rounds, int) else None}
    except (OSError, UnicodeDecodeError, UsageError, KeyError, TypeError, AttributeError):
        return {"model": "", "data": "", "of": None}


def _last_records(records: Path) -> Sequence[t.Record]:
    """Records at the end of the file; more of them where a round is longer than that."""
    with records.open("rb") as file:
        size = file.seek(0, 2)
        reach = TAIL
        while True:
            file.seek(max(0, size - reach))
            found = [r for line in file.read(reach).splitlines() if (r := decode(line)) is not None]
            whole = reach >= size or any(isinstance(r, t.Evaluated) for r in found)
            if whole or reach >= 64 * TAIL:
                return found
            reach *= 8
