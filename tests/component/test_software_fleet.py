"""The local backend without root: agents that hold their limits themselves, called `software` everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runs.session import standing_fleet
from tests.component._faults import assert_short_work_is_not_too_fast, causes, short_calibration, small_fleet


@pytest.mark.alone
@pytest.mark.mosquitto
async def test_the_software_throttle_holds_and_is_called_so(tmp_path: Path) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="software", dilation="off") as controller:
        assert controller.enforcement == "software"
        good = await short_calibration(controller)
        assert good.passed, causes(good)
        assert_short_work_is_not_too_fast(good)
        held = await controller.backend.held("d0")
        assert not held.read_back  # what was asked for must not come back as if somebody had measured it
        assert (held.cpus, held.uplink_bit_s, held.downlink_bit_s, held.memory_mib) == (None, None, None, None)
        assert "not read back" in held.details["throttle"]
        assert held.cpu_s > 0
