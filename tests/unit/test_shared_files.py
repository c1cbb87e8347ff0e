"""Files that another user of the host, or a foreign run, may have put there: refused, and never waited for."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from edgebed.errors import FleetError
from orchestrator.dashboard.files import file, of_folder
from orchestrator.dashboard.run_list import about
from orchestrator.files.plain import read_plain
from orchestrator.files.shared_lock import open_lock, shared_lock
from orchestrator.fleet import leftovers, ownership
from orchestrator.fleet.host import cpus

STRANGER = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


def test_a_pipe_in_place_of_a_lock_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(FleetError, match="somebody put it there"), shared_lock(tmp_path / "lock", 1.0):
        pass


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "lock").symlink_to(tmp_path / "secret")
    with pytest.raises(FleetError):
        open_lock(tmp_path / "lock")


def test_a_hard_link_in_place_of_a_lock_does_not_open_its_file_to_others(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "lock").hardlink_to(tmp_path / "secret")
    with pytest.raises(FleetError, match="no file of its own"):
        open_lock(tmp_path / "lock")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def claims_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "STATE", folder)
    monkeypatch.setattr(cpus, "TEMPORARY", folder)


def claimed() -> cpus.Claim:
    return cpus.Claim(cpus.Standing("f12345678", "mine", "local", 1.0, 0.0))


def test_a_link_in_place_of_the_folder_of_claims_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims_in(tmp_path, monkeypatch)
    (tmp_path / "private").mkdir(0o700)
    (tmp_path / "cpus").symlink_to(tmp_path / "private")
    (tmp_path / f"edgebed-cpus-{os.geteuid()}").symlink_to(tmp_path / "private")
    with pytest.raises(FleetError, match="cannot be claimed"):
        claimed()
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


@only_root
def test_a_folder_of_claims_that_is_another_user_s_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims_in(tmp_path, monkeypatch)
    (tmp_path / "cpus").mkdir()
    os.chown(tmp_path / "cpus", STRANGER, STRANGER)
    with pytest.raises(FleetError, match="another user's"):
        claimed()


def test_pipes_links_and_huge_files_are_no_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims_in(tmp_path, monkeypatch)
    held = claimed()
    folder = next(path.parent for path in tmp_path.rglob("f12345678.json"))
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to("/etc/hostname")
    with (folder / "huge.json").open("wb") as huge, (folder / "pipe.json").open("rb+", buffering=0) as pipe:
        huge.truncate(1 << 40)
        for file in (huge, pipe):
            fcntl.flock(file, fcntl.LOCK_EX)  # what nobody holds is not read
        assert [each.name for each in cpus.standing() if each.fleet_id == "f12345678"] == ["mine"]
    held.close()


@only_root
def test_nothing_is_removed_in_the_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He may put a link in its place between two looks."""
    claims_in(tmp_path, monkeypatch)
    theirs, private, swapped = tmp_path / f"edgebed-cpus-{STRANGER}", tmp_path / "private", list[Path]()
    for folder in (theirs, private):
        folder.mkdir()
        (folder / "registry.json").touch()
    os.chown(theirs, STRANGER, STRANGER)

    def swap(path: Path) -> bool:
        swapped.append(path)
        theirs.rename(tmp_path / "before")
        theirs.symlink_to(private)
        return False

    monkeypatch.setattr(ownership, "is_held", swap)
    cpus.standing()
    assert swapped == [theirs / "registry.json"]
    assert (private / "registry.json").exists()


@pytest.mark.parametrize("most", [None, 100])
def test_only_plain_files_are_read(tmp_path: Path, most: int | None) -> None:
    (tmp_path / "plain").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("plain")
    os.mkfifo(tmp_path / "pipe")
    assert read_plain(tmp_path / "plain", most) == b"x" * 100
    for name in ("link", "pipe", "."):
        with pytest.raises(OSError, match=r"plain file|links|directory"):
            read_plain(tmp_path / name, most)
    with pytest.raises(OSError, match="too large"):
        read_plain(tmp_path / "plain", 99)


async def test_a_report_that_is_a_link_is_not_shown(tmp_path: Path) -> None:
    """A run that somebody sent may hold links to this user's files."""
    (tmp_path / "secret").write_text("key")
    (tmp_path / "run").mkdir()
    for name in ("report.html", "trace.json"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "secret")
        answer = await file(tmp_path / "run", name)
        assert (answer.status_code, b"key" in bytes(answer.body)) == (404, False)
    assert of_folder(tmp_path / "run") == []


def test_an_experiment_file_that_unfolds_without_end_costs_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 6)]
    text = "\n".join([*lines, "model: {name: *a5}", "data: {name: mnist}"])
    (tmp_path / "experiment.yaml").write_text(text)
    assert about(tmp_path) == {"model": "", "data": "", "of": None}
    (tmp_path / "experiment.yaml").write_text("model: {name: resnet-tiny}\ndata: {name: mnist}\n")
    assert about(tmp_path) == {"model": "resnet-tiny", "data": "mnist", "of": None}
    (tmp_path / "experiment.yaml").unlink()
    os.mkfifo(tmp_path / "experiment.yaml")
    assert about(tmp_path) == {"model": "", "data": "", "of": None}
