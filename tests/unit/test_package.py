"""The package as it is installed: what works without the extra `orchestrator`, and what its metadata say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = ROOT / "requirements"
PACKAGE = re.compile(r"^([a-z0-9.-]+)==([^\s;]+)([^\n]*)((?:\n    --hash=sha256:[0-9a-f]{64}[^\n]*)*)", re.MULTILINE)
MODULES = {"PyYAML": "yaml", "scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}
WANTED = [re.split("[<>=]", each)[0] for each in PROJECT["optional-dependencies"]["orchestrator"]]
EXTRA = {MODULES.get(name, name) for name in WANTED} - {"torch"}
AGENT = "from edge_agent.entry import main; sys.argv[1:] = ['device', '--help']; main()"


def without(packages: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a Python that finds none of these packages."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({packages!r}))\n"
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)


def without_the_extra(code: str) -> subprocess.CompletedProcess[str]:
    return without(EXTRA, code)


def test_the_command_line_names_the_extra_that_is_missing() -> None:
    done = without_the_extra("from orchestrator.__main__ import main; main()")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "the package 'typer' is not installed" in done.stderr
    assert "pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_agent_needs_the_base_dependencies_only() -> None:
    done = without_the_extra(AGENT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--broker" in done.stdout


def test_a_board_installs_no_torch_and_is_told_which_to_take() -> None:
    assert "torch" not in named(PROJECT["dependencies"])
    assert PROJECT["optional-dependencies"]["torch"] == ["torch"]
    done = without({"torch"}, AGENT)
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch is not installed" in done.stderr
    assert "install the torch that the maker of the board offers" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_board_joins_and_waits_without_loading_torch() -> None:
    done = without({"torch"} | EXTRA, AGENT.replace("'device'", "'join'"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "--service" in done.stdout


def test_the_command_line_names_the_python_that_it_needs() -> None:
    code = "sys.version_info = (3, 10, 13); from orchestrator.__main__ import main; main()"
    done = without(set(), code)
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
    assert "edgebed-agent, works with 3.10" in done.stderr


def test_the_same_version_in_all_places() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert PROJECT["version"].removesuffix(".dev0") == newest[1]


# ---- the locks ----


def locked(name: str, without: str = "no marker") -> dict[str, set[str]]:
    """The versions of every package in a lock; more than one where they depend on the Python version. `without`: leave
    out those for which it stands in the marker."""
    versions: dict[str, set[str]] = {}
    for package, version, marker, hashes in PACKAGE.findall((LOCKS / name).read_text("utf-8")):
        assert hashes or name == "torch.txt", f"{name}: {package} has no hash"
        if without not in marker:
            versions.setdefault(package, set()).add(version)
    return versions


def named(requirements: list[str]) -> set[str]:
    """Names as the locks write them, without extras and versions."""
    names = (re.split(r"[\[>=<;! ]", text)[0].lower().replace("_", "-").replace(".", "-") for text in requirements)
    return {name for name in names if name != "edgebed"}


def test_every_package_that_is_asked_for_is_locked() -> None:
    base, extras = PROJECT["dependencies"], PROJECT["optional-dependencies"]
    by_version = {"torch", "torchvision"}
    assert (
        named([*base, *(text for extra in extras.values() for text in extra)]) <= set(locked("all.lock")) | by_version
    )
    assert named(base) <= set(locked("agent.lock")) | by_version
    assert set(locked("torch.txt")) == by_version
    assert set(locked("installer.lock")) == {"uv"}


def test_the_locks_agree_and_leave_the_build_of_torch_to_the_index() -> None:
    everything = locked("all.lock")
    for name in ("agent.lock", "installer.lock"):
        assert {package: everything[package] for package in locked(name)} == locked(name, "< '3.11'")
    assert [name for name in everything if re.match("torch|triton|nvidia|cuda", name)] == []


def test_no_lock_names_a_host() -> None:
    for path in LOCKS.glob("*"):
        assert re.search(r"https?://|index-url|find-links", path.read_text("utf-8")) is None, path
