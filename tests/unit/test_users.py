"""Every local agent has a user of its own: no two fleets share one, and one that ends gives its numbers back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgebed.errors import FleetError
from orchestrator.fleet.local import users
from orchestrator.fleet.local.users import BLOCK, Users, closed_to_others

WHOLE = "         0          0 4294967295\n"


@pytest.fixture(autouse=True)
def whole_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "uid_map"
    path.write_text(WHOLE)
    monkeypatch.setattr(users, "UID_MAP", path)
    return path


def test_no_two_agents_of_this_host_are_one_user(tmp_path: Path) -> None:
    fleets = [Users(count, tmp_path) for count in (2, BLOCK + 1, BLOCK)]
    numbers = [number for fleet in fleets for number in fleet.numbers]
    assert len(numbers) >= 2 * BLOCK + 3
    assert len(set(numbers)) == len(numbers)
    assert all(2_000_200_000 < number < 2**31 for number in numbers)
    mine = fleets[0].numbers
    fleets[0].close()
    fleets[0].close()
    assert Users(1, tmp_path).numbers == mine


def test_too_many_agents_are_refused_and_take_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "HOST", (2_100_000_000, 2))
    with pytest.raises(FleetError, match="all 512 ids are taken"):
        Users(2 * BLOCK + 1, tmp_path)
    assert len(Users(2 * BLOCK, tmp_path).numbers) == 2 * BLOCK


def test_a_user_namespace_without_these_numbers_has_lower_ones(tmp_path: Path, whole_map: Path) -> None:
    whole_map.write_text("0 100000 65536\n")
    assert all(1000 < number < 61_184 for number in Users(300, tmp_path).numbers)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are for one user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_that_only_its_owner_may_enter_is_named(open_folder: Path) -> None:
    closed, inside = open_folder / "venv", open_folder / "venv" / "lib"
    for folder in (closed, inside):
        folder.mkdir()
        folder.chmod(0o755)
    assert closed_to_others([str(inside)]) is None
    closed.chmod(0o700)
    assert closed_to_others(["/", str(inside)]) == closed
