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
}
GIVEN = {
    "SIGNING_KEY": "key",
    "EDGEBED_GUEST": "vm",
    "TORCH_WHEEL": f"torch @ https://whl.example.org/torch-2.13.0-cp311-cp311-linux_x86_64.whl#sha256={'0' * 64}",
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
    given = GIVEN | more
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | given
    done = subprocess.run([".ci/release", "--list"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    found = [line.removeprefix("NOT DONE: ") for line in done.stdout.splitlines() if line.startswith("NOT DONE: ")]
    assert done.returncode == bool(found), done.stderr
    return found


def test_nothing_is_left_of_a_tree_that_is_filled_in(tree: Path) -> None:
    assert left(tree) == []
    assert [each.split()[0] for each in left(tree, **dict.fromkeys(GIVEN, ""))] == ["name", "run", "name"]
    assert [each.split()[:3] for each in left(tree, TORCH_WHEEL="torch==2.13.0")] == [["name", "the", "image's"]]


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


STUBS = {
    "make": "mkdir -p build/dist && echo wheel >build/dist/edgebed-1-py3-none-any.whl",
    "docker": 'echo "$*" >>build/docker; echo amd64 1',
    "ssh-keygen": 'for last; do :; done; echo signed >"$last.sig"',
}


def test_what_was_not_checked_is_neither_ready_nor_signed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tree / ".gitignore").write_text("build\n.venv\n")
    for name in (".ci/sbom", "requirements/all.lock", "requirements/agent.lock"):
        shutil.copy(ROOT / name, tree / name)
    commit(tree)
    git(tree, "tag", "--force", f"v{FINAL}")
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".venv" / "bin" / "python").symlink_to(sys.executable)
    programs = tmp_path_factory.mktemp("programs")
    for name, does in STUBS.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= GIVEN | {"PATH": f"{programs}:{env['PATH']}"}

    def released(*words: str) -> tuple[int, bool, bool]:
        done = subprocess.run([".ci/release", *words], cwd=tree, env=env, capture_output=True, text=True, check=False)
        assert (tree / "build" / "dist" / "SHA256SUMS").is_file(), done.stderr
        return done.returncode, "Ready." in done.stdout, (tree / "build" / "dist" / "SHA256SUMS.sig").is_file()

    assert released() == (0, True, True)
    assert f"--build-arg TORCH={GIVEN['TORCH_WHEEL']} " in (tree / "build" / "docker").read_text()
    assert released("--no-check") == (1, False, False)


def test_the_tree_names_its_own_placeholders() -> None:
    """Else the release could not refuse them."""
    found = " ".join(left(ROOT))
    for name, text, what in (("pyproject.toml", "example.invalid", "repository"), ("CITATION.cff", "10.0000/", "DOI")):
        assert (text in (ROOT / name).read_text("utf-8")) == (f"placeholder of the {what}" in found)


def test_the_list_of_packages_has_all_that_a_lock_names(tmp_path: Path) -> None:
    debian = tmp_path / "packages.txt"
    debian.write_text("libstdc++6 1:12.2.0-14+b1\niproute2 6.1.0-3\n")
    command = [sys.executable, str(ROOT / ".ci" / "sbom"), "0.3.0", "agent.lock", "torch.txt", str(debian)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    names = {each["name"] for each in found["components"]}
    assert {"numpy", "torch", "iproute2"} <= names
    lines = (ROOT / "requirements" / "agent.lock").read_text("utf-8").splitlines()
    locked = [line.partition("==")[0] for line in lines if "==" in line and line[0].isalnum()]
    assert len(locked) > 10
    assert sorted(locked) == sorted(each["name"] for each in found["components"] if "hashes" in each)
    assert [each["purl"] for each in found["components"][-2:]] == [
        "pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14%2Bb1",
        "pkg:deb/debian/iproute2@6.1.0-3",
    ]
