"""What killed runs leave: folders are known to be abandoned by their owner's lock, and only those are removed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgebed.errors import FleetError
from orchestrator.fleet import engine, leftovers, ownership
from orchestrator.fleet.ownership import OwnedFolder

PIPES: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

OWN = """
import sys
from orchestrator.fleet.ownership import OwnedFolder
folder = OwnedFolder("edgebed-data-")
print(folder.path, flush=True)
input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary folders of this test alone."""
    monkeypatch.setattr(ownership.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(leftovers, "STATE", tmp_path / "run")
    monkeypatch.setattr(engine, "connect", no_engine)
    return tmp_path


def no_engine(timeout_s: float = 0.0) -> None:
    raise FleetError("no Docker engine answers")


def names(found: list[leftovers.Leftover]) -> list[tuple[str, str]]:
    return [(left.kind, left.name) for left in found]


def test_the_folder_of_a_killed_process_is_collected_and_that_of_a_living_one_is_not(place: Path) -> None:
    with (
        OwnedFolder("edgebed-f") as mine,
        subprocess.Popen(
            [sys.executable, "-c", OWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as owner,
    ):
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        (theirs / "d0.safetensors").write_bytes(b"data")
        assert leftovers.find_leftovers() == []
        owner.kill()
        owner.wait()
        assert names(leftovers.find_leftovers()) == [("folder", str(theirs))]
        assert theirs.exists()  # looking removes nothing
        assert names(leftovers.collect()) == [("folder", str(theirs))]
        assert not theirs.exists()
        assert mine.exists()
    assert not mine.exists()


def test_what_nobody_can_judge_stays(place: Path) -> None:
    (place / "edgebed-data-without").mkdir()  # made by an older version, or at this moment
    (place / "elsewhere").mkdir()
    ownership.hold(place / "elsewhere").close()
    (place / "edgebed-data-link").symlink_to(place / "elsewhere")
    (place / "other-program").mkdir()
    ownership.hold(place / "other-program").close()
    (place / "edgebed-data-fifo").mkdir()
    os.mkfifo(place / "edgebed-data-fifo" / "other")
    (place / "edgebed-data-fifo" / ownership.LOCK).symlink_to("other")
    assert leftovers.collect() == []
    assert len(list(place.iterdir())) == 5


def test_an_owner_that_forks_lives_for_as_long_as_one_of_the_two(place: Path) -> None:
    folder = place / "edgebed-data-forked"
    folder.mkdir()
    lock = ownership.hold(folder)
    copy = os.dup(lock.fileno())
    lock.close()
    assert not ownership.is_abandoned(folder)
    os.close(copy)
    assert ownership.is_abandoned(folder)


def test_a_lock_is_never_seen_unlocked_by_who_looks_while_it_is_made(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place / "edgebed-data-new"
    folder.mkdir()
    seen: list[bool] = []

    def flock(file: int, how: int) -> None:
        seen.append((folder / ownership.LOCK).exists())
        real(file, how)

    real = fcntl.flock
    monkeypatch.setattr(ownership.fcntl, "flock", flock)
    ownership.hold(folder).close()
    assert seen == [False]


def test_a_broker_of_a_dead_run_is_ended_with_its_folder(place: Path) -> None:
    folder = place / "edgebed-broker-left"
    folder.mkdir()
    ownership.hold(folder).close()
    command = [sys.executable, "-c", "input()", f"{folder}/mosquitto.conf"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as broker:
        assert names(leftovers.collect()) == [("process", str(broker.pid)), ("folder", str(folder))]
        assert broker.wait(10) == -9
    assert not folder.exists()


def test_closing_an_owned_folder_twice_is_closing_it_once(place: Path) -> None:
    folder = OwnedFolder("edgebed-f")
    folder.close()
    folder.close()
    assert not folder.path.exists()
