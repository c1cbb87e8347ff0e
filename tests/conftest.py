"""What every test shares: skips with a reason on a laptop; failures instead where `EDGEBED_REQUIRE` says so."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.file_times import pytest_addoption, pytest_configure  # noqa: F401  # pytest calls them
from tests.hangs import (  # noqa: F401  # pytest and pytest-timeout call them
    pytest_runtest_protocol,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
)

if importlib.util.find_spec("xdist") is not None:
    from tests.one_fleet import pytest_xdist_make_scheduler  # noqa: F401  # xdist calls it

torch.set_num_threads(1)
os.environ["EDGEBED_CACHE"] = str(Path(tempfile.gettempdir()) / "edgebed-tests-without-cache")  # nothing measured here
# A loaded host may hold up any one example for longer than any deadline.
hypothesis.settings.register_profile("edgebed", deadline=None)
hypothesis.settings.load_profile("edgebed")

ORCHESTRATORS = re.compile(
    r"^\s*(from|import) (orchestrator(?!\.testing\.rounds)|benchmarks|PIL|yaml|tests\."
    r"(equality|contract\.models|summaries|virtual|unit\._(assignments|boards|fleets|runs)))\b",
    re.MULTILINE,
)
"""What a test imports that cannot run where only the agent is installed (`make test-agent`)."""
AGENT_ONLY = importlib.util.find_spec("typer") is None

NEEDS = ("guest", "root", "docker", "swarm", "mosquitto", "data", "browser")


@functools.cache
def missing(need: str) -> str:
    """Why `need` is not to be had here; empty when it is."""
    if need == "root":
        if os.geteuid() != 0:
            return "not root"
        tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        return f"no {', '.join(tools)}: install iproute2" if tools else ""
    if need == "docker":
        return _missing_docker()
    if need == "swarm":
        program = os.environ.get("EDGEBED_SWARM_UP", "")
        return "" if os.access(program, os.X_OK) else "EDGEBED_SWARM_UP names no program that joins engines to a Swarm"
    if need == "mosquitto":
        return "" if shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin") else "no mosquitto"
    if need == "browser":
        return _missing_browser()
    if need == "guest":
        return _missing_guest()
    assert need == "data"
    folder = os.environ.get("EDGEBED_DATA", "")
    return "" if folder and Path(folder).is_dir() else "EDGEBED_DATA names no folder with data sets"


def _missing_guest() -> str:
    """Why this is not a machine as most users have it: cgroups of version 2 under systemd, and netem."""
    if not Path("/sys/fs/cgroup/cgroup.controllers").is_file():
        return "this host has cgroups of version 1 (tests/guest/run says how to boot another one)"
    if not Path("/run/systemd/system").is_dir():
        return "systemd does not run this host (tests/guest/run says how to boot another one)"
    if os.geteuid() == 0 and subprocess.run(["modprobe", "sch_netem"], capture_output=True).returncode:
        return "this kernel has no netem (sch_netem)"
    return missing("root")


def _missing_docker() -> str:
    try:
        import docker
        import docker.errors

        docker.from_env(timeout=10).ping()
    except Exception as error:
        return f"no Docker engine: {error}"
    return ""


def _missing_browser() -> str:
    try:
        import playwright.async_api  # noqa: F401
    except ImportError:
        return "no playwright: make setup"
    return "" if shutil.which("chromium") else "no Chromium: apt-get install chromium"


def required() -> set[str]:
    return {need for need in os.environ.get("EDGEBED_REQUIRE", "").split(",") if need}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if not AGENT_ONLY or collection_path.suffix != ".py":
        return None
    return bool(ORCHESTRATORS.search(collection_path.read_text("utf-8"))) or None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in NEEDS:
        if item.get_closest_marker(need) and (why := missing(need)):
            if need in required():
                pytest.fail(f"EDGEBED_REQUIRE says {need}, but: {why}", pytrace=False)
            pytest.skip(f"needs {need}: {why}")


def _excused(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Whether a skip is for want of something that EDGEBED_REQUIRE does not name; nothing else excuses one there."""
    said = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    return any(f"needs {need}:" in said for need in set(NEEDS) - required())


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if required() and report.skipped and not hasattr(report, "wasxfail") and not _excused(report):
        report.outcome = "failed"
        report.longrepr = f"EDGEBED_REQUIRE is set, so nothing may skip; {report.nodeid} did: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.fixture
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs leave out their calibration, which has tests of its own. It takes 7 s, beside other tests a minute."""
    from orchestrator.runs import session

    async def left_out(*_: object) -> session.Calibration:
        return session.Calibration((), False)

    monkeypatch.setattr(session, "calibrate_fleet", left_out)
