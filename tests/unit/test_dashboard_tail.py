"""Following a file that grows: torn lines, the index beside it, and when it must not be believed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from orchestrator.dashboard import tail
from orchestrator.dashboard.run_list import RunList, Wanted, make_card
from orchestrator.dashboard.tail import RecordTail, refresh
from orchestrator.records.account import write_summary
from tests.synthetic import Synthetic


def lines(run: Synthetic) -> list[bytes]:
    return [msgspec.json.encode(record) + b"\n" for record in run.records]


def write(folder: Path, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "records.jsonl").write_bytes(content)
    return folder


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    whole = b"".join(lines(Synthetic()))
    follower = RecordTail(write(tmp_path, b""))
    with (tmp_path / "records.jsonl").open("ab") as file:
        for start in range(0, len(whole), 777):
            file.write(whole[start : start + 777])
            file.flush()
            follower.step()
    assert [row.why for row in follower.state.rows] == ["cpu"] * 4
    assert (follower.offset, follower.damaged) == (len(whole), 0)


def test_a_line_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    follower = RecordTail(write(tmp_path, b"".join(lines(Synthetic()))))
    while follower.step(50):
        pass
    assert len(follower.state.rows) == 4


def test_a_damaged_line_is_left_out_and_counted(tmp_path: Path) -> None:
    parts = lines(Synthetic())
    follower = RecordTail(write(tmp_path, b"".join([*parts[:20], b"{half\n", *parts[20:]])))
    follower.catch_up()
    assert follower.damaged == 1
    assert len(follower.state.rows) == 4


def test_the_index_spares_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = lines(Synthetic(rounds=6))
    half = len(parts) // 2
    write(tmp_path, b"".join(parts[:half]))
    refresh(tmp_path)
    write(tmp_path, b"".join(parts))
    seen: list[int] = []
    whole = tail.reduce
    monkeypatch.setattr(tail, "reduce", lambda state, found: (seen.append(len(found)), whole(state, found)))
    again = RecordTail(tmp_path)
    again.catch_up()
    assert sum(seen) <= len(parts) - half
    (tmp_path / "view.msgpack").unlink()
    fresh = RecordTail(tmp_path)
    fresh.catch_up()
    assert [row.seconds for row in again.state.rows] == [row.seconds for row in fresh.state.rows]
    assert again.state.devices == fresh.state.devices


@pytest.mark.parametrize("harm", ["other records", "torn", "other version", "shorter"])
def test_an_index_that_does_not_fit_is_not_believed(tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, b"".join(lines(Synthetic(rounds=6))))
    refresh(tmp_path)
    index, expected = tmp_path / "view.msgpack", 6
    if harm == "other records":
        write(tmp_path, b"".join(lines(Synthetic(rounds=8, method="fedavg"))))
        expected = 8
    elif harm == "torn":
        index.write_bytes(index.read_bytes()[:-100])
    elif harm == "shorter":
        write(tmp_path, b"".join(lines(Synthetic(rounds=2))))
        expected = 2
    else:
        monkeypatch.setattr(tail, "VERSION", tail.VERSION + 1)
    follower = RecordTail(tmp_path)
    assert follower.offset == 0
    follower.catch_up()
    assert len(follower.state.rows) == expected


def test_a_file_that_became_shorter_is_begun_anew(tmp_path: Path) -> None:
    follower = RecordTail(write(tmp_path, b"".join(lines(Synthetic(rounds=6)))))
    follower.catch_up()
    write(tmp_path, b"".join(lines(Synthetic(rounds=2))))
    follower.catch_up()
    assert len(follower.state.rows) == 2


def test_no_records_and_a_folder_that_cannot_be_written_are_no_error(tmp_path: Path) -> None:
    refresh(tmp_path)
    assert not (tmp_path / "view.msgpack").exists()
    follower = RecordTail(write(tmp_path / "run", b"".join(lines(Synthetic()))))
    follower.catch_up()
    follower.index = tmp_path / "nowhere" / "view.msgpack"
    follower.save()


# ---- the list of runs ----


def test_cards_come_from_the_ends_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a", b"".join(lines(Synthetic(rounds=5, accuracy=0.1))))
    card = make_card(tmp_path / "a" / "records.jsonl")
    assert card is not None
    assert (card["rounds"], card["accuracy"], card["ended"], card["devices"]) == (5, 0.5, "rounds done", 3)


def test_a_card_has_the_time_to_target_once_the_summary_is_written(tmp_path: Path) -> None:
    write(tmp_path / "a", b"".join(lines(Synthetic(rounds=5, accuracy=0.2, target=0.5))))
    shelf = RunList(Wanted(library=tmp_path))
    assert [card["time_to_target_s"] for card in shelf.cards()] == [None]
    expected = write_summary(tmp_path / "a").time_to_target_s
    assert expected is not None
    assert expected > 0
    assert [card["time_to_target_s"] for card in shelf.cards()] == [expected]


def test_the_shelf_finds_new_runs_and_leaves_out_others(tmp_path: Path) -> None:
    everything, later = RunList(Wanted(library=tmp_path)), RunList(Wanted(library=tmp_path, since=2e9))
    other = RunList(Wanted(library=tmp_path, experiment="another"))
    assert everything.cards() == []
    write(tmp_path / "a", b"".join(lines(Synthetic())))
    write(tmp_path / "damaged", b"{\n")
    write(tmp_path / "empty", b"")
    assert [card["id"] for card in everything.cards()] == ["a"]
    assert later.cards() == other.cards() == []


def test_two_folders_of_one_name_have_two_ids(tmp_path: Path) -> None:
    for place in ("x", "y"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "run", b"".join(lines(Synthetic())))
    shelf = RunList(Wanted((tmp_path / "x/run", tmp_path / "y/run")))
    assert sorted(card["id"] for card in shelf.cards()) == ["run", "run~2"]
    assert shelf.path("run~2") == tmp_path / "y/run"
