"""The trainer's process: makes the server halves, trains them, and tests weights, on orders that come over a socket.

It owns the accelerator. It ends when the orchestrator closes the socket or ends, and holds no event loop: the main
thread reads orders, one thread per slot trains halves, another one does everything else.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch

from edgebed.accelerator import CPU, settle, why_not_cuda
from edgebed.device.pieces import seconds
from edgebed.errors import EdgebedError, RunError, in_words
from edgebed.methods.base import METHODS, Context, Method, ServerHalf
from edgebed.methods.parts.local_training import make_optimizer
from edgebed.models.staged import Weights
from edgebed.plugin_code import read_plugins, use
from edgebed.wire.messages import Cost
from edgebed.wire.settings import Optimizer
from orchestrator.records.host_records import Spent
from orchestrator.training import orders as o
from orchestrator.training import parcel
from orchestrator.training.copies import from_copy
from orchestrator.training.costs import profile_cuts
from orchestrator.training.server import named, settle_worker, step_pieces, timed_step
from orchestrator.training.slot import Slot

READY = -1
"""Number of the answer that says that the process has started."""

Answered = tuple[o.Result, parcel.Groups]


class Workshop:
    """Carries out orders. Contexts, samples and halves stay from one order to the next."""

    def __init__(self, accelerator: torch.device) -> None:
        self._accelerator = accelerator
        self._contexts: dict[int, Context] = {}
        self._samples: dict[int, Weights] = {}
        self._halves: dict[int, list[ServerHalf]] = {}  # of every trainer
        self._costs: dict[int, Mapping[str, Mapping[str, Cost]]] = {}  # of the halves of each device
        self._fresh: set[tuple[int, int]] = set()  # halves that have made no step

    def carry_out(self, order: o.Order, groups: Mapping[str, Weights]) -> Answered:
        """Raises what the method raises, for the error of a step as EdgebedError."""
        match order:
            case o.KeepContext(number):
                self._contexts[number] = from_copy(groups[o.COPY][o.COPY])
            case o.KeepData(number):
                self._samples[number] = groups["data"]
            case o.MakeHalves():
                return self._make_halves(order, groups)
            case o.TakeStep(trainer, half):
                return self._take_step(self._halves[trainer][half], groups)
            case o.ReadWeights(trainer, half):
                return o.Done(), {"weights": self._halves[trainer][half].weights()}
            case o.Forget(trainer):
                for kept in (self._halves, self._costs):
                    kept.pop(trainer, None)
            case o.Test():
                return self._test(order, groups), {}
            case o.ProfileCuts():
                return self._profile(order, groups), {}
        return o.Done(), {}

    def _make_halves(self, order: o.MakeHalves, groups: Mapping[str, Weights]) -> Answered:
        method, assignments = from_copy(groups[o.COPY][o.COPY], self._contexts[order.context])
        halves = method.server_halves(groups["weights"], assignments, self._accelerator)
        self._halves[order.trainer], self._costs[order.trainer] = halves, order.costs
        self._fresh |= {(order.trainer, number) for number in range(len(halves))}
        return o.Halves(tuple(tuple(half.devices) for half in halves)), {}

    def _take_step(self, half: ServerHalf, uploads: Mapping[str, Weights]) -> Answered:
        try:
            replies, start_ns, end_ns = timed_step(half, uploads, self._accelerator)
        except Exception as error:
            raise named(error, half.devices) from error
        refused = {device: o.Problem.of(r) for device, r in replies.items() if isinstance(r, EdgebedError)}
        tensors = {device: r for device, r in replies.items() if not isinstance(r, EdgebedError)}
        return o.Stepped(start_ns, end_ns, refused), tensors

    def work_of(self, order: o.Order, uploads: Mapping[str, Weights]) -> tuple[int, dict[str, float] | None]:
        """Samples of an order that was carried out, and its CPU seconds on the reference by origin; None where the
        costs do not tell them, or the round has ended meanwhile, and its halves are gone."""
        try:
            match order:
                case o.MakeHalves(trainer):
                    pieces = [(half.devices[0], "make", 1) for half in self._halves[trainer]]
                case o.TakeStep(trainer, number):
                    kind = "first step" if (trainer, number) in self._fresh else "step"
                    self._fresh.discard((trainer, number))
                    pieces = step_pieces(kind, self._halves[trainer][number].worked(uploads))
                case o.ReadWeights(trainer, number):
                    pieces = [(self._halves[trainer][number].devices[0], "read", 1)]
                case _:
                    return 0, None
            costs = self._costs[trainer]
        except (KeyError, IndexError):
            return 0, None
        samples = sum(size for _, _, size in pieces) if isinstance(order, o.TakeStep) else 0
        return samples, on_reference(costs, pieces)

    def _test(self, order: o.Test, groups: Mapping[str, Weights]) -> o.Result:
        method: Method = from_copy(groups[o.COPY][o.COPY], self._contexts[order.context])
        samples = [(self._samples[number]["x"], self._samples[number]["y"]) for number in order.data]
        weights = groups["weights"]
        if len(samples) == 1:
            return o.Scored(method.evaluate(weights, *samples[0], self._accelerator))
        validation, test = samples
        return o.Scored(method.final(weights, validation, test, self._accelerator))

    def _profile(self, order: o.ProfileCuts, groups: Mapping[str, Weights]) -> o.Result:
        model, batch = from_copy(groups[o.COPY][o.COPY]), (groups["data"]["x"], groups["data"]["y"])
        settings = (order.cuts, order.batch_size, order.codec, order.optimizer, self._accelerator)
        return o.Costs(tuple(profile_cuts(model, *settings, batch=batch).values()))


def on_reference(
    costs: Mapping[str, Mapping[str, Cost]], pieces: Iterable[tuple[str, str, int]]
) -> dict[str, float] | None:
    """CPU seconds of pieces on a reference, by the origin of their costs; None where the cost of one is not known.

    Args:
        costs: by device and kind.
        pieces: device, kind and size of each.
    """
    found: dict[str, float] = {}
    for device, kind, size in pieces:
        cost = costs.get(device, {}).get(kind)
        if cost is None:
            return None
        found[cost.origin] = found.get(cost.origin, 0.0) + seconds(cost, size)
    return found


def warm_up() -> None:
    """Have torch load what it loads with the first optimizer: some seconds of CPU time, which would be the first
    round's. Garbage collection does not look at what is loaded again, which would take 0.14 of some round's."""
    make_optimizer([torch.nn.Parameter(torch.zeros(1))], Optimizer())
    gc.collect()
    gc.freeze()


def trainer_accelerator() -> torch.device:
    """CUDA where torch can use it, else the CPU."""
    if not torch.cuda.is_available():
        return CPU
    if why := why_not_cuda():
        print(f"edgebed: server halves train on the CPU, because {why}", file=sys.stderr)
        return CPU
    return torch.device("cuda")


class Server:
    """Reads orders from the socket and answers them."""

    def __init__(self, orchestrator: socket.socket) -> None:
        self._socket = orchestrator
        self._accelerator = trainer_accelerator()
        settle(self._accelerator)
        self._threads = torch.get_num_threads()
        self._workshop = Workshop(self._accelerator)
        self._own = threading.local()  # the slot of a thread
        self._settle(o.Settle(1))
        self._other = ThreadPoolExecutor(1)

    def run(self) -> None:
        """Serve until the orchestrator closes the socket or ends."""
        warm_up()
        hardware = torch.cuda.get_device_name() if self._accelerator.type == "cuda" else "cpu"
        self._answer(READY, o.Ready(hardware), {})
        while self._take_order():
            pass

    def _settle(self, order: o.Settle) -> None:
        """Train so many halves at the same time."""
        self._training = ThreadPoolExecutor(order.slots, initializer=self._settle_thread, initargs=(order,))
        self._paced = order.paced_cpus > 0

    def _settle_thread(self, order: o.Settle) -> None:
        settle_worker()
        self._own.slot = Slot(order)

    def _take_order(self) -> bool:
        arrived: parcel.Parcel[o.Call] | None = parcel.receive(self._socket, o.Call)
        if arrived is None:
            return False
        call = arrived.head
        if isinstance(call.order, o.Settle):
            self._settle(call.order)
        if self._paced and isinstance(call.order, o.MakeHalves | o.TakeStep | o.ReadWeights):
            job = self._training.submit(self._serve_paced, arrived, time.monotonic())
        elif isinstance(call.order, o.TakeStep | o.ReadWeights):
            job = self._training.submit(self._serve, arrived, 1)
        else:
            job = self._other.submit(self._serve, arrived, self._threads)
        job.add_done_callback(end_on_error)
        return True

    def _serve(self, arrived: parcel.Parcel[o.Call], threads: int) -> None:
        self._answer(arrived.head.number, *self._result(arrived, threads))

    def _serve_paced(self, arrived: parcel.Parcel[o.Call], arrived_s: float) -> None:
        """The order is a unit of work, from its arrival or the end of the order before to its answer."""

        def piece() -> tuple[Answered, int, dict[str, float] | None]:
            answered = self._result(arrived, 1)
            failed = isinstance(answered[0], o.Failed)
            return answered, *((0, None) if failed else self._workshop.work_of(arrived.head.order, arrived.groups))

        slot: Slot = self._own.slot
        (result, groups), spent = slot.carry_out(arrived_s, piece)
        if isinstance(result, o.Stepped):
            result = msgspec.structs.replace(result, end_ns=time.monotonic_ns())
        self._answer(arrived.head.number, result, groups, spent)

    def _result(self, arrived: parcel.Parcel[o.Call], threads: int) -> Answered:
        torch.set_num_threads(threads)  # a new thread begins with what another one has set
        try:
            return self._workshop.carry_out(arrived.head.order, arrived.groups)
        except EdgebedError as error:
            return o.Failed(o.Problem.of(error)), {}
        except Exception as error:
            hint = "see the method's code; the traceback is in the log of the trainer's process"
            return o.Failed(o.Problem.of(RunError(in_words(error), hint=hint))), {}

    def _answer(self, number: int, result: o.Result, groups: parcel.Groups, spent: Spent | None = None) -> None:
        try:
            parcel.send(self._socket, o.Answer(number, result, spent), groups)
        except (BrokenPipeError, ConnectionError):
            os._exit(0)  # the orchestrator has ended


def end_on_error(job: Future[None]) -> None:
    """An order that can get no answer, as when memory is short, must not be waited for: the process ends."""
    if (error := job.exception()) is not None:
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)


def main(argv: list[str]) -> Any:
    """`python -m orchestrator.training.child FD [PLUGINS]`, started by `process.TrainerProcess`."""
    orchestrator = socket.socket(fileno=int(argv[1]))
    use(read_plugins(Path(argv[2])) if argv[2:] else [])
    METHODS.classes()
    Server(orchestrator).run()
    os._exit(0)  # not after the steps that are running: nobody waits for them


if __name__ == "__main__":
    main(sys.argv)
