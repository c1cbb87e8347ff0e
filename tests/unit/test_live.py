"""The terminal's view during a run, and log lines that carry run, round and device."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from edgebed.errors import UsageError
from orchestrator.cli.live import MOST_DEVICES, share, view
from orchestrator.cli.run import watching
from orchestrator.records import types as t
from orchestrator.records.host_records import ServerStep
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState
from orchestrator.records.shown.loglines import LogLines, failure_line
from orchestrator.runs.session import Watch
from tests.synthetic import Speed, Synthetic

LOST = Synthetic(lost=(1, "middle"), dilation=2.5).records


def shown(records: list[t.Record], now_ns: int = 0) -> tuple[RunState, str]:
    state = RunState()
    for record in records:
        reduce(state, [(0, record)])
    console = Console(file=io.StringIO(), width=110, force_terminal=False)
    console.print(view(state, 4, now_ns))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return state, text


def until(kind: type[t.Record], device: str = "", number: int = 0) -> list[t.Record]:
    records = sorted(LOST, key=lambda r: r.end_ns if isinstance(r, ServerStep | t.OrchestratorPhase) else r.at_ns)
    for index, record in enumerate(records):
        if (
            isinstance(record, kind)
            and getattr(record, "device", "") == device
            and getattr(record, "round", 0) == number
        ):
            return records[: index + 1]
    raise UsageError("no such record", hint="")


def test_before_the_first_round_the_run_starts() -> None:
    text = shown(LOST[:1])[1]
    assert "round 0 of 4" in text
    assert "starting" in text


def test_a_round_shows_who_works_and_for_whom_is_waited() -> None:
    records = until(t.DeviceDone, "strong", 0)
    state, text = shown(records, records[-1].at_ns)  # type: ignore[union-attr]
    assert state.activity("strong") == "done"
    assert state.activity("weak") == "working"
    assert state.devices["weak"].cuts[-1] == 2
    assert "Waiting for weak" in text
    assert "limits held by kernel, D = 2.5" in text


def test_a_lost_device_is_away_and_the_straggler_is_named() -> None:
    records = until(t.DeviceLeft, "middle", 0)
    state, text = shown(records)
    assert state.activity("middle") == "away"
    assert "straggler: weak" in text
    end, text = shown(LOST)
    assert end.accuracy == pytest.approx(0.8)
    assert "rounds done" in text


def test_bars_follow_how_long_the_last_task_took() -> None:
    records = until(t.TaskSent, "weak", 2)
    state, _ = shown(records)
    weak = state.devices["weak"]
    before_ns = int(weak.before_s * state.dilation * 1e9)
    assert share(state, weak, weak.since_ns + before_ns // 2) == pytest.approx(0.5)
    assert share(state, weak, weak.since_ns + 10 * before_ns) == 0.99


def test_a_large_fleet_is_cut_with_those_at_work_first() -> None:
    fleet = {f"d{i:03d}": Speed(compute=10 + i) for i in range(MOST_DEVICES + 10)}
    records = Synthetic(fleet, 1).records
    cut = next(i for i, r in enumerate(records) if isinstance(r, t.DeviceDone) and r.device == "d020")
    text = shown(records[: cut + 1])[1]
    assert "and 10 more devices" in text


def test_log_lines_carry_run_round_and_device() -> None:
    lines = LogLines()
    text = [line for record in LOST if (line := lines.line(record)) is not None]
    assert all(line.startswith("run=synthetic-dtfl event=") for line in text)
    assert sum("event=round_started" in line for line in text) == 4
    (out,) = [line for line in text if "event=device_out" in line]
    assert "round=2 device=middle how=lost" in out
    assert 'why="its process ended: signal 9"' in out
    assert any("event=device_done round=1 device=weak seconds=" in line for line in text)


def test_a_log_line_is_one_line_whatever_is_in_it() -> None:
    lines = LogLines()
    line = lines.line(t.Fault(0, "a b", 'odd\n"thing"=\x1b[31m'))
    assert line is not None
    assert "\n" not in line
    assert "\x1b" not in line
    assert msgspec.json.decode(line.partition("what=")[2]) == 'odd\n"thing"=\x1b[31m'


def test_a_device_that_fails_has_one_line_whatever_it_says() -> None:
    long = t.DeviceOut(1, 2, "dev-3", "failed", "KeyError: 'a\x1b[2J bug'\nmore " + "x" * 500, "Traceback …")
    line = failure_line(long)
    assert line is not None
    assert line.startswith("round 3: dev-3 failed: KeyError: 'a [2J bug' more xxx")
    assert line.endswith("… (its traceback is in records.jsonl)")
    assert line.isprintable()
    assert len(line) < 330
    assert failure_line(t.DeviceOut(1, 2, "dev-3", "late", "the deadline has passed")) is None
    assert failure_line(t.Fault(1, "dev-3", "no device")) is None


def test_a_run_says_that_line() -> None:
    said: list[str] = []
    Watch(said.append).record(Path("run"), t.DeviceOut(1, 0, "dev-1", "lost", "its process ended: signal 9"))
    assert said == ["round 1: dev-1 lost: its process ended: signal 9"]


def test_a_log_file_gets_the_lines_of_every_run(tmp_path: Path) -> None:
    with watching(quiet=True, log_file=tmp_path / "log") as watch:
        for listener in watch.listeners:
            listener(Path("run"), Synthetic().records[0])
            listener(Path("run"), t.DeviceOut(1, 0, "dev-1", "lost", "its process ended"))
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[-1].startswith("time=")
    assert "device=dev-1" in lines[-1]
