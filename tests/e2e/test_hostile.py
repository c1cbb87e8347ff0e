"""A device that means harm, over a real broker: the run ends with the others' work, each attempt is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from orchestrator.records.reader import read
from orchestrator.records.types import DeviceOut, Fault, RoundFinished, RunFinished
from orchestrator.run_folder import RunFolder
from tests.hostile.agent import ATTACKS
from tests.hostile.fleet import HOSTILE, attacked

pytestmark = pytest.mark.mosquitto

SAID = {
    "samples 10^12": "reports 1000000000000 samples",
    "samples 0": "reports 0 samples",
    "samples -5": "reports -5 samples",
    "batches 2^40": "reports 1099511627776 batches",
    "seconds not a number": "compute_s = nan",
    "giant shape": "has at most",
    "giant shape, small": "impossible dtype, shape or place",
    "decompression bomb": "would unpack to",
    "10 GiB announced": "upload 0 has 10737418240 bytes",
    "names invented": "names invented",
    "upload out of range": "upload 1000000",
    "upload twice": "upload 0 twice",
    "features misshapen": "features is torch.float32",
    "labels out of range": "label outside",
    "features 1e25 in the shared half": "training diverged",
    "features not a number": "not finite",
    "weights not a number": "not finite",
    "finite poison 1e30": "1e+30",
    "finite poison, times 1e6": "max_update_norm",
    "running_var -1": "variance of -1",
    "num_batches_tracked 2^62": "num_batches_tracked",
    "a reason of 5 MB": "why why",
    "progress for ever": "ceiling",
}


async def test_a_hostile_device_costs_nobody_but_itself(tmp_path: Path) -> None:
    assert list(SAID) == list(ATTACKS)
    async with attacked(tmp_path, names=2000) as work, asyncio.timeout(300):
        (folder,) = await work
    records = read(folder / "records.jsonl")
    outs = {r.round: r for r in records if isinstance(r, DeviceOut)}
    rounds = [r for r in records if isinstance(r, RoundFinished)]
    assert [r.why for r in records if isinstance(r, RunFinished)] == ["rounds done"]
    assert [r.merged for r in rounds] == [("dev-1", "dev-3")] * len(ATTACKS)
    for number, (attack, said) in enumerate(SAID.items()):
        out = outs[number]
        assert (out.device, said in out.why) == (HOSTILE, True), f"{attack}: {out.why}"
        assert len(out.why) < 1000
    assert not [r for r in records if isinstance(r, Fault) and r.device != HOSTILE]
    saved = RunFolder(folder).restore()
    assert saved is not None
    assert all(bool(torch.isfinite(value).all()) for value in [*saved.weights.values(), *saved.tensors.values()])
    assert saved.progress.accuracy > 0.5
