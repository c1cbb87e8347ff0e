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
MODULES = {"PyYAML": "yaml", "scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}
EXTRA = [MODULES.get(name, name) for name in PROJECT["optional-dependencies"]["orchestrator"]]


def without_the_extra(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a Python that finds none of the packages of the extra `orchestrator`."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({EXTRA!r}))\n"
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)


def test_the_command_line_names_the_extra_that_is_missing() -> None:
    done = without_the_extra("from orchestrator.__main__ import main; main()")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "the package 'typer' is not installed" in done.stderr
    assert "pip install 'edgebed[orchestrator]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_agent_needs_the_base_dependencies_only() -> None:
    done = without_the_extra("import sys; from edge_agent.__main__ import main; sys.argv[1:] = ['--help']; main()")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--broker" in done.stdout


def test_the_same_version_in_all_places() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert PROJECT["version"].removesuffix(".dev0") == newest[1]
