"""The import contracts of pyproject.toml cover every module, and all modules that call themselves pure. No file is too
long."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from tests.equality.structure import LONG_FILE, PACKAGES, contract_names, module_name

ROOT = Path(__file__).parents[2]
FILES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")) if path.name != "__init__.py"]
PYPROJECT = ROOT / "pyproject.toml"


def within(file: Path, names: set[str]) -> bool:
    module = module_name(file.relative_to(ROOT))
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_every_module_stands_in_a_contract() -> None:
    named = contract_names(PYPROJECT)
    assert [file for file in FILES if not within(file, named)] == []


def test_a_module_that_calls_itself_pure_stands_in_the_contract_of_pure_modules() -> None:
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = [set(each["source_modules"]) for each in contracts if each["name"].startswith("Pure modules")]
    claims = [
        file
        for file in FILES
        if re.search(r"\bPure\b", ast.get_docstring(ast.parse(file.read_text()), clean=False) or "")
    ]
    assert len(claims) > 50
    assert [file for file in claims if not within(file, pure)] == []


def test_no_product_file_has_more_than_400_lines() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in FILES}
    long = {name: lines for name, lines in lengths.items() if lines > LONG_FILE}
    assert long == {}, "split it where two things meet"
