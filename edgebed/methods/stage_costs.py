"""What the stages of a model cost, as a method plans with it: operations of each, and ratios to the whole. Pure.

Forward operations are counted on torch's meta device; backward is taken as twice forward, as FedPMT has it (§V-A).
Only ratios of these numbers are used. `edgebed models` prints a finer count.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch.utils.flop_counter import FlopCounterMode

from edgebed.models.staged import StagedModel


def stage_flops(model: StagedModel) -> list[int]:
    """Forward operations of each stage for one sample; 1 where nothing that is counted happens."""
    found = []
    with torch.no_grad():
        meta = copy.deepcopy(model).to("meta").eval()
        x = torch.zeros(1, *model.input_shape, device="meta")
        for name in model.stage_names:
            with FlopCounterMode(display=False) as counter:
                x = meta.get_submodule(name)(x)
            found.append(max(1, int(counter.get_total_flops())))
    return found


def cut_costs(model: StagedModel) -> list[int]:
    """Forward operations of the device half (without head) at cuts 1..L."""
    return list(accumulate(stage_flops(model)))


def partial_costs(model: StagedModel, train_from: Sequence[int]) -> list[float]:
    """Cost of a batch where back-propagation reaches the stages after each of `train_from`, relative to all stages.

    cost = Σ_l F_l + 2 Σ_{l > train_from} F_l, F_l the forward operations of stage l.
    """
    flops = stage_flops(model)
    return [(sum(flops) + 2 * sum(flops[first:])) / (3 * sum(flops)) for first in train_from]
