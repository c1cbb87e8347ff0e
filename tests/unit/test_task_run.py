"""What a task charges to the pacer of its device, and where it is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from edge_agent.software_throttle import SoftwareThrottle
from edge_agent.task_run import ReplyBox, TaskRun, Tools
from edge_agent.telemetry import ThreadCpu, Throttling
from edge_agent.training import DeviceTrainer
from edgebed.device.core import Body, Result
from edgebed.device.phases import PhaseLog
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.pacing import Pacer
from edgebed.wire.messages import Assignment, Cost, Header, Task, Upload

COSTS = {kind: Cost(((0.0, 0.0), (100.0, cpu_s))) for kind, cpu_s in (("receive", 1.0), ("send", 2.0), ("batch", 4.0))}


class Noted(Pacer):
    """Notes what it is told, and holds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, float]] = []
        self.used_s: float | None = None

    def charge(self, cpu_s: float) -> None:
        self.told.append(("charge", cpu_s))

    def hold(self, wait: Callable[[float], None], *, waited: bool = False, used_s: float | None = None) -> float:
        self.told.append(("waited" if waited else "hold", 0.0))
        self.used_s = used_s
        return 0.0


class Trainer(DeviceTrainer):
    """Does nothing with a task."""

    def __init__(self) -> None: ...

    def run(self, task: Task, body: Body, io: object, threads: int, cpus: float = 0.0) -> Result:
        return Result(b"", 1, 1, 0.0, {})


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def task_run(loop: asyncio.AbstractEventLoop, pacer: Noted, costs: dict[str, Cost]) -> TaskRun:
    async def send(header: Header, body: bytes | bytearray) -> None: ...

    phases = PhaseLog(time.monotonic_ns)
    tools = Tools(loop, phases, Throttling(), SoftwareThrottle(), pacer, ThreadCpu(), send, lambda: None)
    assignment = Assignment("a", {"name": "fcnn"}, 10, (1, 8, 8), 2, "head", hold=True)
    task = Task("run/0/a/0", "run", 0, assignment, costs)
    inbound = ReceivedTransfer("orchestrator", task, memoryview(b"x" * 40), 0, 0, 50)
    return TaskRun(task, inbound, tools, 0.1)


def test_a_held_task_charges_transfers_and_pieces_and_is_held_after_each(loop: asyncio.AbstractEventLoop) -> None:
    pacer = Noted()
    run = task_run(loop, pacer, COSTS)
    run.work(Trainer(), 1, 0.5)
    assert pacer.told == [("charge", 0.5), ("waited", 0.0)]  # the download; the work begins when it is here
    pacer.told.clear()
    run.done("batch", 25)
    assert pacer.told == [("charge", 1.0), ("hold", 0.0)]
    pacer.told.clear()
    run.upload(Upload("a", run.task.id, 0, 8), b"x" * 30)
    assert pacer.told == [("hold", 0.0), ("charge", pytest.approx(0.6))]  # sending counts after it is seen
    pacer.told.clear()
    run.answer(0, b"x" * 10)
    assert run.reply(0) == b"x" * 10
    assert pacer.told == [("hold", 0.0), ("charge", pytest.approx(0.1))]


def test_a_task_without_costs_is_held_at_its_events_only(loop: asyncio.AbstractEventLoop) -> None:
    pacer = Noted()
    run = task_run(loop, pacer, {})
    run.work(Trainer(), 1, 0.5)
    pacer.told.clear()
    run.done("batch", 25)
    assert pacer.told == [("charge", 0.0)]
    run.upload(Upload("a", run.task.id, 0, 8), b"x" * 30)
    assert ("hold", 0.0) in pacer.told


@pytest.mark.parametrize("waited", [True, False])
def test_a_wait_for_a_reply_counts_up_to_the_end_of_the_upload(
    waited: bool, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplyBox, "take", lambda box, batch: (b"x", waited))
    pacer = Noted()
    run = task_run(loop, pacer, {})
    run.work(Trainer(), 1, 0.5)
    run.uploads.sent_cpu_s = 7.0
    run.reply(0)
    assert pacer.used_s == (7.0 if waited else None)
