"""Places are tried before anything starts; what the operating system refuses gets a place, a cause and a hint."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from edgebed.errors import FileError
from orchestrator import cli
from orchestrator.files.output import keep, try_file, try_folder
from tests.synthetic import Synthetic
from tests.unit._runs import keep as keep_run


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    try_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_that_was_not_there_is_not_left_and_one_that_was_stays_as_it_is(tmp_path: Path) -> None:
    try_file(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").write_text("kept")
    try_file(tmp_path / "old")
    assert (tmp_path / "old").read_text() == "kept"


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "make room"), (errno.EROFS, "read-only"), (errno.EACCES, "EDGEBED_RUNS")]
)
def test_a_folder_that_takes_nothing_is_named_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refused)
    with pytest.raises(FileError) as failed:
        try_folder(tmp_path)
    assert str(failed.value) == f"{tmp_path}: {os.strerror(number)}"
    assert hint in failed.value.hint


@pytest.mark.parametrize("path", ["file/folder", "file"])
def test_a_file_where_a_folder_is_needed(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError) as failed:
        try_folder(tmp_path / path)
    assert "file" in str(failed.value)
    assert failed.value.hint


def test_what_is_kept_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path / "a", b"one")
    monkeypatch.setattr(os, "write", lambda number, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(FileError):
        keep(tmp_path / "a", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"one")]


def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda number, data: write(number, bytes(data[:2])))
    keep(tmp_path / "a", b"seven c")
    assert (tmp_path / "a").read_bytes() == b"seven c"


EXPERIMENT = "name: a\nfleet: fleet.yaml\nmethods: [{name: fedavg}]\n"
FLEET = "name: f\ndevices: [{profile: cpu0.2, count: 2}]\n"


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (["run", "{here}/experiment.yaml", "--log-file", "{here}/none/log"], "none/log"),
        (["run", "{here}/experiment.yaml"], "runs"),
        (["simulate", "{here}/experiment.yaml"], "runs"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    place: str,
) -> None:
    keep_run(tmp_path / "run", Synthetic().records)
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    if place == "runs":
        (tmp_path / "runs").touch()  # a file stands where the folder is to be
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(sys, "argv", ["edgebed", *(argument.format(here=tmp_path) for argument in command)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr().err
    assert end.value.code == 6, told
    assert f"{tmp_path / place}: " in told
    assert "Hint:" in told
    assert "preparing" not in told


def test_an_error_of_the_operating_system_anywhere_is_told_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(command: str) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/far/away/figures.pdf")

    monkeypatch.setattr(cli, "build", broken)
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr().err
    assert end.value.code == 6
    assert "/far/away/figures.pdf: No space left on device" in told
    assert "make room" in told


@pytest.mark.parametrize(
    "command",
    [
        ["report", "{run}", "--pdf", "{place}.pdf"],
        ["compare", "{run}", "--csv", "{place}"],
        ["compare", "{run}", "--html", "{place}"],
        ["export", "{run}", "--prometheus", "{place}"],
        ["export", "{run}", "--otlp", "{place}"],
        ["export", "{run}", "--csv", "{file}/csv"],
        ["export", "{run}", "--parquet", "{file}/parquet"],
        ["export", "{run}", "--tensorboard", "{file}/board"],
    ],
    ids=lambda command: " ".join(command[::2]),
)
def test_an_output_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    run, file = tmp_path / "run", tmp_path / "file"
    keep_run(run, Synthetic().records)
    file.touch()
    names = {"run": run, "place": tmp_path / "none" / "out.x", "file": file}
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(sys, "argv", ["edgebed", *(argument.format(**names) for argument in command)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr().err
    assert end.value.code == 6, told
    assert str(tmp_path) in told
    assert "Hint:" in told
