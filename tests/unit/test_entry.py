"""The commands, `python -m` and the Python API refuse packages of others that have the names of ours, unrun."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import edge_agent
import orchestrator
from edgebed.entry import MARK

ROOT = Path(__file__).parents[2]
EDGEBED = ("-c", "from edgebed.entry import command_line; command_line()", "--help")
AGENT = ("-c", "from edgebed.entry import agent; agent()", "join", "--help")
CHECK = "from edgebed.entry import check_packages; check_packages('orchestrator', 'edge_agent')"
FOREIGN = "raise SystemExit('it was run')\n"


def plant(folder: Path, package: str, text: str = FOREIGN) -> Path:
    """A package of another, whose `__init__` must not be run."""
    path = folder / package / "__init__.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def python(*arguments: str, path: list[Path], here: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with these folders before all that is installed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=here)


@pytest.mark.parametrize(
    ("package", "program", "name"),
    [
        ("edge_agent", EDGEBED, "edgebed"),
        ("orchestrator", EDGEBED, "edgebed"),
        ("edge_agent", AGENT, "edgebed-agent"),
        ("edge_agent", ("-m", "orchestrator", "--help"), "edgebed"),
    ],
)
def test_a_package_of_another_that_is_found_first_is_refused(
    tmp_path: Path, package: str, program: tuple[str, ...], name: str
) -> None:
    planted = plant(tmp_path / "lib", package)
    done = python(*program, path=[tmp_path / "lib", ROOT], here=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"{name}: the package {package!r} at {planted} does not belong to this Edgebed, which is in {ROOT}\n"
    assert done.stderr.startswith(expected)
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_behind_ours_is_in_nobodys_way(tmp_path: Path) -> None:
    for package in ("edge_agent", "orchestrator"):
        plant(tmp_path / "lib", package)
    for program in (EDGEBED, AGENT):
        assert python(*program, path=[ROOT, tmp_path / "lib"], here=tmp_path).returncode == 0


def test_an_agent_does_not_mind_an_orchestrator_of_another(tmp_path: Path) -> None:
    plant(tmp_path / "lib", "orchestrator")
    assert python(*AGENT, path=[tmp_path / "lib", ROOT], here=tmp_path).returncode == 0


@pytest.mark.parametrize(("package", "module"), [("orchestrator", "orchestrator"), ("edge_agent", "edge_agent.entry")])
def test_ours_is_refused_beside_the_edgebed_of_another_installation(tmp_path: Path, package: str, module: str) -> None:
    """`python -m` in a copy of ours, where Python finds `edgebed` somewhere else."""
    for file in (ROOT / package).glob("*.py"):
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / file.name).write_text(file.read_text())
    done = python("-m", module, "--help", path=[ROOT], here=tmp_path)
    assert done.returncode == 2
    assert f"the package {package!r} at {tmp_path}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_another_installation_has_written_over_ours_is_refused_with_who_did_it(tmp_path: Path) -> None:
    """Both are in one folder of packages."""
    site = tmp_path / "site"
    plant(site, "edge_agent")
    (site / "edgebed").symlink_to(ROOT / "edgebed")
    other = site / "edge_thing-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: edge-thing\nVersion: 1.0\n")
    (other / "top_level.txt").write_text("edge_agent\n")
    done = python(*AGENT, path=[site], here=tmp_path)
    assert done.returncode == 2
    assert "pip uninstall edge-thing, then pip install --force-reinstall --no-deps edgebed-*.whl" in done.stderr


@pytest.mark.parametrize("text", ["def broken(:\n", None])
def test_what_cannot_be_read_is_not_ours(tmp_path: Path, text: str | None) -> None:
    """A file that is no Python; a folder without `__init__`, which Python takes where it finds no package."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "edgebed").symlink_to(ROOT / "edgebed")
    planted = plant(tmp_path / "site", "edge_agent", text or "")
    if text is None:
        planted.unlink()
    # Without the finder of an editable installation, which would find ours.
    alone = "import sys; sys.meta_path = [each for each in sys.meta_path if 'frozen' in each.__module__]"
    code = f"{alone}; sys.path.insert(0, {str(tmp_path / 'site')!r}); {CHECK}"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: the package 'edge_agent' at " in done.stderr


def test_the_api_names_it_as_an_import_error(tmp_path: Path) -> None:
    plant(tmp_path / "lib", "edge_agent")
    done = python("-c", "import edgebed; edgebed.run", path=[tmp_path / "lib", ROOT], here=tmp_path)
    last = done.stderr.strip().splitlines()
    assert last[-2].startswith(f"ImportError: the package 'edge_agent' at {tmp_path}")
    assert last[-1].startswith("Hint: take that folder off the module path")


def test_ours_are_known_in_a_checkout_and_in_an_archive(tmp_path: Path) -> None:
    assert orchestrator.BELONGS_TO == edge_agent.BELONGS_TO == MARK
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("edgebed", "edgebed/wire", "edge_agent", "orchestrator"):
            for file in (ROOT / name).glob("*.py"):
                archive.write(file, file.relative_to(ROOT))
    where = "import edgebed; print(edgebed.__file__)"
    for place in (ROOT, tmp_path / "all.zip"):
        done = python("-c", f"{CHECK}; {where}", path=[place], here=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(str(place))


def test_the_commands_begin_where_the_packages_are_looked_at() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"edgebed": "edgebed.entry:command_line", "edgebed-agent": "edgebed.entry:agent"}


def test_nothing_heavy_is_loaded_to_look(tmp_path: Path) -> None:
    heavy = ("orchestrator", "edge_agent", "msgspec", "torch", "numpy", "importlib.metadata")
    code = f"import sys; {CHECK}; print([name for name in {heavy!r} if name in sys.modules])"
    assert python("-c", code, path=[ROOT], here=tmp_path).stdout.strip() == "[]"
