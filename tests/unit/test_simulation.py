"""The parts of the simulator: virtual clock, links, quotas, counted costs, and halves that train together."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from edgebed.datasets.shard import Shard, read_shard
from edgebed.device.batches import Batches, ShardBatches
from edgebed.device.core import Body, begin_half
from edgebed.errors import DivergedError, RunError, UsageError
from edgebed.methods.base import Batch, Outgoing, Trained
from edgebed.methods.parts.local_training import Half
from edgebed.models.operations import fcnn_operations
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from edgebed.models.width import ordered_keep, width_groups
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Codec, LearningTask, Optimizer, Privacy
from orchestrator.clock import now_ns
from orchestrator.experiment import Experiment, Simulation, Surrogate
from orchestrator.references.work_laws import work_key
from orchestrator.simulation import pool as pool_module
from orchestrator.simulation.batched import (
    BUDGET_BYTES,
    FREE_SHARE,
    MOST,
    BatchedTrainer,
    StackedPart,
    fits,
    kind_of,
    layer_flops,
    memory_bytes,
    row_bytes,
    saved_bytes,
)
from orchestrator.simulation.context import accelerator_named, cost_model, wanted_reference
from orchestrator.simulation.counts import Flops, Operations
from orchestrator.simulation.link import LinkCost, Pipe
from orchestrator.simulation.pace import Cpu
from orchestrator.simulation.paper_costs import FlopCosts, OperationCosts
from orchestrator.simulation.pool import HalfPool
from orchestrator.simulation.surrogate import ModelPair, surrogate_costs
from orchestrator.simulation.virtual import START_S, VirtualLoop
from tests.component._fleet import CLASSES, SHAPE, write_noise_shard
from tests.unit._assignments import MODEL, assignment
from tests.virtual import run_virtual

MB = 1 << 20


# ---- virtual clock ----


def test_an_hour_passes_at_once_and_everybody_sees_it() -> None:
    async def hour(loop: VirtualLoop) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, now_ns()))

        await asyncio.gather(sleeper("late", 3600), sleeper("soon", 0.25))
        return seen

    start = time.monotonic()
    seen = run_virtual(hour)
    assert time.monotonic() - start < 5
    assert [name for name, _ in seen] == ["soon", "late"]
    assert [round(ns / 1e9 - START_S, 6) for _, ns in seen] == [0.25, 3600]


def test_a_call_for_a_worker_thread_runs_inline_and_takes_no_time() -> None:
    async def main(loop: VirtualLoop) -> tuple[float, int]:
        quotient, _ = await asyncio.to_thread(divmod, 7, 3)
        return loop.time(), quotient

    assert run_virtual(main) == (START_S, 2)


def test_an_error_of_such_a_call_is_raised_where_it_is_awaited() -> None:
    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)

    run_virtual(main)


def test_what_waits_for_nothing_is_named_and_does_not_hang() -> None:
    async def stuck(loop: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RunError, match="cannot continue"):
        run_virtual(stuck)


def test_a_timeout_is_one_of_virtual_time() -> None:
    async def main(loop: VirtualLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await asyncio.sleep(1e6)
        return loop.time() - START_S

    assert run_virtual(main) == pytest.approx(100)


# ---- link ----


def carried(cost: LinkCost, *sizes: int) -> list[tuple[float, float]]:
    """First and last arrival of transfers that are asked for at once."""

    async def main(loop: VirtualLoop) -> list[tuple[float, float]]:
        pipe = Pipe(lambda: cost, loop.virtual_ns, lambda: None, 1.0)
        arrivals = await asyncio.gather(*(pipe.carry(size) for size in sizes))
        return [(a.first_ns / 1e9 - START_S, a.last_ns / 1e9 - START_S) for a in arrivals]

    return run_virtual(main)


def test_a_transfer_takes_its_bytes_and_one_latency() -> None:
    ((first, last),) = carried(LinkCost(0.02, 8 / 1e6), 125_000)  # 1 Mbit at 1 Mbit/s
    assert (first, last) == (pytest.approx(1.02), pytest.approx(1.02))  # one chunk


def test_of_a_long_transfer_the_first_chunk_arrives_first() -> None:
    ((first, last),) = carried(LinkCost(0.5, 1 / MB), 3 * MB)
    assert (first, last) == (pytest.approx(1.5), pytest.approx(3.5))


def test_transfers_follow_one_another_without_a_gap_of_latency() -> None:
    times = carried(LinkCost(0.5, 1 / MB), MB, MB, MB)
    assert [last for _, last in times] == [pytest.approx(1.5), pytest.approx(2.5), pytest.approx(3.5)]


def test_a_transfer_given_up_frees_the_link() -> None:
    async def main(loop: VirtualLoop) -> float:
        pipe = Pipe(lambda: LinkCost(0.0, 1 / MB), loop.virtual_ns, lambda: None, 1.0)
        long = asyncio.ensure_future(pipe.carry(100 * MB))
        await asyncio.sleep(2)
        long.cancel()
        await pipe.carry(MB)
        return loop.time() - START_S

    assert run_virtual(main) == pytest.approx(3)


# ---- CPU ----


def test_cpu_seconds_are_divided_by_the_cpus() -> None:
    async def main(loop: VirtualLoop) -> float:
        await Cpu(lambda: 0.2).use(1.0)
        return loop.time() - START_S

    assert run_virtual(main) == pytest.approx(5)


# ---- counted costs ----


def test_fedpmts_operations_are_those_of_its_table() -> None:
    model = MODELS.create({"name": "fcnn"}).build(LearningTask((1, 28, 28), 10))
    operations = Operations(model)
    for train_from, total in enumerate((15305968, 9779760, 7496160, 6473760)):
        work = assignment(objective="output", stages=len(model), train_from=train_from)
        assert sum(operations.batch(work, 12)) == total


def test_operations_of_a_network_that_the_paper_does_not_count_are_refused() -> None:
    with pytest.raises(UsageError, match="layers with weights"):
        Operations(model())


def test_flops_grow_with_the_cut_and_stop_where_training_does() -> None:
    flops = Flops(model())
    cuts = [sum(flops.device(assignment(stages=cut))) for cut in range(1, 8)]
    assert cuts == sorted(cuts)
    whole = sum(flops.device(assignment(objective="output", stages=8)))
    last = sum(flops.device(assignment(objective="output", stages=8, train_from=7)))
    assert last < whole / 2
    assert flops.server(assignment(stages=8)) == 0 < flops.server(assignment(stages=2))


def test_the_cuts_cost_what_their_counted_work_takes() -> None:
    """So a method that plans with the costs of cuts plans with the seconds of the simulation, on any host."""
    costs = FlopCosts(Flops(model()), 1e6, 1e7, 8, Codec("float16"))
    cuts, work = costs.cut_costs(model()), assignment(stages=3)
    assert set(cuts) == set(model().cuts_with_head)
    assert cuts[3].device_s == costs.work(work, 8).total_s
    assert cuts[3].server_s == costs.server_step_s(work, 8)
    assert cuts[3].feature_bytes == 8 * (2 * math.prod(model().feature_shape(3)) + 8)
    assert FlopCosts(Flops(model()), 1e6, 1e7).cut_costs(model()) == {}


def test_a_narrow_model_costs_what_its_own_layers_cost() -> None:
    """A first layer has all its inputs as ever: half the width of FCNN is two fifths of its work, not a quarter."""
    whole = MODELS.create({"name": "fcnn"}).build(LearningTask((1, 28, 28), 10))
    keep = ordered_keep(width_groups(whole), 0.5)
    full, half = (assignment(objective="output", stages=len(whole), keep=each) for each in ({}, keep))
    flops, operations = Flops(whole), Operations(whole)
    first, forward = (156_800, 313_600), (207_300, 514_600)  # multiply-adds of half and full width
    assert flops.device(half)[0] / flops.device(full)[0] == pytest.approx(forward[0] / forward[1])
    training = [3 * every - one for every, one in zip(forward, first, strict=True)]  # no gradient of the input
    assert sum(flops.device(half)) / sum(flops.device(full)) == pytest.approx(training[0] / training[1])
    assert sum(operations.batch(half, 12)) == fcnn_operations((784, 200, 150, 100, 50, 10), 12)


def test_fedpmts_operations_of_a_model_that_is_cut_are_refused() -> None:
    whole = MODELS.create({"name": "fcnn"}).build(LearningTask((1, 28, 28), 10))
    costs = OperationCosts(Operations(whole), 1e9)
    for cut in (assignment(stages=2, objective="server"), assignment(stages=len(whole), objective="head")):
        for ask in (
            costs.task_costs,
            lambda work: costs.work(work, 12),
            lambda work: costs.server_step_s(work, 12),
        ):
            with pytest.raises(UsageError, match="whole models"):
                ask(cut)
    assert costs.server_step_s(assignment(objective="output", stages=len(whole)), 12) == 0


# ---- as if a larger network ----


def test_a_narrow_assignment_is_as_narrow_in_the_larger_network() -> None:
    small, large = (
        MODELS.create({"name": "fcnn", "hidden": w}).build(LearningTask(SHAPE, CLASSES)) for w in ([8, 4], [80, 40])
    )
    names = list(width_groups(small))
    pair = ModelPair(small, large)
    work = assignment(objective="output", stages=len(small), keep={names[0]: (0, 3)})
    made = pair.enlarged(work)
    assert [len(made.keep[name]) for name in width_groups(large)] == [20, 40]
    factors = [pair.weights_factor(each, trained=True) for each in (work, assignment(objective="output", stages=3))]
    sizes = [(2, 4), (20, 40)]
    assert factors[0] == pytest.approx(_weights(*sizes[1]) / _weights(*sizes[0]))
    assert factors[1] == pytest.approx(_weights(80, 40) / _weights(8, 4))


def _weights(first: int, second: int) -> int:
    """Weights and biases of two hidden layers between the samples and the classes."""
    samples = math.prod(SHAPE)
    return (samples + 1) * first + (first + 1) * second + (second + 1) * CLASSES


def test_what_stands_for_another_says_so() -> None:
    wanted = Surrogate(model={"name": "resnet56"}, train_samples=900)
    experiment = Experiment(name="x", fleet="", methods=[], model=MODEL, simulation=Simulation(cost="flops"))
    kind = surrogate_costs(experiment, wanted, model(), [20, 40, 30]).kind
    assert kind == "flops: times and bytes of resnet56 with 300 samples per device (as_if), learning by resnet-tiny"


def test_networks_of_other_groups_keep_the_mean_share() -> None:
    small, large = (
        MODELS.create({"name": name}).build(LearningTask((3, 32, 32), 10)) for name in ("resnet-tiny", "resnet56")
    )
    keep = ordered_keep(width_groups(small), 0.5)
    made = ModelPair(small, large).enlarged(assignment(objective="output", stages=8, keep=keep))
    assert made.keep == ordered_keep(width_groups(large), 0.5)


def test_kinds_of_work_are_told_apart_by_what_they_cost() -> None:
    plain = assignment()
    assert work_key(plain) == work_key(assignment(device="b", seed=9, privacy=Privacy(secret=5)))
    others = [
        assignment(stages=3),
        assignment(objective="output"),
        assignment(train_from=1),
        assignment(keep={"g": (0, 1)}),
        assignment(options={"mu": 1}),
    ]
    assert len({work_key(each) for each in (plain, *others)}) == 6


# ---- halves ----


def model(spec: dict[str, object] | None = None) -> StagedModel:
    return seeded(lambda: MODELS.create(spec or MODEL).build(LearningTask(SHAPE, CLASSES)), 0)


def shards(folder: Path, count: int, samples: int = 20) -> list[Shard]:
    return [write_noise_shard(folder / f"{i}.safetensors", samples) for i in range(count)]


Events = list[tuple[tuple[int, ...], Outgoing | Trained]]
"""What a half yields and returns, each with the sizes of the batches taken for it."""


class NoBatches:
    """Given to a row: it takes none, and only says which it has trained on."""

    def __init__(self) -> None:
        self.samples, self.drawn = 0, list[int]()

    def __iter__(self) -> Iterator[Batch]:
        raise AssertionError("a row takes no batches")


def all_of(half: Half, batches: Batches) -> Events:
    events: Events = []

    def add(event: Outgoing | Trained) -> None:
        events.append((tuple(batches.drawn), event))
        batches.drawn.clear()

    try:
        while True:
            add(half.send(None))
    except StopIteration as stop:
        add(stop.value)
    return events


def row_events(row: StackedPart) -> Events:
    return all_of(row.half(batches := NoBatches()), batches)


def on_its_own(whole: StagedModel, own: Assignment, shard: Shard, weights: Weights) -> Events:
    batches = ShardBatches(shard, own)
    body = encode_tensors(weights, Codec())
    return all_of(begin_half(whole, own, body, batches, {}, keep=True), batches)


WORKS = [
    {"stages": 2},
    {"stages": 5, "optimizer": Optimizer("adam", 0.001)},
    {"stages": 8, "objective": "output", "uploads": ("weights",), "epochs": 2},
    {"stages": 8, "objective": "output", "uploads": ("weights",), "train_from": 4},
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: f"{work.get('objective', 'head')}-{work['stages']}")
def test_devices_that_train_together_get_what_they_would_have_got_alone(work: dict[str, Any], tmp_path: Path) -> None:
    whole, owned = model(), shards(tmp_path, 3)
    names = whole.names_below(work["stages"], head=work.get("objective") != "output")
    weights = [{name: whole.weights()[name].clone() for name in names} for _ in owned]
    for number, each in enumerate(weights):  # not all alike
        each[names[0]] += 0.01 * number
    assigned = [assignment(device=f"d{i}", seed=i, **work) for i in range(3)]
    rows = BatchedTrainer(copy.deepcopy(whole), assigned, owned, weights, torch.device("cpu")).train()
    for row, own, shard, start in zip(rows, assigned, owned, weights, strict=True):
        together, alone = row_events(row), on_its_own(whole, own, shard, start)
        assert [drawn for drawn, _ in together] == [drawn for drawn, _ in alone]
        for (_, a), (_, b) in zip(together, alone, strict=True):
            close(a.tensors if isinstance(a, Outgoing) else {}, b.tensors if isinstance(b, Outgoing) else {})
        ours, theirs = together[-1][1], alone[-1][1]
        assert isinstance(ours, Trained)
        assert isinstance(theirs, Trained)
        close(ours.weights, theirs.weights)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.batches == theirs.batches


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_a_device_that_diverges_ends_alone(tmp_path: Path) -> None:
    whole, owned = model(), shards(tmp_path, 2)
    names = whole.names_below(2, head=True)
    weights = [{name: whole.weights()[name].clone() for name in names} for _ in owned]
    weights[1][names[0]] += float("inf")
    rows = BatchedTrainer(
        copy.deepcopy(whole), [assignment(device="a"), assignment(device="b")], owned, weights, torch.device("cpu")
    ).train()
    assert isinstance(row_events(rows[0])[-1][1], Trained)
    half = rows[1].half(NoBatches())
    assert isinstance(next(half), Outgoing)  # its features had left before its loss was known
    with pytest.raises(DivergedError, match="device 'b'"):
        next(half)


def test_only_halves_that_are_known_and_wait_for_nobody_train_together(tmp_path: Path) -> None:
    (shard,) = shards(tmp_path, 1)
    assert kind_of(assignment(device="x", seed=5), shard) == kind_of(assignment(), shard)
    assert kind_of(assignment(stages=3), shard) != kind_of(assignment(), shard)
    exits = [assignment(options={"exit": 1}), assignment(options={"exit": 1}, seed=7)]
    assert kind_of(exits[0], shard) == kind_of(exits[1], shard) == kind_of(assignment(), shard)
    for alone in (
        {"objective": "server"},
        {"objective": "prox", "options": {"mu": 1.0}},
        {"keep": {"g": (0,)}},
        {"privacy": Privacy(dcor_alpha=0.5)},
    ):
        assert kind_of(assignment(**alone), shard) is None


@pytest.mark.parametrize(("batched", "most_flops"), [(True, 1e7), (True, 1.0), (False, 1e7)])
def test_the_pool_trains_together_what_was_announced_and_is_small(
    batched: bool, most_flops: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "LAYER_FLOPS", most_flops)
    whole = model()
    owned = dict(zip("abc", shards(tmp_path, 3), strict=True))
    weights = {name: whole.weights()[name] for name in whole.names_below(2, head=True)}
    body = encode_tensors(weights, Codec())
    pool = HalfPool(whole, owned, torch.device("cpu"), batched=batched, notify=lambda text: None)
    for device in "abc":
        pool.expect(0, assignment(device=device), body)
    pool.forget("c")
    for device in "ab":
        own = assignment(device=device)
        batches = ShardBatches(owned[device], own)
        assert isinstance(all_of(pool.begin(own, body, batches, {}), batches)[-1][1], Trained)
    assert (pool.together, pool.alone) == ((2, 0) if batched and most_flops > 1 else (0, 2))


def test_the_operations_of_a_layer_in_a_step() -> None:
    """A convolution forward, and backward without the gradient of the input; the head's in full."""
    whole = seeded(lambda: MODELS.create({"name": "cnn-small"}).build(LearningTask((1, 8, 8), 10)), 0)
    conv, head = 2 * 64 * 8 * 9, 2 * 8 * 10
    assert layer_flops(whole, assignment(stages=1), 5) == 5 * (2 * conv + 3 * head) / 2


def test_devices_of_two_rounds_train_alone(tmp_path: Path) -> None:
    """A simulation that goes on may do only one of these rounds again, and must compute the same bits."""
    whole = model()
    owned = dict(zip("ab", shards(tmp_path, 2), strict=True))
    body = encode_tensors({name: whole.weights()[name] for name in whole.names_below(2, head=True)}, Codec())
    pool = HalfPool(whole, owned, torch.device("cpu"), batched=True, notify=lambda text: None)
    for round, device in enumerate("ab"):
        pool.expect(round, assignment(device=device), body)
    for device in "ab":
        batches = ShardBatches(owned[device], own := assignment(device=device))
        all_of(pool.begin(own, body, batches, {}), batches)
    assert (pool.together, pool.alone) == (0, 2)


def test_halves_that_are_not_stacked_train_on_the_accelerator(tmp_path: Path) -> None:
    """torch's device `meta` stands in for a GPU: it has no values, so nothing could be computed on the CPU unseen."""
    meta, seen = torch.device("meta"), []

    def begin(model: StagedModel, own: Assignment, body: Body, batches: Batches, kept: Weights) -> Half:
        seen.append({tensor.device for tensor in (*model.parameters(), *next(iter(batches)))})
        return Trained({}, loss=0.0, batches=0)
        yield

    whole, own = model(), assignment(device="a")
    shards(tmp_path, 1)
    shard = read_shard(tmp_path / "0.safetensors", meta)
    pool = HalfPool(whole, {"a": shard}, meta, batched=False, notify=lambda text: None, begin=begin)
    with pytest.raises(StopIteration):
        next(pool.begin(own, b"", ShardBatches(shard, own), {}))
    assert seen == [{meta}]
    assert {value.device for value in whole.parameters()} == {torch.device("cpu")}


def test_as_many_devices_train_together_as_fit_with_what_a_step_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, (shard,) = model(), shards(tmp_path, 1)
    few, many = (saved_bytes(whole, assignment(), samples) for samples in (4, 8))
    assert 1.8 < many / few <= 2.0
    first = whole.stages(0, 1)(torch.zeros(4, *whole.input_shape))
    assert few > 2 * first.numel() * 4  # the input and the output of what follows
    each = row_bytes(whole, assignment(), shard)
    assert [fits(room, each) for room in (each // 2, 3 * each, 10**15)] == [1, 3, MOST]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda accelerator: (10**9, 2 * 10**9))
    assert memory_bytes(torch.device("cuda")) == int(FREE_SHARE * 10**9)
    assert memory_bytes(torch.device("cpu")) == BUDGET_BYTES


def test_an_accelerator_that_is_not_there_is_refused() -> None:
    assert accelerator_named("cpu") == torch.device("cpu")
    for name, why in (("cudaa", r"did you mean 'cuda'\?"), ("mps", "no accelerator")):
        with pytest.raises(UsageError, match=why):
            accelerator_named(name)


# ---- the choice of costs ----


def test_the_costs_are_those_of_the_reference_that_is_named_first() -> None:
    batch = (torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))

    def kind(wanted: Simulation, speed: str) -> str:
        reference = wanted_reference(wanted, speed, Path("e.yaml"))
        return cost_model(wanted, model(), batch, reference).kind

    assert kind(Simulation(), "host") == "timed"
    assert kind(Simulation(), "reference x86-avx512") == "reference x86-avx512"
    assert kind(Simulation(cost="reference x86-sse41"), "reference x86-avx512") == "reference x86-sse41"
    assert kind(Simulation(cost="flops"), "reference x86-avx512") == "flops"
    assert kind(Simulation(cost="timed"), "reference x86-avx512") == "timed"
    larger = Simulation(as_if=Surrogate(model={"name": "resnet56"}))
    assert wanted_reference(larger, "reference x86-avx512", Path("e.yaml")) is None
    with pytest.raises(UsageError, match="there is no reference 'nowhere'"):
        wanted_reference(Simulation(cost="reference nowhere"), "host", Path("e.yaml"))


def test_a_larger_network_cannot_take_its_costs_from_a_reference() -> None:
    wanted = Surrogate(model={"name": "resnet56"}, train_samples=900)
    simulation = Simulation(cost="reference x86-avx512")
    experiment = Experiment(name="x", fleet="", methods=[], model=MODEL, simulation=simulation)
    with pytest.raises(UsageError, match="as_if with cost") as caught:
        surrogate_costs(experiment, wanted, model(), [20, 40, 30])
    assert caught.value.hint == "choose timed, flops or operations"
