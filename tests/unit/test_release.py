"""`.ci/release` refuses placeholders and open steps by name, and `.ci/sbom` lists what the locks name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
FINAL = VERSION.removesuffix(".dev0")
READ = (".ci/release", *FILES, "docker/Dockerfile.agent", "requirements/torch.txt")
FILLED = {
    "example.invalid": "edgebed.example.org",
    "Edgebed developers": "A. Person",
    "10.0000/placeholder": "10.5281/zenodo.1234567",
    f"{FINAL}.dev0": FINAL,
    f"{FINAL} (not released)": f"{FINAL} (2027-01-31)",
    "license: Apache-2.0": "license: Apache-2.0\ndate-released: 2027-01-31",
    "python:3.11-slim-bookworm": f"python:3.11-slim-bookworm@sha256:{'0' * 64}",
    "iproute2 ": "iproute2=6.1.0-3 ",
    "torch==2.13.0": f"torch==2.13.0 --hash=sha256:{'0' * 64}",
}


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "tag.gpgSign=false", "-c", "commit.gpgSign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that the script reads, all filled in, committed and tagged."""
    for name in READ:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        text = (ROOT / name).read_text("utf-8")
        for here, there in FILLED.items() if name != ".ci/release" else ():
            text = text.replace(here, there)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    git(tmp_path, "tag", f"v{FINAL}")
    return tmp_path


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a")


def left(folder: Path, **more: str) -> list[str]:
    """The steps that are left; the exit code says whether there are any."""
    given = {"SIGNING_KEY": "key", "EDGEBED_GUEST": "vm"} | more
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | given
    done = subprocess.run([".ci/release", "--list"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    found = [line.removeprefix("NOT DONE: ") for line in done.stdout.splitlines() if line.startswith("NOT DONE: ")]
    assert done.returncode == bool(found), done.stderr
    return found


def test_nothing_is_left_of_a_tree_that_is_filled_in(tree: Path) -> None:
    assert left(tree) == []
    assert [each.split()[0] for each in left(tree, SIGNING_KEY="", EDGEBED_GUEST="")] == ["run", "name"]


@pytest.mark.parametrize("text", FILLED)
def test_each_placeholder_and_each_open_step_is_named(tree: Path, text: str) -> None:
    for name in READ[1:]:
        content = (tree / name).read_text()
        (tree / name).write_text(content.replace(FILLED[text], text))
    assert left(tree)[0].startswith(("commit ", "replace ", "set ", "write ", "pin ", "put "))
    assert any(each.startswith("commit ") for each in left(tree))
    commit(tree)
    git(tree, "tag", "--force", f"v{FINAL}")
    assert [each for each in left(tree) if not each.startswith("commit ")] != []


def test_a_commit_without_its_tag_is_refused(tree: Path) -> None:
    (tree / "more").write_text("x")
    commit(tree)
    assert left(tree) == [f"tag this commit: git tag -s v{FINAL}"]


def test_the_tree_names_its_own_placeholders() -> None:
    """Else the release could not refuse them."""
    found = " ".join(left(ROOT))
    for name, text, what in (("pyproject.toml", "example.invalid", "repository"), ("CITATION.cff", "10.0000/", "DOI")):
        assert (text in (ROOT / name).read_text("utf-8")) == (f"placeholder of the {what}" in found)


def test_the_list_of_packages_has_all_that_a_lock_names(tmp_path: Path) -> None:
    debian = tmp_path / "packages.txt"
    debian.write_text("iproute2 6.1.0-3\n")
    command = [sys.executable, str(ROOT / ".ci" / "sbom"), "0.3.0", "agent.lock", "torch.txt", str(debian)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    names = {each["name"] for each in found["components"]}
    assert {"numpy", "torch", "iproute2"} <= names
    lines = (ROOT / "requirements" / "agent.lock").read_text("utf-8").splitlines()
    locked = [line.partition("==")[0] for line in lines if "==" in line and line[0].isalnum()]
    assert len(locked) > 10
    assert sorted(locked) == sorted(each["name"] for each in found["components"] if "hashes" in each)
    assert found["components"][-1]["purl"] == "pkg:deb/debian/iproute2@6.1.0-3"
