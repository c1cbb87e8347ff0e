"""A training run over a broker of the user's own, behind TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.records.types import DeviceOut, RoundFinished, RunFinished
from tests.component._foreign import Foreign
from tests.e2e.rig import experiment, fleet_up

DEVICES = ("dev-1", "dev-2", "dev-3")


@pytest.mark.root
@pytest.mark.mosquitto
async def test_a_run_over_a_broker_behind_tls(tmp_path: Path) -> None:
    """Each device has a user of its own there, and the broker holds the rights of `edgebed broker acl`."""
    wanted = experiment(rounds=2, max_batches=8)
    (tmp_path / "broker").mkdir()
    users = {name: f"of {name}" for name in (ORCHESTRATOR, *DEVICES)}
    async with (
        Foreign(tmp_path / "broker", users).running() as foreign,
        fleet_up(tmp_path, wanted, own=foreign.own()) as fleet,
        fleet.run(wanted, tmp_path) as run,
    ):
        assert fleet.controller.broker.kind == foreign.own().url
        await run.finish()
        assert [end.why for end in run.of(RunFinished)] == ["rounds done"]
        assert [each.merged for each in run.of(RoundFinished)] == [DEVICES, DEVICES]
        assert not run.of(DeviceOut)
