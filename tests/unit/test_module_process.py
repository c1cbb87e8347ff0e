"""The command that starts a module of ours: what the module finds there, and that every child is started by it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgebed.module_process import folders_of_environment, module_command

ROOT = Path(__file__).parents[2]
PRODUCT = [path for name in ("edgebed", "orchestrator", "edge_agent") for path in (ROOT / name).rglob("*.py")]
TELL = """
import json, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "name": __name__, "is_main": vars(main) is globals(), "spec": __spec__.name, "path": sys.path,
}))
"""
PRINT = "import json, os, sys; from edgebed.module_process import module_command as f; print(json.dumps(f('told')))"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in PYTHONPATH with the module `told` and the package `whole`. We are in another one."""
    folder, here = tmp_path / "lib", tmp_path / "here"
    (folder / "whole").mkdir(parents=True)
    for path in (folder / "told.py", folder / "whole" / "__main__.py"):
        path.write_text(TELL)
    (folder / "whole" / "__init__.py").touch()
    here.mkdir()
    (here / "told.py").write_text("raise SystemExit('of the current directory')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.chdir(here)
    return folder


def said(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", ["told", "whole"])
def test_a_module_finds_what_it_finds_with_m(told: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(module_command(module, "--", "-x", "a b", ""))
    monkeypatch.chdir(told)
    expected = said([sys.executable, "-m", module, "--", "-x", "a b", ""])
    assert found.pop("path") != expected.pop("path")
    assert found == expected
    assert found["argv"][1:] == ["--", "-x", "a b", ""]


def test_folders_of_the_environment_come_between_the_standard_library_and_the_installed_packages(told: Path) -> None:
    path = said(module_command("told"))["path"]
    places = [path.index(each) for each in (sysconfig.get_path("stdlib"), str(told), sysconfig.get_path("purelib"))]
    assert places == sorted(places)
    assert str(ROOT) in path
    assert os.getcwd() not in path


def test_the_current_directory_is_left_out_however_it_is_named(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, gone, link = Path.cwd(), told / "gone", told / "link"
    link.symlink_to(here)
    named = ["", ".", "../here", str(here), f"{here}/", str(link), str(gone), str(told), "lib", str(told.parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(named))
    monkeypatch.setattr(sys, "path", ["", *map(os.path.abspath, named[:-1])])  # the last one is in force nowhere
    assert folders_of_environment() == [str(told)]


def test_in_our_own_folder_it_is_the_last(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer in the checkout."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", f"{told}{os.pathsep}{ROOT}{os.pathsep}")
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    path = said(module_command("told"))["path"]
    assert path[-1] == str(ROOT)
    assert path.count(str(ROOT)) == path.count(str(told)) == 1


def test_a_child_has_our_packages_as_its_parent_has_them(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Edgebed is installed beside the one in PYTHONPATH."""
    venv.create(told / "venv", with_pip=False)
    python = told / "venv" / "bin" / "python"
    other = told / "venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (other / "edgebed").mkdir()
    (other / "edgebed" / "__init__.py").write_text("raise SystemExit('of another installation')")
    (told / "told.py").write_text("import edgebed, json; print(json.dumps(edgebed.__file__))")
    monkeypatch.setenv("PYTHONPATH", f"{told}{os.pathsep}{ROOT}")
    command = said([str(python), "-P", "-c", PRINT] if sys.version_info >= (3, 11) else [str(python), "-c", PRINT])
    assert command[0] == str(python)
    assert said(command) == str(ROOT / "edgebed" / "__init__.py")


def test_an_error_of_the_module_ends_the_process_as_with_m(told: Path) -> None:
    (told / "told.py").write_text("import sys; sys.exit(7)")
    assert subprocess.run(module_command("told"), check=False).returncode == 7
    done = subprocess.run(module_command("nobody"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No module named nobody" in done.stderr


# ---- who starts Python ----


def starts_by_m(source: str) -> Iterator[int]:
    """Lines with a list, a tuple or a call that has `sys.executable` and then "-m" in it."""
    for node in ast.walk(ast.parse(source)):
        parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
        parts = node.args if isinstance(node, ast.Call) else parts
        texts = [ast.unparse(part) for part in parts]
        for index, text in enumerate(texts):
            if text in ("'-m'", "'-c'", "'-'") and "sys.executable" in texts[:index] and "'-I'" not in texts[:index]:
                yield node.lineno


def test_no_child_of_ours_is_started_with_the_current_directory_on_its_path() -> None:
    assert len(PRODUCT) > 300
    found = [f"{path.relative_to(ROOT)}:{line}" for path in PRODUCT for line in starts_by_m(path.read_text("utf-8"))]
    assert found == [], "take edgebed.module_process.module_command"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("run([sys.executable, '-m', 'orchestrator'])", True),
        ("run((sys.executable, '-u', '-m', 'orchestrator'))", True),
        ("run(sys.executable, '-m', 'orchestrator', env=env)", True),
        ("run(*(sys.executable, '-m', 'orchestrator'))", True),
        ("run(sys.executable, '-c', 'import json')", True),
        ("run(sys.executable, '-I', '-S', '-c', 'import json')", False),
        ("run(*module_command('orchestrator'))", False),
    ],
)
def test_a_start_with_m_is_seen(source: str, wrong: bool) -> None:
    assert bool(list(starts_by_m(source))) is wrong
