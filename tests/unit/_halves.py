"""What a device's half makes of its task, without a link."""

from __future__ import annotations

import pytest

from edgebed.device.batches import ShardBatches
from edgebed.device.core import begin_half
from edgebed.methods.base import Method, Trained
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Codec
from orchestrator.testing.rounds import as_shard, shard, small_model


def trained(
    method: Method, weights: Weights, work: Assignment, model: StagedModel | None = None
) -> tuple[Trained, list[int]]:
    """The result, and the sizes by which the batches are charged.

    Args:
        model: the one that the device holds; None: a new one, whose weights are not those of the task.
    """
    data = ShardBatches(as_shard(shard(work.device)), work)
    body = encode_tensors(method.task_weights(weights, work), Codec())
    half = begin_half(model or small_model(seed=9), work, body, data, {}, keep=False)
    with pytest.raises(StopIteration) as stop:
        next(half)
    result: Trained = stop.value.value
    return result, data.drawn
