"""Makes a reference from the records of real runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, mean, pstdev
from typing import NamedTuple

import msgspec

from edgebed.device.pieces import FIRST, JOINED, STEP
from edgebed.errors import UsageError
from edgebed.methods.base import real_work
from edgebed.pacing import HOST
from edgebed.wire.messages import Assignment
from edgebed.wire.piece_times import PieceTimes
from orchestrator.records.run_index import RoundFacts, RunFacts, Session
from orchestrator.records.types import SIMULATED
from orchestrator.references.layer_costs import LayerCosts
from orchestrator.references.lines import line_through, parts
from orchestrator.references.reference import QUANTILES, PieceStats, Reference, half_key, task_key
from orchestrator.references.unseen import unseen, upper_bytes
from orchestrator.references.work_laws import SizeLaw

LEAST_TASKS = 3
"""Of one kind, in a recording."""

SMALL = 1000
"""No batch has so many samples, and bodies have more bytes."""

PACED = ("download", "decode", "compute", "encode", "blocked", "reply_wait")
"""Phases whose CPU time belongs to a unit of work (`edgebed.pacing`)."""


Timed = dict[str, dict[str, dict[int, list[PieceTimes]]]]
"""Times of pieces by task or server half, kind and size."""


class TaskSeen(msgspec.Struct, frozen=True):
    """One task of one device: its assignment, the pieces of its training thread, and what the agent did beside them:
    CPU seconds of its other threads until the update was ready, and the transfers that used them."""

    assignment: Assignment
    work: tuple[PieceTimes, ...]
    beside_s: float
    heard: int  # transfers received: the task and replies
    heard_bytes: int
    sent: int  # uploads
    sent_bytes: int


def record(
    name: str, runs: Sequence[RunFacts], layers: LayerCosts, origin: Mapping[str, str], index_s: float | None = None
) -> Reference:
    """The reference of a name from runs at the speed of their host.

    Args:
        layers: what layers cost on the same core; empty where that is not known.
        index_s: as in `Reference`; None: from the loop that ran beside the runs, which is slower beside their devices.
        origin: what is said of where it was made, beside what the records say.

    Raises:
        UsageError: the runs are simulated, or held to a reference, or have no pieces, or the core throttled.
    """
    for run in runs:
        _check(run)
    seen = [task for run in runs for task in tasks_of(run)]
    if len(seen) < LEAST_TASKS:
        raise UsageError(
            f"the runs hold {len(seen)} finished tasks with pieces of work",
            hint="record from runs of at least three rounds, made by this version",
        )
    steps, halves = server_work(runs)
    work = recorded_work(seen)
    return Reference(
        name=name,
        origin={**_origin(runs), **origin},
        index_s=_index_s(runs) if index_s is None else index_s,
        work=work | steps,
        layers={kind: list(laws) for kind, laws in layers.items()},
        unseen=unseen(
            {task_key(task.assignment): task.assignment for task in seen}, work, layers, transfers(seen) | halves
        ),
    )


def _check(run: RunFacts) -> None:
    name = run.started.run
    if run.enforcement == SIMULATED:
        raise UsageError(f"{name} is a simulation", hint="record from runs on real devices")
    if run.started.speed != HOST:
        raise UsageError(f"{name} was held to the reference {run.started.speed}", hint="record with `speed: host`")
    slow = {
        device.name: device.slowed[0].mark
        for session in run.sessions
        for device in session.devices.values()
        if device.slowed
    }
    for board, mark in slow.items():
        raise UsageError(
            f"the board {board} was slowed down during {name} ({mark.replace('_', ' ')})",
            hint="cool the board, use a stronger power supply, leave its settings as they are, and run again",
        )


def tasks_of(run: RunFacts) -> Iterator[TaskSeen]:
    """The finished tasks of a run that say what their pieces took."""
    for session, facts in run.rounds():
        spent = _spent(session)
        for device in sorted(facts.done):
            update = facts.updates.get(device)
            if update is not None and update.report.work and device in facts.sent:
                yield _task(session, facts, device, spent.get(update.task, 0.0))


def _spent(session: Session) -> dict[str, float]:
    """CPU seconds of the agent by task, in the phases that are paced."""
    spent: dict[str, float] = {}
    for device in session.devices.values():
        for _, phase in device.phases:
            if phase.task and phase.name in PACED:
                spent[phase.task] = spent.get(phase.task, 0.0) + phase.cpu_ns / 1e9
    return spent


def _task(session: Session, facts: RoundFacts, device: str, spent_s: float) -> TaskSeen:
    planned = facts.started.assignments[device]
    limits = (each for each in reversed(session.limits) if each.device == device and each.at_ns <= facts.start_ns)
    cpus = next((each.cpus for each in limits), planned.cpus)
    report, replies, uploads = (
        facts.updates[device].report,
        facts.replies.get(device, []),
        facts.uploads.get(device, []),
    )
    return TaskSeen(
        assignment=real_work(msgspec.structs.replace(planned, cpus=cpus)),
        work=report.work,
        beside_s=max(0.0, spent_s - sum(each.cpu_s for each in report.work)),
        heard=1 + len(replies),
        heard_bytes=report.download_bytes + sum(reply.bytes for reply in replies),
        sent=len(uploads),
        sent_bytes=sum(upload.bytes for upload in uploads),
    )


# ---- pieces ----


def recorded_work(seen: Iterable[TaskSeen]) -> dict[str, dict[str, list[PieceStats]]]:
    """By task and kind, in the order of size."""
    found: Timed = {}
    for task in seen:
        kinds = found.setdefault(task_key(task.assignment), {})
        for each in task.work:
            kinds.setdefault(each.kind, {}).setdefault(rounded_size(each.size), []).append(each)
    return _stats(found)


def _stats(found: Timed) -> dict[str, dict[str, list[PieceStats]]]:
    return {
        key: {kind: [piece_stats(size, sizes[size]) for size in sorted(sizes)] for kind, sizes in sorted(kinds.items())}
        for key, kinds in sorted(found.items())
    }


def rounded_size(size: int) -> int:
    """Bytes to two digits: those of compressed tensors differ a little from one to the next. Samples stay as they
    are."""
    return round(float(f"{size:.2g}")) if size >= SMALL else size


def piece_stats(size: int, times: Sequence[PieceTimes]) -> PieceStats:
    """Statistics of the pieces of one kind and size, from all tasks that had them."""
    count = sum(each.count for each in times)
    series = [[us / 1e6 for us in each.each_us] for each in times if each.each_us]
    known = sorted(value for values in series for value in values)
    return PieceStats(
        size=size,
        count=count,
        mean_s=sum(each.cpu_s for each in times) / count,
        sd_s=pstdev(known) if known else 0.0,
        quantiles_s=tuple(known[int(share * (len(known) - 1) + 0.5)] for share in QUANTILES) if known else (),
        lag=_lag(series),
    )


def _lag(series: Sequence[Sequence[float]]) -> float:
    """Correlation of each value with the next one of its series; 0 where nothing follows or nothing varies."""
    known = [value for values in series for value in values]
    if not known:
        return 0.0
    middle = fmean(known)
    pairs = [(a - middle) * (b - middle) for values in series for a, b in pairwise(values)]
    spread = fmean((value - middle) ** 2 for value in known)
    return fmean(pairs) / spread if pairs and spread > 0 else 0.0


def transfers(seen: Sequence[TaskSeen]) -> dict[str, SizeLaw]:
    """What the agent's other threads take for a transfer: `receive` and `send`, by bytes."""
    rows = [(float(task.heard), float(task.heard_bytes), float(task.sent), float(task.sent_bytes)) for task in seen]
    heard_s, heard_byte_s, sent_s, sent_byte_s = parts(rows, [task.beside_s for task in seen])
    return {"receive": SizeLaw(heard_s, heard_byte_s), "send": SizeLaw(sent_s, sent_byte_s)}


# ---- the server's ----


def server_work(runs: Iterable[RunFacts]) -> tuple[dict[str, dict[str, list[PieceStats]]], dict[str, SizeLaw]]:
    """Recorded steps by server half and kind, and the laws of making halves (`make`) and reading them (`read`), by
    their bytes: those only of halves of one device. On a server with CPUs of its own."""
    steps: list[StepSeen] = []
    made: list[tuple[tuple[float, ...], float]] = []
    read: list[tuple[float, float]] = []
    for method, facts in ((run.started.method, facts) for run in runs for _, facts in run.rounds()):
        known = facts.started.assignments
        for step in facts.steps:
            if step.spent is not None and step.spent.samples:
                own = sorted((known[device] for device in step.devices), key=lambda each: each.stages)
                keys = [half_key(method, each) for each in own]
                steps.append(StepSeen(keys, step.batch == 0, step.spent.samples, step.spent.cpu_s))
        lone = all(len(step.devices) == 1 for step in facts.steps)
        for work in facts.half_work:
            if work.spent is not None and work.what == "make" and lone:
                size = sum(upper_bytes(known[device]) for device in work.devices)
                made.append(((float(len(work.devices)), float(size)), work.spent.cpu_s))
            elif work.spent is not None and work.what == "read" and len(work.devices) == 1:
                read.append((float(upper_bytes(known[work.devices[0]])), work.spent.cpu_s))
    laws = {"read": line_through(read)} if read else {}
    if made:
        laws["make"] = SizeLaw(*parts([row for row, _ in made], [cpu_s for _, cpu_s in made]))
    return _stats(divided(steps)), laws


class StepSeen(NamedTuple):
    """A step of a server half. `keys`: its devices' halves, first the one with the most stages."""

    keys: list[str]
    first: bool
    samples: int
    cpu_s: float


def divided(steps: Iterable[StepSeen]) -> Timed:
    """Steps by half and kind. One of several devices is divided: what a step of the first one takes alone (`step`), and
    the rest in equal parts among the others (`joined step`); where none was seen alone, in equal parts among all."""
    found: Timed = {}
    seen = sorted(steps, key=lambda step: len(step.keys))
    once = {(step.keys[0], step.first) for step in seen if len(step.keys) == 1}
    for keys, first, samples, cpu_s in seen:
        when, size = FIRST if first else "", round(samples / len(keys))
        alone = found.setdefault(keys[0], {}).setdefault(f"{when}{STEP}", {})
        if len(keys) == 1 or (keys[0], first) not in once:
            own_s = cpu_s / len(keys)
            alone.setdefault(size, []).append(_timed(own_s))
        else:
            nearest = min(alone, key=lambda known: abs(known - size))
            own_s = fmean(each.cpu_s for each in alone[nearest]) * size / nearest
        for key in keys[1:]:
            kinds = found.setdefault(key, {}).setdefault(f"{when}{JOINED}", {})
            kinds.setdefault(size, []).append(_timed(max(0.0, cpu_s - own_s) / (len(keys) - 1)))
    return found


def _timed(cpu_s: float) -> PieceTimes:
    return PieceTimes("", 0, 1, cpu_s, (round(cpu_s * 1e6),))


# ---- where it was made ----


def _index_s(runs: Sequence[RunFacts]) -> float:
    """CPU seconds of the reference loop, mean of the rounds. Raises UsageError where none ran."""
    loops = [
        facts.host.loop_ms / 1e3
        for run in runs
        for _, facts in run.rounds()
        if facts.host is not None and facts.host.loop_ms is not None
    ]
    if not loops:
        raise UsageError("no reference loop ran beside these runs", hint="give runs with rounds of more than a second")
    return mean(loops)


def _origin(runs: Sequence[RunFacts]) -> dict[str, str]:
    """What the records say of the host, and which runs they are."""
    started = runs[0].started
    host = {key: value for key, value in started.host.items() if key not in ("mosquitto", "accelerator", "cores")}
    devices = {device.profile for device in started.devices}
    return host | {
        "date": started.wall[:10],
        "backend": started.backend,
        "profiles": " ".join(sorted(devices)),
        "runs": " ".join(run.started.run for run in runs),
    }
