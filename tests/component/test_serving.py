"""Serving in one process: real agents and the router over a memory broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import torch
import zstandard

from edgebed.datasets.shard import single_rows
from edgebed.errors import UsageError
from edgebed.methods.parts.exits import NEVER, confidence, exit_logits, serving_weights
from edgebed.methods.parts.inference_tree import rooted
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Task, Upload
from edgebed.wire.settings import Arrivals, Codec
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.experiment import Experiment
from orchestrator.fleet.spec.profile import FleetSpec
from orchestrator.records.host_records import RequestsLost, Served
from orchestrator.records.types import DeviceDone, DeviceOut, ReplyDelivered, TaskDelivered, TaskSent, UploadReceived
from orchestrator.serving.deploy import most_bytes
from orchestrator.serving.router import AHEAD, Post, Router
from orchestrator.serving.service import check_speed
from tests.component._fleet import CLASSES, CPU, MODEL, SHAPE, Fleet, fleet, model
from tests.waiting import until

NODES = {"leaf-1": 12, "leaf-2": 9, "edge": 2, "cloud": 2}
TREE = rooted({"leaf-1": "edge", "leaf-2": "edge", "edge": "cloud", "cloud": None})
CUTS = (2, 4, 8)
COUNT = 20


def posts(made: Fleet, levels: Mapping[str, float], rate: float = 200.0) -> tuple[dict[str, Post], list[int]]:
    """Every node's task, and the labels of all requests. `levels`: thresholds by node."""
    whole, found, labels = model(), dict[str, Post](), list[int]()
    for number, (node, parent) in enumerate(TREE.parents.items()):
        cut, leaf = CUTS[TREE.exits[node] - 1], node in TREE.leaves()
        below = [CUTS[TREE.exits[child] - 1] for child in TREE.children(node)]
        own = range(len(labels), len(labels) + (COUNT if leaf else 0))
        shard = made.shards[node]
        labels += shard.y[single_rows(shard.samples, len(own), number)].tolist()
        assignment = Assignment(
            device=node,
            model=MODEL,
            classes=CLASSES,
            input_shape=SHAPE,
            stages=cut,
            objective="serve",
            seed=number,
            arrivals=Arrivals(rate, len(own)),
            slots=8,
            options={"threshold": levels.get(node, 0.0), "first": own.start},
        )
        body = encode_tensors(serving_weights(whole, whole.weights(), min(below, default=0), cut), Codec())
        task, most = Task(f"serve/{node}", "serve", 0, assignment), most_bytes(whole, cut)
        found[node] = Post(task, body, parent, TREE.exits[node], own, 0, most)
    return found, labels


def route(made: Fleet, levels: Mapping[str, float], rate: float = 200.0) -> Router:
    found, labels = posts(made, levels, rate)
    router = Router(made.endpoint, made.record, found, labels, liveness_s=5.0)
    made.controller.attach(made.record)
    made.controller.drivers |= dict.fromkeys(made.controller.names, router)
    return router


def expected(made: Fleet, node: str, number: int, levels: Mapping[str, float]) -> list[tuple[int, bool]]:
    """Exit and rightness of a leaf's requests, through the whole model in this process."""
    shard = made.shards[node]
    pairs = list(shard.singles(COUNT, number))
    logits = exit_logits(model(), model().weights(), CUTS, torch.cat([x for x, _ in pairs]), CPU)
    limits = torch.tensor([levels[node], levels["edge"], 0.0])[:, None]
    exits = (confidence(logits) >= limits).to(torch.int64).argmax(0)
    answers = logits.argmax(-1)[exits, torch.arange(COUNT)]
    right = answers == torch.cat([y for _, y in pairs])
    return [(int(exit) + 1, bool(ok)) for exit, ok in zip(exits, right, strict=True)]


def middle(made: Fleet) -> dict[str, float]:
    """Thresholds that about half of the requests pass at leaves and edge."""
    x = torch.cat([x for node in TREE.leaves() for x, _ in made.shards[node].singles(COUNT, 0)])
    sure = confidence(exit_logits(model(), model().weights(), CUTS, x, CPU))
    levels = {node: float(sure[0].median()) + 1e-6 for node in TREE.leaves()}
    return {**levels, "edge": float(sure[1].median()) + 1e-6}


async def test_every_request_is_answered_where_its_confidence_says_and_as_the_whole_model_would(tmp_path: Path) -> None:
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        levels = middle(made)
        assert await route(made, levels).run() == "all requests answered"
        served = {record.request: record for record in made.of(Served)}
        assert len(served) == len(made.of(Served)) == 2 * COUNT
        got = [(served[n].exit, served[n].right) for n in range(2 * COUNT)]
        assert got == [*expected(made, "leaf-1", 0, levels), *expected(made, "leaf-2", 1, levels)]
        assert {record.exit for record in served.values()} == {1, 2, 3}
        for record in served.values():
            assert [hop.node for hop in record.hops[1:]] == ["edge", "cloud"][: record.exit - 1]
            times = [t for hop in record.hops for t in (hop.queued_ns, hop.delivered_ns, hop.began_ns, hop.done_ns)]
            assert times == sorted(times)
            assert all(hop.up_bytes > 0 for hop in record.hops[:-1])
            assert all(hop.down_bytes > 0 for hop in record.hops[1:])
        assert {record.device for record in made.of(DeviceDone)} == set(NODES)
        first = {record.device: record.at_ns for record in made.of(TaskSent)}
        assert max(first["edge"], first["cloud"]) < min(first["leaf-1"], first["leaf-2"])


async def test_a_dead_node_loses_what_it_had_and_what_still_comes_and_is_named(tmp_path: Path) -> None:
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        levels = dict.fromkeys([*TREE.leaves(), "edge"], NEVER)  # all go to the cloud
        router = route(made, levels, rate=20.0)
        work = asyncio.create_task(router.run())
        await made.expect(Served)
        router.lost("cloud", "it was switched off")
        why = await work
        lost = made.of(RequestsLost)
        gone = sum(len(record.requests) for record in lost)
        assert why == f"{gone} requests lost"
        assert gone + len(made.of(Served)) == 2 * COUNT
        assert gone > 0
        assert {(record.node, record.why) for record in lost} == {("cloud", "it was switched off")}
        assert [record.device for record in made.of(DeviceOut)] == ["cloud"]


async def test_a_dead_leaf_loses_its_own_requests_and_no_others(tmp_path: Path) -> None:
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        router = route(made, dict.fromkeys([*TREE.leaves(), "edge"], NEVER), rate=20.0)
        work = asyncio.create_task(router.run())
        await made.expect(Served, lambda record: record.hops[0].node == "leaf-1")
        router.lost("leaf-1", "trodden on")
        await work
        (lost,) = made.of(RequestsLost)
        assert lost.node == "leaf-1"
        assert set(lost.requests) <= set(range(COUNT))
        assert sum(record.hops[0].node == "leaf-2" for record in made.of(Served)) == COUNT


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (bytes(10**7), "10000000 bytes"),
        (zstandard.ZstdCompressor(level=1).compress(bytes(20 << 20)), "would unpack to"),
        (encode_tensors({"features": torch.zeros(1)}, Codec()), "KeyError"),
    ],
    ids=["large", "bomb", "misshapen"],
)
async def test_a_leaf_that_sends_what_no_exit_can_send_is_named(tmp_path: Path, body: bytes, said: str) -> None:
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        router = route(made, dict.fromkeys([*TREE.leaves(), "edge"], NEVER), rate=20.0)
        work = asyncio.create_task(router.run())
        await made.expect(Served, lambda record: record.hops[0].node == "leaf-1")
        header = Upload("leaf-1", "serve/leaf-1", 10**6, 1)
        sending = asyncio.create_task(made.agents["leaf-1"].endpoint.send(ORCHESTRATOR, header, body))
        await work
        await asyncio.gather(sending, return_exceptions=True)
        (out,) = made.of(DeviceOut)
        assert (out.device, said in out.why) == ("leaf-1", True), out.why
        assert sum(record.hops[0].node == "leaf-2" for record in made.of(Served)) == COUNT


@pytest.mark.parametrize("kind", [torch.float64, torch.int32])
async def test_request_numbers_of_another_kind_lose_the_node_and_nothing_waits_for_them(
    tmp_path: Path, kind: torch.dtype
) -> None:
    """A float was once found among the requests that were there, and taken away before anything failed."""
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        router = route(made, dict.fromkeys([*TREE.leaves(), "edge"], NEVER), rate=20.0)
        made.trainers["cloud"].gate.clear()
        work = asyncio.create_task(router.run())
        await made.expect(UploadReceived, lambda record: record.device == "edge")
        made.trainers["cloud"].gate.set()
        await made.expect(ReplyDelivered, lambda record: record.device == "cloud")
        numbers = torch.arange(2 * COUNT).to(kind)
        times = torch.zeros(2 * COUNT, 3, dtype=torch.int64)
        body = encode_tensors({"request": numbers, "prediction": torch.zeros(2 * COUNT), "times": times}, Codec())
        header = Upload("cloud", "serve/cloud", 10**6, 1)
        sending = asyncio.create_task(made.agents["cloud"].endpoint.send(ORCHESTRATOR, header, body))
        await work
        await asyncio.gather(sending, return_exceptions=True)
        (out,) = made.of(DeviceOut)
        assert (out.device, "instead of torch.int64" in out.why) == ("cloud", True), out.why
        assert sum(len(record.requests) for record in made.of(RequestsLost)) + len(made.of(Served)) == 2 * COUNT


async def test_a_request_that_is_forwarded_again_loses_its_node(tmp_path: Path) -> None:
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        router = route(made, dict.fromkeys([*TREE.leaves(), "edge"], NEVER), rate=20.0)
        work = asyncio.create_task(router.run())
        await made.expect(Served, lambda record: record.hops[0].node == "leaf-1")
        request, times = torch.tensor([COUNT - 1]), torch.zeros(1, 3, dtype=torch.int64)
        body = encode_tensors({"features": torch.zeros(1, 4), "request": request, "times": times}, Codec())
        header = Upload("leaf-1", "serve/leaf-1", 10**6, 1)
        endpoint = made.agents["leaf-1"].endpoint
        sends = [asyncio.create_task(endpoint.send(ORCHESTRATOR, header, body)) for _ in range(50)]
        await work
        await asyncio.gather(*sends, return_exceptions=True)
        outs = {record.device: record.why for record in made.of(DeviceOut)}
        assert "sent it before" in outs["leaf-1"]
        assert sum(record.hops[0].node == "leaf-2" for record in made.of(Served)) <= COUNT


async def test_a_node_that_only_shows_life_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.serving.router.PATIENCE", 0.2)
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        router = route(made, dict.fromkeys([*TREE.leaves(), "edge"], NEVER), rate=20.0)
        made.trainers["cloud"].gate.clear()
        try:
            await router.run()
        finally:
            made.trainers["cloud"].gate.set()
        (out,) = made.of(DeviceOut)
        assert (out.device, "decided no request" in out.why) == ("cloud", True), out.why
        assert sum(len(record.requests) for record in made.of(RequestsLost)) == 2 * COUNT


async def test_an_interruption_ends_every_task(tmp_path: Path) -> None:
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        router = route(made, {}, rate=0.01)
        work = asyncio.create_task(router.run())
        await made.expect(TaskSent, lambda record: record.device == "leaf-2")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()
        await until(lambda: all(d.status and not d.status.task for d in made.controller.membership.devices.values()))


async def test_leaves_begin_when_every_node_above_is_ready(tmp_path: Path) -> None:
    async with fleet(tmp_path, NODES) as made, asyncio.timeout(30):
        made.trainers["cloud"].gate.clear()
        work = asyncio.create_task(route(made, dict.fromkeys([*TREE.leaves(), "edge"], NEVER)).run())
        await made.expect(UploadReceived, lambda record: record.device == "edge")
        await made.expect(TaskDelivered, lambda record: record.device == "cloud")
        assert {record.device for record in made.of(TaskSent)} == {"edge", "cloud"}
        made.trainers["cloud"].gate.set()
        assert await work == "all requests answered"
        assert most_ahead(made, "edge") <= AHEAD
        assert most_ahead(made, "cloud") <= AHEAD


def most_ahead(made: Fleet, node: str) -> int:
    """The most requests that were on a node and not decided."""
    ahead = most = 0
    for record in made.records:
        if isinstance(record, ReplyDelivered) and record.device == node:
            ahead += 1
        elif isinstance(record, UploadReceived) and record.device == node and record.batch:
            ahead -= 1
        most = max(most, ahead)
    return most


def test_requests_are_served_at_the_speed_of_the_host(tmp_path: Path) -> None:
    """No reference has recorded what a request takes."""
    wanted, said = FleetSpec("seven", "local", 0.5, (), tmp_path / "f.yaml"), list[str]()
    experiment = Experiment(name="e", fleet="f.yaml", model=MODEL, methods=[{"name": "early-exit"}])
    check_speed(experiment, wanted, said.append)
    assert said == []
    held = msgspec.structs.replace(experiment, speed="reference x86-avx512")
    check_speed(held, wanted, said.append)
    assert "served at the speed of this host" in said[0]
    by_file = msgspec.structs.replace(wanted, wanted_speed="reference x86-avx512")
    with pytest.raises(UsageError, match="no reference knows what a request takes"):
        check_speed(experiment, by_file, said.append)
