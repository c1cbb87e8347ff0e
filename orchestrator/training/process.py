"""The trainer's process as the orchestrator sees it: starts it, sends orders, notices its end, closes it.

Server halves, tests of weights and the profiling of cuts run there, so they do not hold the interpreter lock of the
event loop, and they can get CPUs of their own. Tensors go through shared memory (`parcel`). At most `slots` + 1 steps
are under way at once; further ones wait here, so memory holds no more than that many copies of an upload.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import msgspec
import psutil

from edgebed.errors import RunError
from edgebed.methods.base import Batch, Context, CutCost, Method
from edgebed.methods.parts.evaluation import Score
from edgebed.models.staged import StagedModel, Weights
from edgebed.module_process import module_command
from edgebed.pacing import LATE_S
from edgebed.timeouts import end_in_time
from edgebed.wire.settings import Codec, Optimizer
from orchestrator.training import orders as o
from orchestrator.training import parcel
from orchestrator.training.child import READY
from orchestrator.training.copies import copy_of
from orchestrator.training.slot import HeldTo
from orchestrator.training.stillness import Stillness, cause

T = TypeVar("T")
START_S, END_S = 120.0, 5.0
"""Seconds in which the process must have started, and in which it must have ended."""

LOOK_S, STILL_LOOKS = 10.0, 60
"""Seconds between two looks at its CPU time, and the looks after which a process that has used none hangs."""

RESUME = "`edgebed run --resume RUN` continues from the last checkpoint"
MEMORY = "; if the host's memory was short (see `dmesg`), use smaller batches, fewer devices or a larger host"


class Quota(Protocol):
    """CPUs of the process: `fleet.host.server_quota.ServerQuota`."""

    def set(self) -> float: ...
    def lift(self) -> None: ...


class TrainerProcess:
    """One process for all runs of an experiment, which runs already (`started`).

    Args:
        sock: this end of the way to it.
        log: what it prints.

    Attributes:
        pid: of the process.
        hardware: the accelerator's name, or cpu; "" until it is `ready`.
        slots: server halves that train at once. `held_to`: whose time they keep; None: that of their own CPU time.
    """

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket, log: IO[bytes]) -> None:
        self._process, self._socket, self._log = process, sock, log
        self.pid, self.hardware, self.slots = process.pid, "", 1
        self._room = asyncio.Semaphore(2)
        self._quota: Quota | None = None
        self.held_to: HeldTo | None = None
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[parcel.Parcel[o.Answer]]] = {}
        self._kept: dict[int, tuple[int, object]] = {}  # number, by id of a context or of samples, which stay alive
        self._guarded: set[asyncio.Future[Any]] = set()
        self._failure: RunError | None = None
        self._why = ""
        self._closing = False
        self._lifted = 0
        self._cpus = math.inf
        self._ready = self._expect(READY)
        self._gone: asyncio.Task[None] | None = None
        self._watching = asyncio.create_task(self._watch())
        asyncio.get_running_loop().add_reader(sock, self._read)

    # ---- life ----

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, plugins: Path | None = None) -> AsyncIterator[TrainerProcess]:
        """Start the process, which loads torch (`ready` waits for it) and a folder of plug-ins. Closed at the end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, tempfile.TemporaryFile() as log:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *module_command(
                        "orchestrator.training.child", str(theirs.fileno()), *map(str, filter(None, [plugins]))
                    ),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the orchestrator, which then ends it
                )
            trainer = cls(process, ours, log)
            try:
                yield trainer
            finally:
                await trainer.close()

    async def ready(self) -> None:
        """Raises RunError where the process has not started in time."""
        try:
            async with asyncio.timeout(START_S):
                answer = await asyncio.shield(self._ready)
        except TimeoutError:
            raise RunError(f"the trainer's process has not started within {START_S:.0f} s", hint=RESUME) from None
        assert isinstance(answer.head.result, o.Ready)
        self.hardware = answer.head.result.accelerator

    async def limit(
        self,
        quota: Quota | None,
        cpus: float,
        paced: bool = False,
        period_s: float = LATE_S,
        *,
        slots: int = 1,
        held_to: HeldTo | None = None,
    ) -> None:
        """The process has a quota from now on. Tests of weights and the profiling of cuts are no work of the server's,
        and run without it.

        Args:
            quota: None: only the hold limits it.
            cpus: of each slot.
            paced: halves answer no earlier than their slot could (`edgebed.pacing`).
            period_s: of the quota.
            slots: halves that train at once.
            held_to: whose time the slots keep; None: that of their own CPU time.
        """
        self._quota, self._cpus, self.slots, self.held_to = quota, cpus, slots, held_to
        self._room = asyncio.Semaphore(slots + 1)
        index = 0.0 if held_to is None else held_to.index
        await self.call(o.Settle(slots, cpus if paced or index else 0.0, period_s, index))

    @contextlib.asynccontextmanager
    async def _unlimited(self) -> AsyncIterator[None]:
        """Lift the quota meanwhile. Tests of several methods may overlap."""
        if self._quota is None:
            yield
            return
        self._lifted += 1
        try:
            await asyncio.to_thread(self._quota.lift)
            yield
        finally:
            self._lifted -= 1
            if not self._lifted:
                await asyncio.to_thread(self._quota.set)

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._watching.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._fail(RunError("the trainer's process was closed", hint=RESUME))
        await end_in_time(self._process, END_S)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`. Raises RunError, with `work` cancelled and ended, once the process has ended by itself."""
        task = asyncio.ensure_future(work)
        self._guarded.add(task)
        try:
            if self._failure is not None:
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            self._guarded.discard(task)

    def process_id(self) -> int | None:
        """For measurements of its load; None once it has ended."""
        return None if self._failure is not None or self._closing else self.pid

    # ---- what it does ----

    def new_number(self) -> int:
        """Of something that the process is to keep."""
        return next(self._numbers)

    async def evaluate(self, method: Method, weights: Weights, samples: Batch) -> Score:
        """`Method.evaluate`."""
        return await self._test(method, weights, samples)

    async def final(self, method: Method, weights: Weights, validation: Batch, test: Batch) -> Score:
        """`Method.final`."""
        return await self._test(method, weights, validation, test)

    async def _test(self, method: Method, weights: Weights, *samples: Batch) -> Score:
        context = await self.keep_context(method.context)
        data = [await self._keep_samples(each) for each in samples]
        copy = await asyncio.to_thread(copy_of, method, method.context)
        async with self._unlimited():
            answer = await self.call(o.Test(context, tuple(data)), {o.COPY: {o.COPY: copy}, "weights": weights})
        return expect(answer, o.Scored).score

    async def profile(
        self, model: StagedModel, cuts: Sequence[int], batch_size: int, codec: Codec, optimizer: Optimizer, batch: Batch
    ) -> dict[int, CutCost]:
        """`profile_cuts`, on the accelerator of the process. Seconds of the server are those under its quota."""
        groups = {o.COPY: {o.COPY: copy_of(model)}, "data": {"x": batch[0], "y": batch[1]}}
        async with self._unlimited():
            answer = await self.call(o.ProfileCuts(tuple(cuts), batch_size, codec, optimizer), groups)
        share = min(1.0, self._cpus)
        costs = [
            msgspec.structs.replace(cost, server_s=cost.server_s / share) for cost in expect(answer, o.Costs).costs
        ]
        return {cost.cut: cost for cost in costs}

    async def keep_context(self, context: Context) -> int:
        """The number under which the process keeps a run's context."""
        if id(context) not in self._kept:
            number = self.new_number()
            await self.call(o.KeepContext(number), {o.COPY: {o.COPY: copy_of(context)}})
            self._kept[id(context)] = number, context
        return self._kept[id(context)][0]

    async def _keep_samples(self, samples: Batch) -> int:
        if id(samples[0]) not in self._kept:
            number = self.new_number()
            await self.call(o.KeepData(number), {"data": {"x": samples[0], "y": samples[1]}})
            self._kept[id(samples[0])] = number, samples
        return self._kept[id(samples[0])][0]

    # ---- calls ----

    async def call(self, order: o.Order, groups: parcel.Groups | None = None) -> parcel.Parcel[o.Answer]:
        """Send an order and wait for the answer. Raises the error that it names, and RunError if the process ended."""
        number = self.new_number()
        answered = self._expect(number)
        try:
            if isinstance(order, o.TakeStep):
                async with self._room:
                    return await self._send(o.Call(number, order), groups, answered)
            return await self._send(o.Call(number, order), groups, answered)
        finally:
            self._calls.pop(number, None)

    async def _send(
        self, call: o.Call, groups: parcel.Groups | None, answered: asyncio.Future[parcel.Parcel[o.Answer]]
    ) -> parcel.Parcel[o.Answer]:
        try:
            await asyncio.to_thread(parcel.send, self._socket, call, groups)
        except OSError as error:
            if not (self._closing or isinstance(error, ConnectionError)):
                raise  # otherwise the process has ended, and the answer says why
        answer = await answered
        if isinstance(answer.head.result, o.Failed):
            raise answer.head.result.problem.error()
        return answer

    def _expect(self, number: int) -> asyncio.Future[parcel.Parcel[o.Answer]]:
        future: asyncio.Future[parcel.Parcel[o.Answer]] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        if self._failure is not None:
            future.set_exception(self._failure)
        return future

    def _read(self) -> None:
        answer: parcel.Parcel[o.Answer] | None
        try:
            answer = parcel.receive(self._socket, o.Answer, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            answer = None
        except (OSError, ValueError, msgspec.MsgspecError) as error:  # somebody waits for what cannot be read
            self._end(f"was ended, because an answer of it cannot be read: {error}")
            return
        if answer is None:
            self._gone = asyncio.ensure_future(self._ended())
        elif (future := self._calls.get(answer.head.number)) is not None and not future.done():
            future.set_result(answer)

    async def _watch(self) -> None:
        """End the process once it hangs."""
        stillness = Stillness(STILL_LOOKS)
        with contextlib.suppress(psutil.Error):  # it has ended
            process = psutil.Process(self.pid)
            while True:
                await asyncio.sleep(LOOK_S)
                used = process.cpu_times()
                if stillness.hangs(self._at_work, used.user + used.system, self._cpus):
                    state, seconds = process.status(), STILL_LOOKS * LOOK_S
                    self._end(f"hung and was ended: {state}, with work to do, no CPU time used for {seconds:.0f} s")
                    return

    @property
    def _at_work(self) -> bool:
        return any(not future.done() for future in self._calls.values())

    def _end(self, why: str) -> None:
        """Kill the process; its end is then told as every other."""
        self._why = why
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _ended(self) -> None:
        """The process has ended: every call fails, and guarded work is cancelled."""
        asyncio.get_running_loop().remove_reader(self._socket)
        code = await self._process.wait()
        why = self._why or cause(code)
        self._fail(RunError(f"the trainer's process {why}{last_words(self._log)}", hint=RESUME + MEMORY))
        for task in self._guarded:
            task.cancel()

    def _fail(self, failure: RunError) -> None:
        self._failure = self._failure or failure
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # it need not be waited for


def expect(answer: parcel.Parcel[o.Answer], kind: type[o.R]) -> o.R:
    result = answer.head.result
    assert isinstance(result, kind), f"the trainer's process answered {type(result).__name__}"
    return result


def last_words(log: IO[bytes]) -> str:
    """The last line of a log, for a message; "" if it is empty."""
    size = os.fstat(log.fileno()).st_size
    lines = os.pread(log.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
    return f"; its last words: {lines[-1]}" if lines else ""
