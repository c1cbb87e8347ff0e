"""Simulated seconds from a reference: a simulated device is charged the pieces that an agent is charged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from edge_agent.training import DeviceTrainer
from edgebed.datasets.shard import Shard
from edgebed.device.batches import ShardBatches
from edgebed.device.core import begin_half, run_task
from edgebed.device.kept import KeptStates
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.device.pieces import RECORDED, seconds
from edgebed.errors import UsageError
from edgebed.models.staged import Weights
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Assignment, Cost, Task, Upload
from edgebed.wire.settings import Codec
from orchestrator.references.reference import load_reference
from orchestrator.simulation.costs import CostModel
from orchestrator.simulation.reference_costs import ReferenceCosts
from orchestrator.simulation.task_executor import SimulatedUploadQueue, TaskExecutor
from tests.component._fleet import model, write_noise_shard
from tests.unit._assignments import assignment

WORKS = {
    "fedavg": {"objective": "output", "stages": 8, "uploads": ("weights",), "epochs": 2},
    "dtfl": {"objective": "head", "stages": 3, "epochs": 2},
    "splitfed": {"objective": "server", "stages": 2},
}
REFERENCE = load_reference("x86-avx512")


def log() -> PhaseLog:
    return PhaseLog(lambda: 0, lambda name, length_ns: (0, 0, 0))


def answer(body: bytes | bytearray) -> bytes:
    """What the server's half would send: a gradient."""
    sent: Weights = decode_tensors(body)
    return bytes(encode_tensors({"gradient": torch.zeros_like(sent["features"])}, Codec()))


class Agent:
    """The agent's side of the training thread: notes the pieces."""

    def __init__(self) -> None:
        self.metrics, self.pieces, self.replies = TaskMetrics(), list[tuple[str, int]](), dict[int, bytes]()

    def done(self, kind: str, size: int) -> None:
        self.pieces.append((kind, size))

    def upload(self, header: Upload, body: bytes | bytearray) -> None:
        self.replies[header.batch] = answer(body)

    def reply(self, batch: int) -> bytes:
        return self.replies[batch]

    def check(self) -> None: ...

    def progress(self) -> None: ...

    def wait(self, seconds: float) -> None: ...

    def hold(self) -> None: ...

    def pace(self) -> None: ...


class Noting(CostModel):
    """Notes the pieces that a device is charged."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, int]] = []

    def piece_s(self, assignment: Assignment, kind: str, size: int) -> float:
        self.pieces.append((kind, size))
        return 1.0


class Simulated:
    """A simulated device without a link. `used_s`: CPU seconds."""

    def __init__(self) -> None:
        self.name, self.phases, self.costs = "a", log(), Noting()
        self.used_s, self.replies = 0.0, dict[int, asyncio.Future[memoryview]]()

    def now_s(self) -> float:
        return self.used_s

    async def use(self, task: Task, cpu_s: float) -> float:
        self.used_s += cpu_s
        return cpu_s

    async def send(self, header: Upload, body: bytes | bytearray) -> int:
        self.reply_to(header.batch).set_result(memoryview(answer(body)))
        return len(body)

    def reply_to(self, batch: int) -> asyncio.Future[memoryview]:
        return self.replies.setdefault(batch, asyncio.get_running_loop().create_future())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    async def do(self, task: Task, body: bytes | bytearray, shard: Shard, *, builds: bool) -> TaskExecutor:
        work, metrics = task.assignment, TaskMetrics(1000)

        def begin(own: Assignment, weights: Any, batches: Any, kept: Any) -> Any:
            return begin_half(model(), own, weights, batches, kept, keep=True)

        steps = run_task(task, work, body, begin, ShardBatches(shard, work), self.phases, KeptStates())
        uploads = SimulatedUploadQueue(self, metrics, work)
        executor = TaskExecutor(self, task, work, steps, uploads, metrics, builds=builds)
        await executor.run()
        await uploads.drained()
        return executor


def work_of(name: str, folder: Path, costs: dict[str, Cost] | None = None) -> tuple[Task, bytes | bytearray, Shard]:
    shard = write_noise_shard(folder / "a.safetensors", 20)
    own = assignment(**WORKS[name], batch_size=8)
    names = model().names_below(own.stages, head=own.objective == "head")
    body = encode_tensors({key: model().weights()[key] for key in names}, Codec())
    return Task("t", "r", 0, own, costs or {}), body, shard


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("builds", [True, False])
async def test_a_simulated_device_is_charged_the_pieces_of_an_agent(name: str, builds: bool, tmp_path: Path) -> None:
    task, body, shard = work_of(name, tmp_path)
    trainer, agent, device = DeviceTrainer(shard, log()), Agent(), Simulated()
    if not builds:  # a task before this one has built the model
        trainer.run(task, body, Agent(), 1)
    trainer.run(task, body, agent, 1)
    await device.do(task, body, shard, builds=builds)
    own = [piece for piece in device.costs.pieces if piece[0] not in ("send", "receive")]
    assert own == agent.pieces
    others = [kind for kind, _ in device.costs.pieces if kind in ("send", "receive")]
    assert (others.count("send"), others.count("receive")) == (
        len(agent.replies),
        1 + (len(agent.replies) if name == "splitfed" else 0),
    )
    assert device.used_s == len(device.costs.pieces)  # every piece takes its second


async def test_pieces_that_vary_are_drawn_from_the_seed_of_the_task(tmp_path: Path) -> None:
    varying = Cost(((8, 2.0),), spread=(0.5, 0.9, 1.5, 2.0, 2.0), lag=0.3)
    task, body, shard = work_of("fedavg", tmp_path, {"batch": varying, "first batch": varying})
    taken = [(await Simulated().do(task, body, shard, builds=True)).pieces.reference_s for _ in range(2)]
    own = msgspec.structs.replace(task.assignment, seed=task.assignment.seed + 1)
    other = await Simulated().do(msgspec.structs.replace(task, assignment=own), body, shard, builds=True)
    assert taken[0] == taken[1] != other.pieces.reference_s


async def test_what_a_task_says_that_its_pieces_cost_is_charged_and_reported(tmp_path: Path) -> None:
    costs = {
        "receive": Cost(((0, 0.0), (1000, 0.5))),
        "build": Cost(((1, 0.0), (10**9, 0.0)), "layers"),
        "first batch": Cost(((8, 3.0),)),
        "batch": Cost(((4, 1.0), (8, 2.0))),
        "finish": Cost(((1, 0.25),), "layers"),
    }
    task, body, shard = work_of("fedavg", tmp_path, costs)
    device = Simulated()
    executor = await device.do(task, body, shard, builds=True)
    recorded = 0.5 + 3.0 + (2.0 + 1.0) + (2.0 + 2.0 + 1.0)  # two epochs of batches of 8, 8 and 4
    assert executor.pieces.reference_s == pytest.approx({RECORDED: recorded, "layers": 0.25, "index": 0.0})
    assert device.used_s == pytest.approx(recorded + 0.25)
    assert device.costs.pieces == []


def test_the_server_takes_the_references_pieces_and_a_group_their_sum() -> None:
    costs = ReferenceCosts(REFERENCE)
    own = assignment(stages=3)
    held = costs.held_server
    assert held is not None
    kinds = held.costs("dtfl", own)
    step_s = seconds(kinds["step"], 8)
    assert costs.server_s("dtfl", [(own, "step", 8)]) == pytest.approx(step_s)
    assert costs.server_s("dtfl", [(own, "step", 8), (own, "joined step", 8)]) == pytest.approx(2 * step_s)
    assert costs.server_s("dtfl", [(own, "first step", 8)]) > step_s
    assert costs.server_s("dtfl", [(own, "read", 1)]) == pytest.approx(kinds["read"].points[0][1])


def test_a_link_has_the_wires_headers_and_the_latency_both_ways() -> None:
    cost = ReferenceCosts(REFERENCE).link(20.0, 8_000_000)
    assert (cost.latency_s, cost.ack_s) == (0.02, 0.02)
    assert cost.byte_s == pytest.approx(1e-6 / WIRE_SHARE)


def test_work_that_neither_a_recording_nor_layers_tell_is_refused_with_what_to_do() -> None:
    bare = ReferenceCosts(msgspec.structs.replace(REFERENCE, work={}, layers={}))
    asks = (lambda: bare.task_costs(assignment()), lambda: bare.server_s("dtfl", [(assignment(), "step", 8)]))
    for ask in asks:
        with pytest.raises(UsageError, match="reference x86-avx512 does not know what a ") as refused:
            ask()
        assert "edgebed reference record NAME EXPERIMENT" in refused.value.hint
