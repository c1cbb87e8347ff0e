"""The round driver where order matters: uploads that arrive while the server halves are being made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

import torch

from edgebed.link.endpoint import ReceivedTransfer
from edgebed.methods.base import ServerHalf, trained_names
from edgebed.methods.dtfl import Dtfl
from edgebed.models.staged import Weights
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Header, Report, Task, Update, Upload
from edgebed.wire.settings import Codec
from orchestrator.records.host_records import ServerStep
from orchestrator.records.types import Record
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.job import RoundJob
from orchestrator.rounds.settings import RoundSettings
from orchestrator.testing.rounds import BATCH, CPU, SCHEDULE, make_method, small_model, view
from orchestrator.training.server import ServerTrainer


class FakeEndpoint:
    """Takes a task and delivers it at once."""

    def __init__(self) -> None:
        self.task: asyncio.Future[Task] = asyncio.get_running_loop().create_future()

    async def send(self, peer: str, header: Header, body: bytes) -> Any:
        assert isinstance(header, Task)
        self.task.set_result(header)
        await asyncio.Event().wait()

    def control(self, peer: str, message: object) -> None: ...

    def forget(self, peer: str) -> None: ...


def run_to_first_wait(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never has to wait, here and now."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


async def test_uploads_are_used_in_order_though_the_halves_become_ready_between_two() -> None:
    method = make_method("dtfl", tier=1)
    assert isinstance(method, Dtfl)
    release, both = threading.Event(), asyncio.Event()
    make = method.server_halves

    def when_released(
        weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        release.wait(10)
        return make(weights, assignments, accelerator)

    method.server_halves = when_released  # type: ignore[method-assign]
    records: list[Record] = []
    endpoint, trainer = FakeEndpoint(), ServerTrainer(CPU, slots=1)
    settings = RoundSettings("run", {"a": 2 * BATCH})
    plan, weights = method.plan(0, [view("a", 2 * BATCH)], SCHEDULE), small_model().weights()
    job = RoundJob(0, plan, weights, method)
    driver = RoundDriver(endpoint, trainer, records.append, lambda device, why: None, settings, job)  # type: ignore[arg-type]
    begin = trainer.begin

    def begin_as_the_next_arrives(halves: list[ServerHalf]) -> None:
        begin(halves)
        if halves:
            run_to_first_wait(driver.deliver(upload(1)))
            both.set()

    trainer.begin = begin_as_the_next_arrives  # type: ignore[method-assign,assignment]
    round_ = asyncio.create_task(driver.run())
    task = await endpoint.task

    def upload(batch: int) -> ReceivedTransfer:
        z = {"features": torch.ones(BATCH, *small_model().feature_shape(1)), "labels": torch.zeros(BATCH).long()}
        return inbound(Upload("a", task.id, batch, BATCH), z)

    run_to_first_wait(driver.deliver(upload(0)))
    await asyncio.sleep(0)  # upload 0 waits for its half
    release.set()
    names = trained_names(method.context.model, task.assignment)
    report = Report(2 * BATCH, 2, 0.5, 0.1, 0.1, None, 0, 0.0, 0, 0.0, 0.0)
    async with asyncio.timeout(10):
        await both.wait()
        await driver.deliver(inbound(Update("a", task.id, report), {name: weights[name] for name in names}))
        result = await round_
    assert [c.device for c in result.contributions] == ["a"]
    assert [r.batch for r in records if isinstance(r, ServerStep)] == [0, 1]
    await trainer.close()


def inbound(header: Header, tensors: Weights) -> ReceivedTransfer:
    return ReceivedTransfer("a", header, memoryview(encode_tensors(tensors, Codec())), 1, 2, 100)


async def test_a_device_that_the_fleet_gave_up_is_not_given_up_again() -> None:
    """Else a device that has come back meanwhile would count as away once more."""
    method, given_up = make_method("fedavg"), list[str]()
    endpoint, trainer = FakeEndpoint(), ServerTrainer(CPU, slots=1)
    settings = RoundSettings("run", {"a": BATCH})
    plan = method.plan(0, [view("a", BATCH)], SCHEDULE)
    job = RoundJob(0, plan, small_model().weights(), method)
    driver = RoundDriver(
        endpoint, trainer, lambda record: None, lambda device, why: given_up.append(device), settings, job
    )  # type: ignore[arg-type]
    round_ = asyncio.create_task(driver.run())
    await endpoint.task
    driver.lost("a", "its agent was killed")
    async with asyncio.timeout(10):
        assert (await round_).why == "void"
    assert given_up == []
    await trainer.close()
