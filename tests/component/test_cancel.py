"""Cancel abandons sends: an agent whose task is over gives up all uploads of it, queued or on the wire, at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.upload_queue import UploadQueue
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.errors import TransferError
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.methods.dtfl import Dtfl
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Cancel, Header, Task, Update, Upload
from edgebed.wire.settings import Codec
from edgebed.wire.topics import ORCHESTRATOR
from orchestrator.testing.rounds import SCHEDULE
from tests.component._fleet import Fleet, fleet, method, start_weights


class Holding:
    """Stands for a round driver: takes every upload, and acknowledges none while the gate is shut."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.arrived: list[Header] = []
        self.phases: dict[str, str] = {}  # by task
        self.changed = asyncio.Event()

    def admit(self, peer: str, header: Header, size: int) -> None: ...

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        self.arrived.append(inbound.header)
        self.changed.set()
        await self.gate.wait()

    def progress(self, device: str) -> None: ...

    def heard(self, device: str, moved: bool, task: str, phase: str) -> None:
        self.phases[task] = phase
        self.changed.set()

    def lost(self, device: str, why: str) -> None: ...

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not true():
                self.changed.clear()
                await self.changed.wait()


async def give(made: Fleet, task: str) -> None:
    """Send a DTFL task; on a device at tier 3 it uploads features of each of its batches."""
    made_method = method(Dtfl(Dtfl.Options(tier=3)))
    views = await made.controller.ready()
    assignment: Assignment = made_method.plan(0, views, SCHEDULE).assignments["dev-1"]
    weights = made_method.task_weights(start_weights(), assignment)
    await made.endpoint.send("dev-1", Task(task, "run", 0, assignment), encode_tensors(weights, Codec()))


async def test_an_agent_that_waits_for_its_receipts_gives_up_when_it_is_cancelled(tmp_path: Path) -> None:
    """It has trained, and two uploads have arrived and are not acknowledged: one waits in the application, one behind
    it. Nothing of them is in the way of the next task."""
    async with fleet(tmp_path, {"dev-1": 2 * SCHEDULE.batch_size}) as made:
        holding = Holding()
        made.controller.attach(made.record)
        made.controller.drivers["dev-1"] = holding
        await give(made, "first")
        await holding.until(lambda: holding.phases.get("first") == "upload_tail")
        sending = made.agents["dev-1"].endpoint._peers[ORCHESTRATOR].sending  # noqa: SLF001
        assert len(sending) == 2
        made.endpoint.control("dev-1", Cancel("first", "the round is over"))
        await holding.until(lambda: holding.phases.get("") == "waiting")
        assert not sending
        holding.gate.set()
        await give(made, "second")
        await holding.until(lambda: any(isinstance(header, Update) for header in holding.arrived))
        assert [(h.task, h.batch) for h in holding.arrived if isinstance(h, Upload)] == [
            ("first", 0),
            ("second", 0),
            ("second", 1),
        ]
        made.controller.drivers.clear()


async def test_abandoned_uploads_end_last_first_and_no_other_follows() -> None:
    loop, cancelled, ended = asyncio.get_running_loop(), threading.Event(), list[int]()
    begun, all_begun, all_ended = list[int](), asyncio.Event(), asyncio.Event()

    async def send(header: Header, body: bytes | bytearray) -> None:
        begun.append(len(body))
        if len(begun) == 3:
            all_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(len(body))
            if len(ended) == 3:
                all_ended.set()
            raise

    outbox = UploadQueue(loop, send, PhaseLog(lambda: 0), cancelled, TaskMetrics(), slots=4)
    for size in (1, 2, 3):
        await asyncio.to_thread(outbox.put, Upload("dev", "task", size, 1), bytes(size))
    await all_begun.wait()
    cancelled.set()
    outbox.abandon()
    async with asyncio.timeout(10):
        await all_ended.wait()
    assert ended == [3, 2, 1]
    with pytest.raises(TransferError, match="cancelled"):
        await asyncio.to_thread(outbox.put, Upload("dev", "task", 4, 1), b"late")
