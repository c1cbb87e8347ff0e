"""CPUs of the server's own: set on the trainer's process, read back, lifted for tests of weights, removed."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import torch

from edgebed.limits.cgroups import Cgroup
from orchestrator.fleet import leftovers
from orchestrator.fleet.host.server_quota import ServerQuota
from orchestrator.testing.rounds import make_method, small_model
from orchestrator.training.process import TrainerProcess


class Watched(ServerQuota):
    lifted = 0

    def lift(self) -> None:
        super().lift()
        self.lifted += 1


@pytest.mark.root
@pytest.mark.parametrize("cpus", [0.25, 0.004])
async def test_the_process_has_the_quota_until_both_end(cpus: float) -> None:
    fleet_id = f"f{uuid.uuid4().hex[:8]}"
    quota, cgroup = Watched(fleet_id, 3, cpus), Cgroup.named(f"{fleet_id}-3")
    async with TrainerProcess.started() as process:
        await process.ready()
        assert await asyncio.to_thread(quota.open, process.pid) == pytest.approx(cpus, rel=0.01)
        await process.limit(quota, cpus)
        assert process.slots == 1
        assert process.pid in cgroup.pids()
        method, weights = make_method("fedavg"), small_model().weights()
        await process.evaluate(method, weights, (torch.zeros(2, *small_model().input_shape), torch.tensor([0, 1])))
        assert quota.lifted == 1
        held = cgroup.read().quota
        assert held is not None
        assert held.cpus == pytest.approx(cpus, rel=0.01)
        assert (leftovers.STATE / fleet_id).exists()  # by which the next start finds it, if we are killed
    quota.close()
    assert not cgroup.paths["cpu"].exists()
    assert not (leftovers.STATE / fleet_id).exists()
