"""Several fleets on one host, with real cgroups: their quotas fit together, and a fleet whose process was killed does
not count."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgebed.errors import CapacityError
from orchestrator.fleet.host import usable_cores
from orchestrator.fleet.host_cpus import admit, standing
from orchestrator.fleet.profile import dilation_of
from orchestrator.runs.session import standing_fleet
from tests.component._faults import small_fleet

pytestmark = [pytest.mark.root, pytest.mark.mosquitto]

EDGEBED = [sys.executable, "-c", "from orchestrator.cli import main; main()"]
DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def _alone() -> None:
    if others := standing():
        pytest.fail(f"these tests need a host without other fleets: {others}")


async def test_quotas_of_two_fleets_fit_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    cores = usable_cores()
    large = small_fleet(tmp_path / "second", cores, cores)
    lines: list[str] = []
    async with (
        standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as first,
        standing_fleet(large, backend="local", notify=lines.append) as second,
    ):
        quotas = [(await fleet.fleet.held(name)).cpus or 0 for fleet in (first, second) for name in fleet.names]
        assert sum(quotas) == pytest.approx(cores - 2 * 0.5, rel=0.01)
        assert second.dilation > dilation_of(large, "auto", cores)
        assert any("other fleets on this host hold 0.8 CPUs" in line for line in lines)
        with pytest.raises(CapacityError, match=r"hold .* of this host's .* small \(local, process \d+\)"):
            admit("f00000009", "local", [large], "auto")
    assert standing() == []


async def test_an_idle_fleet_counts_until_its_process_is_killed(tmp_path: Path) -> None:
    spec = small_fleet(tmp_path, 0.3)
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}

    def edgebed(*arguments: str) -> Any:
        done = subprocess.run([*EDGEBED, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    await asyncio.to_thread(edgebed, "fleet", "up", str(spec.path), "--backend", "local")
    listed = edgebed("fleet", "ls", "--json")
    (fleet,) = listed["fleets"]
    assert (fleet["name"], fleet["cpus"], listed["left"]) == ("small", 0.3, pytest.approx(listed["cores"] - 0.8))
    doctor = edgebed("doctor", "--json")
    assert doctor["facts"]["taken_cpus"] == pytest.approx(0.8)

    os.kill(fleet["pid"], signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while standing():
        assert time.monotonic() < deadline, standing()
        await asyncio.sleep(0.01)
    async with standing_fleet(spec, backend="local", dilation="off"):
        assert len(standing()) == 1
