"""`pytest --edgebed-method mine.py` applies the checks of `methods` to those of a plug-in. pytest loads this module by
itself, so it imports nothing before the option is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SUITE = Path(__file__).parent / "suite.py"


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--edgebed-method",
        action="append",
        default=[],
        metavar="FILE|PACKAGE",
        help="check that the methods of this plug-in do what every method of Edgebed must (repeatable)",
    )


def pytest_configure(config: Any) -> None:
    """Collect the checks: alone, where no other tests were named."""
    if config.getoption("edgebed_method"):
        named = config.args_source is type(config).ArgsSource.ARGS
        config.args[:] = [*(config.args if named else []), str(SUITE)]


def pytest_generate_tests(metafunc: Any) -> None:
    if "edgebed_case" in metafunc.fixturenames:
        from orchestrator.testing.methods import CHECKS, cases_of, methods_of, title

        names = [name for each in metafunc.config.getoption("edgebed_method") for name in methods_of(each)]
        metafunc.parametrize("edgebed_case", cases_of(*names), ids=title)
        metafunc.parametrize("edgebed_check", CHECKS, ids=lambda check: check.__name__)
