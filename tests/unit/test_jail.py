"""What an agent's own file system is made of."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

import pytest

import edge_agent
import edgebed
from edge_agent import jail


def test_what_lies_in_another_place_is_named_once_and_links_keep_their_ends(tmp_path: Path) -> None:
    for name in ("venv/lib", "base/python", "apart"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "venv" / "link").symlink_to(tmp_path / "base" / "python")
    wanted = [tmp_path / name for name in ("venv/link", "venv/lib", "venv", "missing")]
    found = jail.outermost([str(path) for path in wanted])
    assert found == [str(tmp_path / "base" / "python"), str(tmp_path / "venv")]
    assert jail.outermost(["/"]) == []


def test_the_folder_that_somebody_stands_in_is_no_part_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "packages"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    checkout = os.path.dirname(os.path.dirname(str(edgebed.__file__)))
    monkeypatch.setattr(sys, "path", [os.getcwd(), checkout, str(elsewhere), "/no/such"])
    found = jail.program()
    assert str(elsewhere) in found
    assert {os.path.dirname(str(package.__file__)) for package in (edge_agent, edgebed)} <= set(found)
    assert not {os.getcwd(), checkout, "/no/such"} & set(found)
    monkeypatch.setattr(site, "getusersitepackages", lambda: checkout)
    assert checkout in jail.program()  # installed there with `pip install --user`, beside the packages that it needs
