"""The trainer's process: the same bits as in this process, and an end that is told."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch

from edgebed.errors import RunError
from edgebed.methods.base import METHODS, Method
from edgebed.models.staged import Weights
from edgebed.wire.messages import Cost
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.rounds.evaluator import LocalEvaluator
from orchestrator.testing.rounds import BATCH, CPU, SCHEDULE, make_method, small_model, view
from orchestrator.training import orders as o
from orchestrator.training import parcel
from orchestrator.training import process as process_module
from orchestrator.training.process import TrainerProcess
from orchestrator.training.remote import RemoteTrainer
from orchestrator.training.server import HalfTrainer, ServerTrainer, StepResult
from orchestrator.training.slot import HeldTo
from tests.hangs import COMMAND_S

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one process for all tests

HALVED = [name for name, cls in METHODS.classes().items() if cls.server_halves is not Method.server_halves]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncIterator[TrainerProcess]:
    async with TrainerProcess.started() as process:
        await process.ready()
        yield process


def upload(method: Method, device: str, stages: int, number: int) -> Weights:
    generator = torch.Generator().manual_seed(number + 10 * ord(device))
    shape = method.context.model.feature_shape(stages)
    z = torch.randn(BATCH, *shape, generator=generator)
    y = torch.randint(method.context.model.classes, (BATCH,), generator=generator)
    logits = torch.randn(BATCH, method.context.model.classes, generator=generator)
    k = getattr(method, "k", 1)  # of top-k: the first ones
    places = torch.arange(k, dtype=torch.int32).repeat(BATCH, 1)
    return {"features": z, "labels": y, "logits": logits, "values": z.flatten(1)[:, :k], "places": places}


async def one_round(trainer: HalfTrainer, name: str) -> tuple[list[StepResult], list[Weights]]:
    """Steps and weights of three devices with two uploads each."""
    method = make_method(name)
    plan = method.plan(0, [view(device, 2 * BATCH) for device in "abc"], SCHEDULE)
    assert await trainer.open(method, small_model().weights(), plan.assignments) == set("abc")
    steps = [
        asyncio.create_task(trainer.submit(d, n, upload(method, d, plan.assignments[d].stages, n)))
        for n in range(2)
        for d in "abc"
    ]
    results = [result for step in steps if (result := await step) is not None]
    assert len(results) == 6
    assert all(result.end_ns > result.start_ns for result in results)
    weights = await asyncio.gather(*(trainer.finish(device, 2) for device in "abc"))
    return results, weights


def equal(one: list[Weights], other: list[Weights]) -> bool:
    return all(
        list(a) == list(b) and all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("name", HALVED)
async def test_halves_in_the_process_give_the_same_bits(process: TrainerProcess, name: str) -> None:
    here, there = ServerTrainer(CPU, slots=2), RemoteTrainer(process)
    expected, found = await one_round(here, name), await one_round(there, name)
    assert equal([step.replies for step in expected[0]], [step.replies for step in found[0]])
    assert equal(expected[1], found[1])
    await here.close()
    await there.close()


async def test_a_test_in_the_process_gives_the_same_score(process: TrainerProcess) -> None:
    method, weights = make_method("fedavg"), small_model().weights()
    x = torch.randn(30, *small_model().input_shape, generator=torch.Generator().manual_seed(1))
    samples = x, torch.arange(30) % small_model().classes
    for _ in range(2):  # the second time the process has the samples
        assert await process.evaluate(method, weights, samples) == await LocalEvaluator(CPU).evaluate(
            method, weights, samples
        )
    assert (await process.final(method, weights, samples, samples)).accuracy >= 0


async def test_cuts_are_profiled_in_the_process(process: TrainerProcess) -> None:
    model = small_model()
    batch = torch.randn(8, *model.input_shape), torch.zeros(8).long()
    costs = await process.profile(model, model.cuts_with_head, 8, Codec(), Optimizer(), batch)
    assert list(costs) == list(model.cuts_with_head)
    assert all(cost.server_s > 0 and cost.device_s > 0 for cost in costs.values())


async def test_an_error_of_a_half_comes_back_as_it_is(process: TrainerProcess) -> None:
    method, trainer = make_method("splitfed"), RemoteTrainer(process)
    plan = method.plan(0, [view("a", BATCH)], SCHEDULE)
    await trainer.open(method, small_model().weights(), plan.assignments)
    foreign = {"labels": torch.full((BATCH,), 99)}
    with pytest.raises(RunError, match="device 'a' sent a label outside") as caught:
        await trainer.submit("a", 0, {**upload(method, "a", 2, 0), **foreign})
    assert caught.value.hint == "cut the shards from the same data set"
    await trainer.close()


async def test_a_method_that_cannot_be_copied_is_named(process: TrainerProcess) -> None:
    method, trainer = make_method("splitfed"), RemoteTrainer(process)
    method.callback = lambda: None  # type: ignore[attr-defined]
    plan = method.plan(0, [view("a", BATCH)], SCHEDULE)
    with pytest.raises(RunError, match="the method 'splitfed' cannot be copied") as caught:
        await trainer.open(method, small_model().weights(), plan.assignments)
    assert "no functions" in caught.value.hint


async def test_a_process_that_is_killed_ends_the_work_with_its_cause() -> None:
    async with TrainerProcess.started() as process:
        await process.ready()
        trainer = RemoteTrainer(process)
        work = asyncio.create_task(process.guard(asyncio.Event().wait()))
        method = make_method("splitfed")
        plan = method.plan(0, [view("a", BATCH)], SCHEDULE)
        await trainer.open(method, small_model().weights(), plan.assignments)
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            with pytest.raises(RunError, match="was killed \\(SIGKILL, perhaps because memory was short\\)") as caught:
                await work
            with pytest.raises(RunError, match="trainer's process"):
                await trainer.submit("a", 0, upload(method, "a", 2, 0))
        assert "--resume" in caught.value.hint
        await trainer.close()
    assert not psutil.pid_exists(process.pid)


async def test_a_process_that_hangs_is_ended_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LOOK_S", 0.02)
    monkeypatch.setattr(process_module, "STILL_LOOKS", 50)
    async with TrainerProcess.started() as process:
        await process.ready()
        work = asyncio.create_task(process.guard(asyncio.Event().wait()))
        os.kill(process.pid, signal.SIGSTOP)  # as if it waited for itself
        async with asyncio.timeout(30):
            with pytest.raises(RunError, match="hung and was ended: stopped, with work to do") as caught:
                await process.call(o.Forget(0))
            with pytest.raises(RunError, match="hung"):
                await work
        assert "--resume" in caught.value.hint


async def test_an_answer_that_cannot_be_read_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async with TrainerProcess.started() as process:
        await process.ready()

        receive = parcel.receive

        def full(*arguments: Any) -> None:
            receive(*arguments)
            monkeypatch.undo()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(parcel, "receive", full)
        async with asyncio.timeout(30):
            with pytest.raises(RunError, match=r"cannot be read: .*Too many open files"):
                await process.call(o.Forget(0))


async def test_whoever_waits_for_an_answer_is_told_that_the_process_is_closed() -> None:
    async with TrainerProcess.started() as process:
        await process.ready()
        os.kill(process.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(process.call(o.Forget(0)))
        await asyncio.sleep(0)
    with pytest.raises(RunError, match="closed"):
        await waiting


async def test_a_parcel_without_its_memory_is_told() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(b"p")
        with pytest.raises(OSError, match="Too many open files"):
            parcel.receive(ours, o.Answer)


def cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds of each thread of a process, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {thread.name: int((thread / "schedstat").read_text().split()[0]) / 1e9 for thread in threads}


class NoQuota:
    """Leaves the process as it is."""

    def set(self) -> float:
        return 0.0

    def lift(self) -> None: ...


async def test_steps_of_a_paced_server_take_their_turns_and_their_time() -> None:
    """The three halves' uploads are there at once. What one step is held for gives the next one nothing."""
    cpus = 0.02
    async with TrainerProcess.started() as process:
        await process.ready()
        await process.limit(NoQuota(), cpus, paced=True)
        before_s, begun = cpu_s(process.pid), time.monotonic()
        results, _ = await one_round(RemoteTrainer(process), "splitfed")
        took_s, after_s = time.monotonic() - begun, cpu_s(process.pid)
        used_s = max(after_s[thread] - before_s.get(thread, 0.0) for thread in after_s)  # by the thread that is paced
        assert took_s > 0.8 * used_s / cpus
        steps = sorted(results, key=lambda step: step.start_ns)
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(steps))


async def test_slots_of_a_held_server_take_the_time_of_the_reference_each_for_itself() -> None:
    """Each step takes 0.05 CPU s on the reference, at 0.5 CPU: 0.1 s, in two slots at once."""
    taken = {"make": 0.04, "first step": 0.05, "step": 0.05, "joined step": 0.02, "read": 0.03}
    kinds = {kind: Cost(((1.0, cpu_s), (100.0, cpu_s))) for kind, cpu_s in taken.items()}
    held_to = HeldTo(lambda method, assignment: kinds if method == "splitfed" else {}, index=2.0)
    async with TrainerProcess.started() as process:
        await process.ready()
        await process.limit(None, 0.5, slots=2, held_to=held_to)
        trainer, begun = RemoteTrainer(process), time.monotonic()
        results, _ = await one_round(trainer, "splitfed")
        assert trainer.made is not None
        assert trainer.made.reference_s == {"recorded": pytest.approx(3 * 0.04)}  # one half for each device
        assert min(step.start_ns for step in results) / 1e9 - begun > 3 * 0.04 / 0.5 - 0.02
        steps = sorted(results, key=lambda step: step.start_ns)
        assert all(step.spent is not None and step.spent.samples == BATCH for step in steps)
        assert [step.spent.reference_s for step in steps if step.spent] == [{"recorded": 0.05}] * 6
        took_s = (max(step.end_ns for step in steps) - steps[0].start_ns) / 1e9
        assert took_s > 3 * 0.1 - 0.02  # six steps, two at a time; the first ones begin where their orders came
        overlap = [b.start_ns < a.end_ns for a, b in itertools.pairwise(steps)]
        assert any(overlap)
        trainer = RemoteTrainer(process)
        results, _ = await one_round(trainer, "dtfl")  # of which nothing is known
        for step in results:
            assert step.spent is not None
            assert step.spent.reference_s == {"index": pytest.approx(2 * step.spent.cpu_s)}
        assert trainer.made is not None
        assert set(trainer.made.reference_s) == {"index"}


async def test_the_process_ends_with_the_orchestrator() -> None:
    """One that is killed cannot close anything."""
    script = (
        "import asyncio, os\n"
        "from orchestrator.training.process import TrainerProcess\n"
        "async def main():\n"
        "    async with TrainerProcess.started() as process:\n"
        "        await process.ready()\n"  # one that is not ends as it says so
        "        print(process.pid, flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(run.communicate(), COMMAND_S)
    pid = int(out)
    with contextlib.suppress(psutil.NoSuchProcess):
        await asyncio.to_thread(psutil.Process(pid).wait, 60)
