"""`--file-times FILE`: the seconds of each test file, fixtures included; all in FILE (JSON), the slowest printed.

With several workers the seconds of a file are the sum over its tests, so they add up to more than the run took.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

SHOWN = 15


class FileTimes:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        slowest_first = {name: round(seconds, 2) for name, seconds in self.seconds.most_common()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(slowest_first, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = table(self.seconds)
        terminalreporter.section(f"seconds per test file ({len(lines)} of {len(self.seconds)}; all in {self.path})")
        for line in lines:
            terminalreporter.write_line(line)


def table(seconds: Counter[str]) -> list[str]:
    return [f"{taken:8.1f}  {name}" for name, taken in seconds.most_common(SHOWN)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--file-times", type=Path, metavar="FILE", help="write the seconds per test file to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--file-times")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FileTimes(path), "file-times")
