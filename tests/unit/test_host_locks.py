"""Locks that all users of a host share: nobody waits for ever, whoever holds them or whatever lies there. And
computations that are stopped while something is timed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edgebed.errors import FleetError
from orchestrator.files import timed_host
from orchestrator.files.shared_lock import shared_lock
from orchestrator.files.timed_host import computing, is_timed, timed
from orchestrator.papers.workers import stop


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the locks."""
    monkeypatch.setenv("EDGEBED_CACHE", str(tmp_path))
    monkeypatch.setattr(timed_host, "PAUSE_S", 0.05)
    return tmp_path


@pytest.fixture
def held(folder: Path) -> Iterator[Path]:
    """A lock that somebody holds for himself."""
    path = folder / "edgebed-timed.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_who_holds_the_hosts_lock_for_long_is_named(held: Path) -> None:
    with pytest.raises(FleetError, match=rf"held {held} for 0 s \(process {os.getpid()}\)") as refused, timed():
        pass
    assert f"fuser -v {held}" in refused.value.hint


def test_what_is_timed_goes_together_and_a_computation_sees_it() -> None:
    with timed(), timed():
        assert is_timed()
    with computing(), computing():
        assert not is_timed()


@pytest.mark.parametrize("name", ["edgebed-timed.lock", "edgebed-computing.lock"])
def test_a_fifo_in_the_place_of_a_lock_is_refused_at_once(folder: Path, name: str) -> None:
    os.mkfifo(folder / name)
    with pytest.raises(FleetError, match=rf"{name} is no file of its own") as refused, timed():
        pass
    assert refused.value.hint == f"see whose: ls -l {folder / name}"


def test_a_folder_in_the_place_of_a_lock_is_refused(folder: Path) -> None:
    (folder / "a.lock").mkdir()
    with pytest.raises(FleetError, match="is no file"), shared_lock(folder / "a.lock", 1.0):
        pass


async def test_computations_have_stopped_when_stop_returns_and_one_that_ended_is_no_hindrance() -> None:
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        for code in ("print(1, flush=True)\nwhile True: pass", "print(1, flush=True)\nwhile True: pass", "print(1)")
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"1\n"
        assert await started[2].wait() == 0
        stop(started)
        assert [psutil.Process(each.pid).status() for each in started[:2]] == [psutil.STATUS_STOPPED] * 2
    finally:
        for process in started[:2]:
            process.kill()
            await process.wait()
