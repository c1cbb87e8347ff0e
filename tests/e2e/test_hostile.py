"""A device that means harm, over a real broker: the run ends with the others' work, each attempt is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from orchestrator.records.reader import read
from orchestrator.records.types import DeviceOut, Fault, RoundFinished, RunFinished
from orchestrator.runs.folder import RunFolder
from tests.hostile.agent import ATTACKS, SAID
from tests.hostile.attempts import table
from tests.hostile.fleet import HOSTILE, attacked
from tests.hostile.program import in_fleet

pytestmark = [pytest.mark.mosquitto, pytest.mark.fleet]


async def test_a_hostile_device_costs_nobody_but_itself(tmp_path: Path) -> None:
    assert list(SAID) == list(ATTACKS)
    async with attacked(tmp_path, names=2000) as work, asyncio.timeout(400):
        (folder,) = await work
    records = read(folder / "records.jsonl")
    outs = {r.round: r for r in records if isinstance(r, DeviceOut)}
    rounds = [r for r in records if isinstance(r, RoundFinished)]
    assert [r.why for r in records if isinstance(r, RunFinished)] == ["rounds done"]
    assert [r.merged for r in rounds] == [("dev-1", "dev-2", "dev-3"), *[("dev-1", "dev-3")] * (len(ATTACKS) - 1)]
    assert list(outs) == list(range(1, len(ATTACKS)))
    for number, (attack, said) in list(enumerate(SAID.items()))[1:]:
        out = outs[number]
        assert (out.device, said in out.why) == (HOSTILE, True), f"{attack}: {out.why}"
        assert len(out.why) < 1000
        assert out.why.isprintable()
    results = in_fleet(records)
    print(table(results))
    assert [each for each in results if not each.fine] == []
    (large,) = [r.what for r in records if isinstance(r, Fault) and "control message of more than 64 KiB" in r.what]
    assert large
    (much,) = [r.what for r in records if isinstance(r, Fault) and "KiB of records a second" in r.what]
    assert much
    assert (folder / "records.jsonl").stat().st_size < 24 << 20, "40 MiB of phases were sent"
    assert not [r.what for r in records if isinstance(r, Fault) and r.device != HOSTILE], "the broker dropped these"
    saved = RunFolder(folder).restore()
    assert saved is not None
    assert all(bool(torch.isfinite(value).all()) for value in [*saved.weights.values(), *saved.tensors.values()])
    assert saved.progress.accuracy > 0.5
