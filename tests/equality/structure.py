"""How large the code is, and what no import contract holds: `python -m tests.equality structure [--checkout PATH]`.

A function's lines are those of its `def` with its body and docstring, as `ast` counts them, without decorators. A
module stands in a contract where a contract of pyproject.toml names it or a package above it. The contracts "edgebed
imports nobody" and "The two sides" do not count: they name root packages, so every module stands in one of them. The
`__init__` of packages are counted as modules and as lines, and left out of "modules in no contract".
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("edgebed", "orchestrator", "edge_agent")
LONG_FILE, SHORT_FUNCTION = 400, 25


def show(checkout: Path) -> None:
    """Print the figures of a checkout."""
    files = {name: sorted((checkout / name).rglob("*.py")) for name in PACKAGES}
    lines = {file: len(file.read_text().splitlines()) for each in files.values() for file in each}
    for name, each in files.items():
        print(f"{name:<14} {len(each):>4} modules {sum(lines[file] for file in each):>7} lines")
    print(f"{'in all':<14} {len(lines):>4} modules {sum(lines.values()):>7} lines")
    longest = max(lines, key=lambda file: lines[file])
    print(f"longest file: {longest.relative_to(checkout)}, {lines[longest]} lines")
    _list(
        f"files over {LONG_FILE} lines", [f"{f.relative_to(checkout)} ({n})" for f, n in lines.items() if n > LONG_FILE]
    )
    _show_functions([length for file in lines for length in function_lines(file)])
    _show_contracts(checkout, list(lines))


def _show_functions(lengths: list[int]) -> None:
    short = sum(length < SHORT_FUNCTION for length in lengths)
    share = f"{100 * short / len(lengths):.1f} %"
    print(f"functions: {len(lengths)}, under {SHORT_FUNCTION} lines: {share}; the longest has {max(lengths)} lines")


def _show_contracts(checkout: Path, files: list[Path]) -> None:
    named = contract_names(checkout / "pyproject.toml")
    modules = [module_name(file.relative_to(checkout)) for file in files if file.name != "__init__.py"]
    outside = [module for module in modules if not any(_within(module, name) for name in named)]
    for package in PACKAGES:
        _list(f"{package}: modules in no contract", [each for each in outside if _within(each, package)])
    print(f"modules in no contract: {len(outside)}")


def function_lines(file: Path) -> Iterator[int]:
    """Lines of every function and method of a file, nested ones too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def contract_names(pyproject: Path) -> set[str]:
    """Modules and packages that contracts are about; the root packages are left out."""
    found: set[str] = set()
    for contract in tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]:
        found.update(contract.get("modules", []), contract.get("source_modules", []))
        layers = {name.strip(" ()") for layer in contract.get("layers", []) for name in re.split(r"[|:]", layer)}
        containers = contract.get("containers", [])
        found.update({f"{container}.{name}" for container in containers for name in layers} if containers else layers)
    return {name.removesuffix(".*").removesuffix(".**") for name in found} - set(PACKAGES)


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def _within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _list(title: str, entries: list[str]) -> None:
    print(f"{title}: {len(entries)}")
    for entry in entries:
        print(f"  {entry}")
