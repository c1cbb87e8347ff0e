"""The agent's queue of uploads where they are kept until all are computed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from edge_agent.upload_queue import UploadQueue
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.errors import TransferError, TransferRefused
from edgebed.timeouts import timeout
from edgebed.wire.messages import Header, Upload


class Line:
    """Delivers when told to; remembers what was handed to it, in order, and how much at once."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.at_once = self.most = 0
        self.go, self.full, self.error = asyncio.Event(), asyncio.Event(), False

    async def send(self, header: Header, body: bytes | bytearray) -> None:
        assert isinstance(header, Upload)
        self.batches.append(header.batch)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        if self.at_once == 2:
            self.full.set()
        try:
            await self.go.wait()
        finally:
            self.at_once -= 1
        if self.error:
            raise TransferRefused("not wanted")


def outbox(line: Line, metrics: TaskMetrics) -> UploadQueue:
    loop, phases = asyncio.get_running_loop(), PhaseLog(lambda: 0)
    return UploadQueue(loop, line.send, phases, threading.Event(), metrics, slots=2, hold=True)


def put(box: UploadQueue, count: int) -> None:
    for batch in range(count):
        box.put(Upload("a", "t", batch, 4), b"1234")


async def test_nothing_leaves_before_the_end_and_then_in_order_and_as_many_at_once_as_there_are_slots() -> None:
    line = Line()
    line.go.set()
    box = outbox(line, metrics := TaskMetrics())
    await asyncio.to_thread(put, box, 7)
    assert line.batches == []
    await box.drained()
    assert line.batches == list(range(7))
    assert line.most <= 2
    assert (metrics.upload_bytes, metrics.blocked_s) == (28, 0.0)


async def test_a_cancelled_task_forgets_what_it_kept() -> None:
    line = Line()
    box = outbox(line, TaskMetrics())
    put(box, 5)
    draining = asyncio.ensure_future(box.drained())
    async with timeout(5):
        await line.full.wait()
        box.abandon()
        await draining
    assert line.batches == [0, 1]


async def test_an_upload_that_is_refused_ends_it() -> None:
    line = Line()
    line.go.set()
    line.error = True
    box = outbox(line, TaskMetrics())
    put(box, 9)
    with pytest.raises(TransferError, match="not wanted"):
        async with timeout(5):
            await box.drained()
    assert len(line.batches) < 9
