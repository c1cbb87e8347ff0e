"""Opening the page of 2,000 rounds × 100 devices: from the request of the page to all of it drawn, at most 3 s.

The run is made up (tests/synthetic.py). Measured: the size of its records; folding them without an index, as the first
reader of a run that was killed must (once: it leaves the index); starting the server anew with the index and having a
browser draw everything (without Chromium: until the client has the whole snapshot).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from benchmarks._figures import figure, progress, skip
from benchmarks._page import browser
from orchestrator.dashboard.serve import PageAddress
from orchestrator.dashboard.subprocess_server import page_beside
from orchestrator.dashboard.tail import RecordTail, refresh
from tests.synthetic import Speed, Synthetic

ROUNDS = int(os.environ.get("EDGEBED_ROUNDS", "2000"))
DEVICES, PART = 100, 50
LIMIT_S = 3.0


def write(folder: Path) -> int:
    """The records of a long run, a part of its rounds at a time to save memory; bytes."""
    fleet = {f"device-{i:03d}": Speed(compute=50 + i) for i in range(DEVICES)}
    shift, encode = 0, msgspec.json.Encoder().encode
    with (folder / "records.jsonl").open("wb") as file:
        for first in range(0, ROUNDS, PART):
            made = Synthetic(fleet, PART, clock_every_round=False, accuracy=0.0004, first_round=first).records
            of_rounds = [r for r in made if hasattr(r, "round") or type(r).__name__ == "DevicePhases"]
            body = of_rounds if first else made
            start = time_of(made[-1])
            for record in body:
                if type(record).__name__ != "RunFinished":
                    file.write(encode(moved(record, shift)) + b"\n")
            shift += start - 9_600_000_000
        file.write(encode(moved(made[-DEVICES - 1], shift)) + b"\n")
        return file.tell()


def time_of(record: object) -> int:
    return int(getattr(record, "at_ns", 0) or getattr(record, "end_ns", 0))


def moved(record: object, by: int) -> object:
    """The record, later."""
    names = [name for name in ("at_ns", "first_ns", "start_ns", "end_ns") if hasattr(record, name)]
    changes: dict[str, object] = {name: getattr(record, name) + by for name in names}
    if hasattr(record, "phases"):
        changes["phases"] = tuple(
            msgspec.structs.replace(p, start_ns=p.start_ns + by, end_ns=p.end_ns + by) for p in record.phases
        )
    return msgspec.structs.replace(record, **changes)  # type: ignore[type-var]


@contextlib.contextmanager
def server(library: Path) -> Iterator[str]:
    said: list[str] = []
    for records in library.glob("*/records.jsonl"):
        os.utime(records)  # a page beside a run shows only runs that go on
    with page_beside(library, "", PageAddress(), said.append):
        yield said[0].removeprefix("Live page: ")


def with_client(address: str, run: str) -> float:
    start = time.perf_counter()
    where = address.replace("?", f"events?run={run}&")
    with httpx.stream("GET", where, timeout=30, follow_redirects=True) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and '"rows"' in line:
                assert len(json.loads(line[6:])["rows"]) == ROUNDS
                return time.perf_counter() - start
    raise AssertionError("no snapshot came")


def with_browser(address: str, run: str) -> float:
    """Seconds from navigation until figures, fleet and curves are drawn."""
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        start = time.perf_counter()
        page.goto(f"{address}#/run/{run}")
        page.wait_for_function(
            f"""() => document.querySelector('.figures dd')?.textContent === '{ROUNDS}'
            && document.querySelectorAll('.fleet tbody tr').length === {DEVICES}
            && document.querySelectorAll('.gantt .row').length === {DEVICES + 2}
            && document.querySelector('svg.chart path.line')""",
            timeout=60_000,
        )
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "long"
        folder.mkdir()
        done = progress("writing the records")
        size = write(folder)
        done()
        figure("records, MB", size / 1e6)
        start = time.perf_counter()
        refresh(folder)
        figure("without an index, all records folded once, s", time.perf_counter() - start)
        figure("the index, MB", (folder / "view.msgpack").stat().st_size / 1e6)
        start = time.perf_counter()
        assert len(RecordTail(folder).state.rows) == ROUNDS
        figure("the index read, s", time.perf_counter() - start)
        with server(Path(name)) as address:
            figure("whole snapshot at a client, server just started, s", with_client(address, "long"), most=LIMIT_S)
        if shutil.which("chromium") is None:
            skip("no Chromium: the page was not drawn")
            return
        with server(Path(name)) as address:
            figure("page drawn in a browser, server just started, s", with_browser(address, "long"), most=LIMIT_S)
            figure("page drawn in a browser, again, s", with_browser(address, "long"), most=LIMIT_S)
