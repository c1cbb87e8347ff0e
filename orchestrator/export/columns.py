"""Records as tables, one file per type of record: CSV, or Parquet with pyarrow.

A row is a record. A list or mapping in a record (assignments, host facts) is JSON in one cell, except that each phase
of `device_phases` has its own row. Times and units are those of the records, not divided by the dilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from edgebed.errors import printable
from orchestrator.export import load
from orchestrator.records import types as t
from orchestrator.records.compare.tabulate import write_rows

Row = dict[str, Any]


def tables(records: Iterable[t.Record]) -> dict[str, list[Row]]:
    """Rows by type of record, in the order of writing."""
    found: dict[str, list[Row]] = {}
    for record in records:
        found.setdefault(str(record.__struct_config__.tag), []).extend(_rows(record))
    return found


def _rows(record: t.Record) -> Iterator[Row]:
    row = {name: _cell(getattr(record, name)) for name in record.__struct_fields__ if name != "phases"}
    if isinstance(record, t.DevicePhases):
        for phase in record.phases:
            yield row | msgspec.structs.asdict(phase)
    else:
        yield row


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, len(value), "\n\t")
    return value if value is None or isinstance(value, int | float) else msgspec.json.encode(value).decode()


def write_csv(records: Iterable[t.Record], folder: Path) -> list[Path]:
    """Write `folder`/TYPE.csv for every type of record, and return the files. An empty cell is None."""
    paths = []
    for name, rows in _in(folder, records):
        paths.append(folder / f"{name}.csv")
        with paths[-1].open("w", encoding="utf-8", newline="") as file:
            write_rows(file, rows)
    return paths


def write_parquet(records: Iterable[t.Record], folder: Path) -> list[Path]:
    """Write `folder`/TYPE.parquet for every type of record, and return the files.

    Raises:
        UsageError: pyarrow is not installed.
    """
    arrow, parquet = load("pyarrow", "Parquet"), load("pyarrow.parquet", "Parquet")
    paths = []
    for name, rows in _in(folder, records):
        paths.append(folder / f"{name}.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), paths[-1])
    return paths


def _in(folder: Path, records: Iterable[t.Record]) -> list[tuple[str, list[Row]]]:
    folder.mkdir(parents=True, exist_ok=True)
    return [(name, rows) for name, rows in tables(records).items() if rows]
