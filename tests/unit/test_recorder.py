"""Records go to disk at once and come back whole; torn and damaged files."""

from __future__ import annotations

import asyncio
import errno
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import FileError, RunError, UsageError
from edgebed.wire.reading import BoardReading
from orchestrator.records import types as t
from orchestrator.records.host_records import BoardReadings, HalfWork, Hop, RequestsLost, Served
from orchestrator.records.reader import decode, read
from orchestrator.records.recorder import Recorder
from orchestrator.records.run_index import sort
from tests.synthetic import Synthetic

RECORDS = Synthetic(rounds=2).records


def write(path: Path, records: list[t.Record]) -> Path:
    recorder = Recorder(path)
    for record in records:
        recorder.record(record)
    recorder.close()
    return path


def test_every_kind_of_record_comes_back_as_it_was(tmp_path: Path) -> None:
    extra: list[t.Record] = [
        HalfWork(3, 4, 0, "make", ("strong", "weak")),
        t.ReplyDelivered(5, 4, 0, "weak", 0, 10),
        t.DeviceOut(6, 0, "weak", "late", "not done"),
        t.DeviceLeft(7, "weak", "last will"),
        Served(9, 1, 2, True, (Hop("weak", 1, 2, 3, 4, 5, 6),)),
        RequestsLost(10, "weak", (1, 2), "gone"),
        t.HostRound(12, 9, 0, 2.0, 1.0, 0.0, 0.5, {"broker": 0.1}, 2.5, 7),
        t.TurnEnded(13, 0, "f1/1", 1, 2),
        t.ScenarioStep(14, 13, "weak", 0, "limits", True, "up 5 Mbit/s", uplink_bit_s=5_000_000),
        BoardReadings(15, "weak", "weak#1", (BoardReading(3, (1500, None), 0.8, 81.5, True, 5, 4.5), BoardReading(4))),
        t.FinalTest(11, 3, 0.5, 1.0, 0.1, {"exit1": 0.4}),
        t.Fault(8, "weak", "odd \n \u2028 text"),
    ]
    kinds = {type(r) for r in RECORDS + extra}
    assert kinds == set(t.Record.__args__)
    assert read(write(tmp_path / "r.jsonl", RECORDS + extra)) == RECORDS + extra


def test_a_record_is_on_disk_before_the_call_returns(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path)
    recorder.record(RECORDS[0])
    assert read(path) == RECORDS[:1]
    recorder.close()


def test_one_orchestrator_at_a_time_writes_and_the_other_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = Recorder(path)
    first.record(RECORDS[0])
    with path.open("ab") as torn:
        torn.write(b'{"half')  # as the first one's next record may be when the second comes
    with pytest.raises(RunError, match="another orchestrator is writing") as refused:
        Recorder(path)
    assert refused.value.hint
    assert path.read_bytes().endswith(b'{"half')
    first.close()
    write(path, RECORDS[1:2])
    assert read(path) == RECORDS[:2]


@pytest.mark.parametrize("keep", [1, 17, -2, -1])
def test_torn_last_line_is_left_out_and_removed_when_appending(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "r.jsonl", RECORDS[:3])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:keep])
    whole = 3 if keep == -1 else 2  # only the newline is missing: nothing is lost
    assert read(path) == RECORDS[:whole]
    write(path, RECORDS[3:5])
    assert read(path) == RECORDS[:whole] + RECORDS[3:5]


@given(cut=st.integers(min_value=0, max_value=4000))
def test_a_file_cut_anywhere_reads_as_a_prefix(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = write(tmp_path_factory.mktemp("cut") / "r.jsonl", RECORDS[:8])
    path.write_bytes(path.read_bytes()[:cut])
    records = read(path)
    assert records == RECORDS[: len(records)]


@pytest.mark.parametrize(
    "bad", [b"{}", b"[1]", b'{"type":"no_such"}', b"\x00\x00\xff", b'{"type":"fault","at_ns":"x"}']
)
def test_damage_in_the_middle_names_the_line(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path / "r.jsonl", RECORDS[:4])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + bad + b"\n" + b"".join(lines[2:]))
    with pytest.raises(UsageError, match=r"r\.jsonl:3:") as caught:
        read(path)
    assert caught.value.hint


def test_missing_file_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "none.jsonl")
    assert "records.jsonl" in caught.value.hint


def test_a_diverged_loss_does_not_make_the_file_unreadable(tmp_path: Path) -> None:
    """JSON has no NaN, and the run with the NaN is the one that somebody will want to read."""
    records: list[t.Record] = []
    for record in RECORDS:
        if isinstance(record, t.Evaluated):
            record = msgspec.structs.replace(record, loss=math.nan)
        if isinstance(record, t.UpdateReceived):
            record = msgspec.structs.replace(record, report=msgspec.structs.replace(record.report, loss=math.inf))
        records.append(record)
    back = read(write(tmp_path / "r.jsonl", records))
    assert len(back) == len(records)
    assert all(math.isnan(r.loss) for r in back if isinstance(r, t.Evaluated))
    assert sort(back).rounds()[0][1].updates["weak"].bytes > 0


@given(st.binary(max_size=300))
def test_no_bytes_make_the_decoder_fail(line: bytes) -> None:
    decode(line)


def test_subscribers_hear_everything_until_they_leave(tmp_path: Path) -> None:
    recorder, heard = Recorder(tmp_path / "r.jsonl"), list[t.Record]()
    leave = recorder.subscribe(heard.append)
    recorder.record(RECORDS[0])
    leave()
    leave()
    recorder.record(RECORDS[1])
    assert heard == RECORDS[:1]
    recorder.close()


def test_a_failing_subscriber_is_let_go_and_named_and_the_run_goes_on(tmp_path: Path) -> None:
    recorder, heard = Recorder(tmp_path / "r.jsonl"), list[t.Record]()

    def fail(record: t.Record) -> None:
        raise ZeroDivisionError("page")

    recorder.subscribe(fail)
    recorder.subscribe(heard.append)
    recorder.record(RECORDS[0])
    recorder.record(RECORDS[1])
    recorder.close()
    faults = [r for r in read(tmp_path / "r.jsonl") if isinstance(r, t.Fault)]
    assert len(faults) == 1
    assert "page" in faults[0].what
    assert [r for r in heard if not isinstance(r, t.Fault)] == RECORDS[:2]


def test_what_comes_after_close_is_dropped(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.jsonl")
    recorder.record(RECORDS[0])
    recorder.close()
    recorder.record(RECORDS[1])
    recorder.close()
    assert read(tmp_path / "r.jsonl") == RECORDS[:1]


class Full:
    """A file on a disk with room for `room` bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room

    def write(self, data: bytes) -> int:
        taken = data[: self.room]
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(taken)
        return int(self._file.write(taken))

    def truncate(self, size: int) -> None:
        self.room += self._file.tell() - size
        self._file.truncate(size)
        self._file.seek(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[Full]:
    """Files that were opened to append to, with much room until a test takes it away."""
    opened, really = list[Full](), Path.open

    def open_(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        file: Any = really(path, mode, *args, **options)
        if mode != "ab":
            return file
        opened.append(Full(file, 1 << 30))
        return opened[-1]

    monkeypatch.setattr(Path, "open", open_)
    return opened


def test_on_a_full_disk_whole_lines_stay_and_the_last_record_is_tried(tmp_path: Path, disk: list[Full]) -> None:
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path)
    recorder.record(RECORDS[0])
    disk[0].room = 90
    long = t.Fault(1, "weak", "x" * 200)
    recorder.record(long)
    assert recorder.failure is not None
    assert "r.jsonl: No space left" in str(recorder.failure)
    assert recorder.failure.exit_code == 6
    recorder.record(t.Fault(2, "", "short, but after a gap"))
    recorder.last(t.RunFinished(3, "error: full"))
    recorder.close()
    assert read(path) == [RECORDS[0], t.RunFinished(3, "error: full")]


async def test_a_record_that_cannot_be_kept_ends_the_run_once_and_as_itself(tmp_path: Path, disk: list[Full]) -> None:
    recorder = Recorder(tmp_path / "r.jsonl")
    cleaned = []

    async def run() -> str:
        disk[0].room = 0
        asyncio.get_running_loop().call_soon(recorder.record, RECORDS[0])  # as a callback of some link does
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)
        return "never"

    async with asyncio.timeout(5):
        with pytest.raises(FileError, match="No space left") as failed:
            await recorder.guard(run())
    assert cleaned == [True]
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__
    recorder.close()


async def test_without_trouble_a_guarded_run_ends_and_is_cancelled_as_ever(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.jsonl")

    async def run(until: asyncio.Event) -> str:
        await until.wait()
        return "done"

    now, never = asyncio.Event(), asyncio.Event()
    now.set()
    assert await recorder.guard(run(now)) == "done"
    task = asyncio.create_task(recorder.guard(run(never)))
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    recorder.close()


def test_a_place_that_cannot_be_written_is_named_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file") as refused:
        Recorder(tmp_path / "none" / "r.jsonl")
    assert "none/r.jsonl" in str(refused.value)
    assert refused.value.hint


def test_records_are_never_lengthened_to_what_a_checkpoint_says(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", RECORDS)
    whole = path.read_bytes()
    for keep in (len(whole) + 1, 1 << 50, -1):
        with pytest.raises(UsageError, match="is shorter than"):
            Recorder(path, keep, again=1)
    assert path.read_bytes() == whole
    Recorder(path, len(whole)).close()
