"""`--file-times` adds up the seconds of each test file, fixtures included, and writes the slowest first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.file_times import FileTimes, table


def report(nodeid: str, when: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, when, duration=seconds)  # type: ignore[arg-type]


def test_the_seconds_of_a_file_are_those_of_all_its_tests_and_fixtures(tmp_path: Path) -> None:
    times = FileTimes(tmp_path / "made" / "times.json")
    for nodeid, when, seconds in [
        ("tests/quick.py::test_one", "call", 0.25),
        ("tests/slow.py::test_one", "setup", 1.0),
        ("tests/slow.py::Group::test_two[a::b]", "call", 2.0),
        ("tests/slow.py::test_one", "teardown", 0.5),
    ]:
        times.pytest_runtest_logreport(report(nodeid, when, seconds))
    times.pytest_sessionfinish()
    written = json.loads(times.path.read_text())
    assert list(written.items()) == [("tests/slow.py", 3.5), ("tests/quick.py", 0.25)]
    assert [line.split() for line in table(times.seconds)] == [["3.5", "tests/slow.py"], ["0.2", "tests/quick.py"]]
