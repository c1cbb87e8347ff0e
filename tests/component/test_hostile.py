"""A device that means harm, in one process: every attack is named, and the others' work is merged in every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.records.types import DeviceOut, RoundFinished
from tests.component._fleet import fleet, training
from tests.hostile.agent import ATTACKS, SAID
from tests.hostile.beside import CONTROL, SPARSE, STATISTICS, Tried

DEVICES = {"dev-1": 24, "dev-2": 24, "dev-3": 17}


async def test_a_hostile_member_of_a_group_costs_nobody_but_itself(tmp_path: Path) -> None:
    """S²FL: one server half for the three, whose gradients go back. FedGKT's is attacked over a real broker."""
    spec = {"name": "s2fl", "sliding": False, "group": 3}
    wanted = training(rounds=len(ATTACKS), round_ceiling_s=10.0, max_update_norm=1000.0, liveness_s=30.0)
    async with fleet(tmp_path, DEVICES, hostile="dev-2") as made:
        weights = await made.play(spec, wanted)
    outs = {r.round: r for r in made.of(DeviceOut)}
    assert list(outs) == list(range(1, len(ATTACKS)))
    for number, (attack, said) in list(enumerate(SAID.items()))[1:]:
        assert (outs[number].device, said in outs[number].why) == ("dev-2", True), f"{attack}: {outs[number]}"
    assert [r.merged for r in made.of(RoundFinished)] == [
        ("dev-1", "dev-2", "dev-3"),
        *[("dev-1", "dev-3")] * (len(ATTACKS) - 1),
    ]
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


@pytest.mark.parametrize(
    ("method", "tried"),
    [
        ({"name": "topk-split"}, SPARSE),
        ({"name": "scaffold"}, CONTROL),
        ({"name": "fjord", "widths": [1.0]}, STATISTICS),
    ],
)
async def test_what_goes_beside_weights_and_features_costs_nobody_but_who_sends_it(
    tmp_path: Path, method: dict[str, Any], tried: Tried
) -> None:
    wanted = training(rounds=len(tried), round_ceiling_s=30.0, optimizer={"name": "sgd", "lr": 0.05})
    attacks = {name: attack for name, (attack, _) in tried.items()}
    async with fleet(tmp_path, DEVICES, hostile="dev-2", attacks=attacks) as made:
        weights = await made.play(method, wanted)
    outs = {r.round: r.why for r in made.of(DeviceOut)}
    got = {name: outs.get(number, "merged") for number, name in enumerate(tried)}
    assert {name: why for name, why in got.items() if tried[name][1] not in why} == {}
    assert all(why.isprintable() for why in outs.values())
    assert [r.merged for r in made.of(RoundFinished)] == [
        ("dev-1", "dev-2", "dev-3"),
        *[("dev-1", "dev-3")] * (len(tried) - 1),
    ]
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())
