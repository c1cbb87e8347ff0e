"""A small fleet file, calibration on a standing fleet, and clean-up checks shared by the backends' tests."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.calibration.calibrate import Calibration, calibrate
from orchestrator.calibration.verdicts import is_slow
from orchestrator.cli import build
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.fleet.making import Making
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet


def small_fleet(folder: Path, *cpus: float) -> FleetSpec:
    """Devices of these quotas, 20 Mbit/s up and 10 down, that fit two cores without dilation."""
    entries = []
    for index, share in enumerate(cpus):
        (folder / f"p{index}.yaml").write_text(
            f"name: d{index}\ncpus: {share}\nuplink_mbit_s: 20\ndownlink_mbit_s: 10\nmemory_mib: 1024\n"
        )
        entries.append(f"  - {{profile: p{index}.yaml, name: d{index}}}\n")
    path = folder / "fleet.yaml"
    path.write_text("name: small\ndevices:\n" + "".join(entries))
    return load_fleet(path)


SHARED_HOST_TRIES = 3
"""A host that others use can be too slow for minutes. It can make a device slow, never fast: only that is repeated."""


async def short_calibration(controller: FleetController) -> Calibration:
    for _ in range(SHARED_HOST_TRIES):
        found = await calibrate(
            controller.backend, controller.limits, controller.membership, short=True, on_row=lambda row: None
        )
        failed = [row for row in found.rows if row.judged and not row.passed]
        if not failed or not all(is_slow(row) for row in failed):
            break
    return found


def assert_short_work_is_not_too_fast(calibration: Calibration) -> None:
    """Pacing: 10 ms of work after a rest take at least their CPU time ÷ CPUs."""
    rows = [row for row in calibration.rows if row.quantity == "grain"]
    assert rows
    assert all(row.error > -0.02 for row in rows), rows


def causes(calibration: Calibration) -> str:
    """Everything that failed, in the words a person would see."""
    failed = [row for row in calibration.rows if row.judged and not row.passed]
    return "; ".join(f"{row.quantity}: {row.cause}" for row in failed)


def calibrates(path: Path, backend: str) -> bool:
    """Whether `edgebed calibrate` finds that every limit of the fleet holds and says so by its exit code."""
    for _ in range(SHARED_HOST_TRIES):
        code, faults = calibrate_by_command(path, backend)
        assert code == bool(faults)
        slow = [cause for causes in faults.values() for cause in causes if "too slow" in cause or "too busy" in cause]
        assert len(slow) == sum(map(len, faults.values())), faults
        if not faults:
            return True
    return False


def calibrate_by_command(path: Path, backend: str) -> tuple[int, dict[str, list[str]]]:
    """Exit code of `edgebed calibrate --short`, and the causes of what failed, by device."""
    result = CliRunner().invoke(build(), ["calibrate", str(path), "--backend", backend, "--short", "--json"])
    outcome = json.loads(result.stdout)
    faults = defaultdict[str, list[str]](list)
    for row in outcome["rows"]:
        if row["judged"] and not row["passed"]:
            faults[row["device"]].append(f"{row['quantity']}: {row['cause']}")
    assert outcome["passed"] is not bool(faults)
    return result.exit_code, dict(faults)


def assert_each_fault_is_named(faults: dict[str, list[str]]) -> None:
    """d0 has eight times its rates, d1 no CPU quota, and what comes to d2 is not shaped."""
    assert {name.partition(":")[0] for name in faults["d0"]} >= {"uplink", "downlink"}
    assert all("mbps (megabytes) used instead of mbit" in cause for cause in faults["d0"] if "link:" in cause)
    assert any(cause.startswith("cpu busy: no CPU quota is set") for cause in faults["d1"])
    assert any(cause.startswith("downlink: the downlink is not shaped, only the uplink is") for cause in faults["d2"])
    assert not any(cause.startswith("uplink") for cause in faults["d1"] + faults["d2"])


def pid_of(controller: FleetController, device: str) -> int:
    """The process of a local device's agent, as the host numbers it."""
    assert isinstance(controller.backend, LocalBackend)
    return controller.backend.pids[device]


def process_status(pid: int) -> dict[str, str]:
    """/proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


async def waits_for_threads(close: asyncio.Task[None], ending: asyncio.Event) -> bool:
    """Whether a fleet that is being closed has come to wait for its threads, and has not just ended."""
    async with asyncio.timeout(30):
        await asyncio.wait([close, asyncio.create_task(ending.wait())], return_when=asyncio.FIRST_COMPLETED)
    for _ in range(20):
        await asyncio.sleep(0)
    return not close.done()


def watch_end(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a fleet begins to wait for its threads."""
    ending, end = asyncio.Event(), Making.end

    async def watched(making: Making) -> None:
        ending.set()
        await end(making)

    monkeypatch.setattr(Making, "end", watched)
    return ending
