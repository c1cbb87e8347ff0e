"""A wall clock that jumps, as when a board gets its time from the network: durations come from the monotonic clock."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
import torch

from orchestrator.records.types import DeviceOut, DevicePhases, RoundFinished
from tests.component._fleet import Fleet, fleet, training

TWO = {"dev-1": 24, "dev-2": 16}
DTFL = {"name": "dtfl", "tier": 3}
DAY_S = 86_400


async def played(folder: Path) -> Fleet:
    async with fleet(folder, TWO) as made:
        await made.play(DTFL, training(rounds=3))
        return made


async def test_a_wall_clock_that_jumps_in_mid_round_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = await played(tmp_path)
    jumps = itertools.cycle([0, -DAY_S, DAY_S, -365 * DAY_S, 3600])
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + next(jumps) * 10**9)
    jumped = await played(tmp_path)
    assert not jumped.of(DeviceOut)
    assert [end.merged for end in jumped.of(RoundFinished)] == [("dev-1", "dev-2")] * 3
    assert all(0 < end.seconds < 120 for end in jumped.of(RoundFinished))
    assert all(p.end_ns >= p.start_ns for each in jumped.of(DevicePhases) for p in each.phases)
    for name, value in plain.saved[-1].items():
        assert torch.equal(value, jumped.saved[-1][name]), name
