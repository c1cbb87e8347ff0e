"""Prepares a finished run for serving: weights per node, thresholds, and the requests of the leaves.

Requests are samples of the test set, which no device has trained on, distributed over the leaves. The thresholds make
each exit serve its share (papers.md §4) of the validation set, if the run's data has one. Otherwise the run's seed
draws half of the test set for choosing thresholds, and requests come from the other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from edgebed.datasets.base import DATASETS, Split
from edgebed.datasets.shard import normalise, single_rows, write_idle_shard, write_shard
from edgebed.errors import UsageError
from edgebed.methods.base import METHODS, Context, Stream
from edgebed.methods.parts.exits import (
    Deployable,
    Deployment,
    confidence,
    exit_logits,
    serving_weights,
    thresholds,
)
from edgebed.methods.parts.inference_tree import normalised
from edgebed.methods.parts.serving import LOT, OBJECTIVE
from edgebed.models.learning import task_at
from edgebed.models.staged import MODELS, StagedModel, Weights
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Task
from edgebed.wire.order import assignment_seed
from edgebed.wire.settings import Arrivals, Codec
from orchestrator.experiment import Experiment, load
from orchestrator.rounds.bounds import upload_bytes
from orchestrator.runs.data import data_root, located, validation_of
from orchestrator.runs.folder import RunFolder
from orchestrator.serving.router import Post

SLOTS = 64
"""Forwarded requests that a node holds for its uplink. When it holds that many, the node waits and answers nothing."""

CPU = torch.device("cpu")


class TrainedRun(msgspec.Struct):
    """A run with trained exits, from its last checkpoint."""

    run: str
    experiment: Experiment
    model: StagedModel
    weights: Weights
    deployment: Deployment
    data: Split
    thresholds: list[float]  # of exits 1..E
    pool: Tensor  # rows of the test set from which requests are taken


class Expected(msgspec.Struct, frozen=True):
    """What the same requests would give without fleet, links and codec."""

    accuracy: float
    shares: list[float]  # served by each exit


class Service(msgspec.Struct):
    """Everything that a router needs except the devices' clocks."""

    assignments: dict[str, Assignment]
    bodies: dict[str, bytes | bytearray]
    own: dict[str, range]  # numbers of the requests of each node
    labels: list[int]
    expected: Expected


def load_trained(folder: Path) -> TrainedRun:
    """Read a run's last checkpoint and choose the thresholds. The run's copies of its plug-ins are used from then on.

    Raises:
        UsageError: not a run, or its method trains no exits, or it has no checkpoint yet.
    """
    files = RunFolder(folder)
    experiment = load(files.experiment)
    method = METHODS.create(experiment.methods[0], f"{files.experiment}: methods[0]")
    if not isinstance(method, Deployable):
        raise UsageError(
            f"{folder.name} trained no exits: its method is {method.name}", hint="serve a run of early-exit"
        )
    saved = files.restore()
    if saved is None or not saved.progress.method:
        raise UsageError(f"{folder.name} has no finished round", hint="let it run, or continue it with --resume")
    seed = experiment.training.seed
    data = DATASETS.create(located(experiment.data, files.experiment), f"{files.experiment}: data").load(
        data_root(), seed
    )
    plugin = MODELS.create(experiment.model, f"{files.experiment}: model")
    model = plugin.build(data.task)
    method.setup(Context(experiment.model, model, {}, server_slots=1))
    method.restore(saved.progress.method, saved.tensors)
    deployment = method.deployment()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(data.test_y)))
    held = validation_of(data)
    middle = len(order) // 2 if held is None else 0
    chosen, pool = order[:middle], order[middle:]
    x = normalised_x(data, chosen) if held is None else held[0]
    sure = confidence(exit_logits(model, saved.weights, deployment.cuts, x, CPU))
    found = thresholds(sure, deployment.shares)
    return TrainedRun(folder.name, experiment, model, saved.weights, deployment, data, found, pool)


def normalised_x(data: Split, rows: Tensor) -> Tensor:
    """Test samples, normalised as the model expects."""
    return normalise(data.test_x[rows], data.mean, data.std)


def write_requests(trained: TrainedRun, folder: Path) -> dict[str, Path]:
    """Write one shard per node. A leaf's shard holds the samples of its requests, which are dealt out in turn."""
    deployment, data = trained.deployment, trained.data
    paths = {node: folder / f"{node}.safetensors" for node in deployment.tree.parents}
    rows = rows_by_leaf(trained)
    for node, path in paths.items():
        if node in rows:
            x, y = data.test_x[rows[node]], data.test_y[rows[node]]
            write_shard(path, x, y, data.mean, data.std, trained.model.classes, vocabulary=data.vocabulary)
        else:
            write_idle_shard(path, task=trained.model.task)
    return paths


def rows_by_leaf(trained: TrainedRun) -> dict[str, Tensor]:
    leaves = list(trained.deployment.arrivals)
    if len(trained.pool) < len(leaves):
        raise UsageError(
            f"{len(trained.pool)} test samples for {len(leaves)} leaves", hint="use a data set with more test samples"
        )
    return {leaf: trained.pool[number :: len(leaves)] for number, leaf in enumerate(leaves)}


def prepare(trained: TrainedRun, requests: int, rate: float | None, dilation: float) -> Service:
    """The nodes' assignments and weights, and their requests.

    Args:
        requests: the total; every leaf gets its part in proportion to its rate of arrivals.
        rate: requests per second at every leaf; None: from the method's options.
        dilation: rates of arrival are divided by it, like everything else.
    """
    deployment, seed = trained.deployment, trained.experiment.training.seed
    rates = dict.fromkeys(deployment.arrivals, rate) if rate is not None else deployment.arrivals
    counts = shared_out(requests, rates)
    own, labels, rows = _requests(trained, counts, seed)
    assignments, bodies = {}, {}
    for node in deployment.tree.parents:
        arrivals = Arrivals(rates[node] / dilation, counts[node]) if counts.get(node) else Arrivals()
        assignments[node] = _assignment(trained, node, arrivals, own[node])
        start = min((_cut(deployment, child) for child in deployment.tree.children(node)), default=0)
        weights = serving_weights(trained.model, trained.weights, start, _cut(deployment, node))
        bodies[node] = encode_tensors(weights, Codec())
    return Service(assignments, bodies, own, labels, _expected(trained, rows))


def _requests(trained: TrainedRun, counts: Mapping[str, int], seed: int) -> tuple[dict[str, range], list[int], Tensor]:
    """Numbers of every node's own requests, the labels by number, and the rows of the test set."""
    own, rows, first = {}, [torch.zeros(0, dtype=torch.int64)], 0
    shards = rows_by_leaf(trained)
    for node in trained.deployment.tree.parents:
        count = counts.get(node, 0)
        own[node] = range(first, first + count)
        if count:
            local = single_rows(len(shards[node]), count, assignment_seed(seed, node, 0))
            rows.append(shards[node][torch.tensor(local)])
        first += count
    every = torch.cat(rows)
    return own, trained.data.test_y[every].tolist(), every


def _assignment(trained: TrainedRun, node: str, arrivals: Arrivals, own: range) -> Assignment:
    deployment, experiment = trained.deployment, trained.experiment
    is_root = deployment.tree.parents[node] is None
    return task_at(
        node,
        experiment.model,
        trained.model.task,
        _cut(deployment, node),
        OBJECTIVE,
        uploads=("features",),
        batch_size=1,
        codec=experiment.training.codec,
        seed=assignment_seed(experiment.training.seed, node, 0),
        arrivals=arrivals,
        slots=SLOTS,
        options={
            "threshold": 0.0 if is_root else trained.thresholds[deployment.tree.exits[node] - 1],
            "first": own.start,
        },
    )


def _cut(deployment: Deployment, node: str) -> int:
    return deployment.cuts[deployment.tree.exits[node] - 1]


def _expected(trained: TrainedRun, rows: Tensor) -> Expected:
    """Run every request through the exits in this process."""
    logits = exit_logits(trained.model, trained.weights, trained.deployment.cuts, normalised_x(trained.data, rows), CPU)
    enough = confidence(logits) >= torch.tensor(trained.thresholds)[:, None]
    served = enough.to(torch.int64).argmax(0)  # the first exit that is confident; the last one always is
    answers = logits.argmax(-1)[served, torch.arange(len(rows))]
    shares = [float((served == exit).double().mean()) for exit in range(len(logits))]
    return Expected(float((answers == trained.data.test_y[rows]).double().mean()), shares)


def most_bytes(model: StagedModel, stages: int) -> int:
    """Largest upload in bytes of a node with `stages` stages: features of one request, or a batch of answers."""
    numbers, times = Stream((), torch.int64), Stream((3,), torch.int64)
    answers = {"request": numbers, "prediction": numbers, "cut": numbers, "times": times}
    features = {"features": Stream(model.feature_shape(stages), torch.float32)}
    return upload_bytes(features, 1) + upload_bytes(answers, LOT)


def posts(service: Service, trained: TrainedRun, run: str, offsets_ns: Mapping[str, int]) -> dict[str, Post]:
    """What each node must do, with the offset of its clock."""
    tree = trained.deployment.tree
    return {
        node: Post(
            task=Task(f"{run}/{node}", run, 0, assignment),
            body=service.bodies[node],
            parent=tree.parents[node],
            exit=tree.exits[node],
            own=service.own[node],
            offset_ns=offsets_ns[node],
            most_bytes=most_bytes(trained.model, assignment.stages),
        )
        for node, assignment in service.assignments.items()
    }


def shared_out(total: int, rates: Mapping[str, float]) -> dict[str, int]:
    """Divide `total` in proportion to the rates, in whole numbers by largest remainder, with at least one each.

    Raises:
        UsageError: there are fewer requests than leaves.
    """
    if total < len(rates):
        raise UsageError(f"{total} requests for {len(rates)} leaves", hint=f"give --requests {len(rates)} or more")
    exact = {name: share * total for name, share in zip(rates, normalised(list(rates.values())), strict=True)}
    counts = {name: max(1, int(value)) for name, value in exact.items()}
    order = sorted(exact, key=lambda name: exact[name] - counts[name], reverse=True)
    rest = total - sum(counts.values())
    for name in order[: max(0, rest)]:
        counts[name] += 1
    return counts
