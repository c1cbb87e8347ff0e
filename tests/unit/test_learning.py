"""The default model learns the default data: the demo's target is within reach of a few rounds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch.nn import functional

from edgebed.datasets.shard import read_shard
from edgebed.methods.parts.evaluation import evaluate
from edgebed.models.staged import MODELS, Weights, seeded
from orchestrator.experiment import Experiment
from orchestrator.runs.data import prepare_data

DEVICES, LIMIT = 5, 8


def test_resnet_tiny_reaches_90_percent_of_digits_in_a_few_rounds_of_fedavg(tmp_path: Path) -> None:
    """Five equal shares, one epoch of Adam per round, plain means: 0.58, 0.85, 0.92 where this was written."""
    base = {"name": "t", "fleet": "f", "methods": [{"name": "fedavg"}], "training": {"seed": 1}}
    prepared = prepare_data(msgspec.convert(base, Experiment), [f"d{i}" for i in range(DEVICES)], tmp_path)
    plugin = MODELS.create({"name": "resnet-tiny"})
    model = seeded(lambda: plugin.build(prepared.task), 1)
    weights: Weights = {name: value.clone() for name, value in model.weights().items()}
    shards = [read_shard(path) for path in prepared.shards.values()]
    reached = []
    for number in range(LIMIT):
        trained = []
        for shard in shards:
            model.load(weights)
            optimizer = torch.optim.Adam(model.train().parameters(), lr=0.003)
            for x, y in shard.batches(32, 1, 0, seed=number):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            trained.append({name: value.clone() for name, value in model.weights().items()})
        weights = {
            name: torch.stack([one[name].float() for one in trained]).mean(0).to(value.dtype)
            for name, value in weights.items()
        }
        reached.append(evaluate(model, weights, prepared.test_x, prepared.test_y, torch.device("cpu")).accuracy)
        if reached[-1] >= 0.9:
            return
    raise AssertionError(f"accuracy per round: {reached}")
