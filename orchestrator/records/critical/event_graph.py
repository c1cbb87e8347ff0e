"""A graph of jobs with recorded times: its critical path, and the same graph with some jobs faster. Pure.

A job begins when the last job before it has ended, and lasts until its own recorded end. Its time belongs to one or
several *bounds* (a device's CPU, the server, …), which are walked through one after the other. The critical path goes
backwards from the last job, always to the job before that ended last; so its segments abut and their lengths add up to
the whole time exactly.

Some jobs need one of a number of slots (the trainer's). A job that was ready and had no slot waited for the job that
ended when it began.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property

import msgspec


class Bound(msgspec.Struct, frozen=True, order=True):
    """What somebody waits for. `what`: a key of `vocabulary.BOUNDS`; `whose`: a device, or "" where it is nobody's."""

    what: str
    whose: str = ""


Parts = tuple[tuple[Bound, int], ...]
"""Bounds in the order of time, each with its nanoseconds."""


class Job(msgspec.Struct, gc=False):
    """A job between two recorded times."""

    start_ns: int
    end_ns: int
    before: tuple[int, ...]  # indices of the jobs that it waits for
    parts: Parts  # its bounds; the lengths add up to end - start
    slot: bool = False  # it needs a slot
    slot_of: int = -1  # the job whose slot it waited for; -1: it did not wait for a slot


class PathSegment(msgspec.Struct, frozen=True, gc=False):
    """A part of a critical path."""

    bound: Bound
    start_ns: int
    end_ns: int


class Plan(msgspec.Struct):
    """A job before the graph is made. `split` divides its time, given start and end; it returns parts that add up."""

    end_ns: int
    before: tuple[Hashable, ...]
    split: Callable[[int, int], Parts]
    slot: bool = False
    start_ns: int = 0  # of a job with a slot: when it began to work


def whole(bound: Bound) -> Callable[[int, int], Parts]:
    """All the time belongs to one bound."""
    return lambda start, end: ((bound, end - start),)


class EventGraph:
    """Jobs in an order in which each comes after those that it waits for.

    Args:
        plans: by name. Names in `before` that are not there are left out.
        last: name of the job at whose end everything has ended.
        slots: how many jobs with a slot can run at once; 0: as many as like.

    Raises:
        ValueError: jobs wait for each other in a circle.
    """

    def __init__(self, plans: dict[Hashable, Plan], start_ns: int, last: Hashable, slots: int = 0) -> None:
        order = _sorted(plans, last)
        index = {name: i for i, name in enumerate(order)}
        self.start_ns, self.slots, self.names = start_ns, slots, index
        before = [tuple(index[name] for name in plans[key].before if name in index) for key in order]
        chosen = [plans[key] for key in order]
        ends = _ends(chosen, before, start_ns)
        freed = _freed(chosen, before, ends, start_ns, slots)
        self.jobs = [_job(plan, ends, before[i], freed.get(i, -1), i, start_ns) for i, plan in enumerate(chosen)]
        self._after: list[list[int]] = [[] for _ in self.jobs]
        for i, job in enumerate(self.jobs):
            for other in job.before:
                self._after[other].append(i)

    @property
    def end_ns(self) -> int:
        return self.jobs[-1].end_ns if self.jobs else self.start_ns

    # ---- the path ----

    def path(self, name: Hashable | None = None, start_ns: int = 0) -> list[PathSegment]:
        """The critical path to the end of a job (the last one by default), from `start_ns` on, in the order of time."""
        found: list[PathSegment] = []
        at = len(self.jobs) - 1 if name is None else self.names.get(name, -1)
        if at >= 0:
            self._walk(at, self.jobs[at].end_ns, max(start_ns, self.start_ns), found, set())
        found.reverse()
        return found

    def _walk(self, at: int, cursor: int, least: int, found: list[PathSegment], seen: set[int]) -> None:
        """Append segments backwards from `cursor`, within job `at`, to a job in `seen`; adds to `seen`."""
        turn = False
        while at >= 0 and cursor > least and at not in seen:
            seen.add(at)
            job = self.jobs[at]
            for bound, length in reversed(job.parts):
                start = max(least, min(cursor, cursor - length))
                if start < cursor:
                    found.append(PathSegment(Bound("turn") if turn else bound, start, cursor))
                    cursor = start
            following = self._latest(job)
            turn = following >= 0 and following == job.slot_of
            at = following

    def _latest(self, job: Job) -> int:
        """The job that the start of `job` waited for; -1: none."""
        all_before = job.before if job.slot_of < 0 else (*job.before, job.slot_of)
        return max(all_before, key=lambda i: self.jobs[i].end_ns, default=-1)

    def near(self, gap_ns: int) -> dict[Bound, int]:
        """Nanoseconds by bound on paths beside the critical one that would have ended at most `gap_ns` before it."""
        seen: set[int] = set()
        self._walk(len(self.jobs) - 1, self.end_ns, self.start_ns, [], seen)
        beside: list[PathSegment] = []
        todo = deque(sorted(seen, reverse=True))
        while todo:
            job = self.jobs[todo.popleft()]
            for i in job.before:
                if i not in seen and job.start_ns - self.jobs[i].end_ns <= gap_ns:
                    self._walk(i, self.jobs[i].end_ns, self.start_ns, beside, seen)
        return sums(beside)

    # ---- what if ----

    @cached_property
    def unchanged_ns(self) -> int:
        """What `replayed_ns` gives with nothing faster."""
        return self.replayed_ns(lambda bound: 1.0)

    @cached_property
    def _parts(self) -> tuple[list[Bound], list[list[tuple[int, int]]]]:
        """All bounds, and of each job its nanoseconds by index of the bound: to hash a bound takes longer than all else
        that a replay does with it."""
        index: dict[Bound, int] = {}
        parts = [[(index.setdefault(bound, len(index)), ns) for bound, ns in job.parts] for job in self.jobs]
        return list(index), parts

    def replayed_ns(self, factor: Callable[[Bound], float]) -> int:
        """When everything would have ended if the time of every bound took `factor` times as long. Waits are not
        scaled: they follow. Jobs with a slot take the slots in the order in which they are ready."""
        bounds, parts = self._parts
        factors = [factor(bound) for bound in bounds]
        lengths = [round(sum([ns * factors[k] for k, ns in own])) for own in parts]
        return _replayed(self.jobs, self._after, self.slots, lengths, self.start_ns)


def sums(segments: Iterable[PathSegment]) -> dict[Bound, int]:
    """Nanoseconds by bound."""
    found: dict[Bound, int] = {}
    for segment in segments:
        found[segment.bound] = found.get(segment.bound, 0) + segment.end_ns - segment.start_ns
    return found


def _replayed(
    jobs: Sequence[Job], after: Sequence[Sequence[int]], slots: int, lengths: Sequence[int], start_ns: int
) -> int:
    """When the last job ends, if each takes so long. One loop without calls: graphs of large fleets have thousands of
    jobs, and each is replayed once per what-if."""
    now, free = start_ns, slots or len(jobs)
    waits_for = [len(job.before) for job in jobs]
    running: list[tuple[int, int]] = []  # (end, job)
    ready = [i for i, count in enumerate(waits_for) if not count]
    queue: deque[int] = deque()  # jobs that are ready and wait for a slot
    while ready or running:
        for i in ready:
            if not jobs[i].slot:
                heapq.heappush(running, (now + lengths[i], i))
            elif free:
                free -= 1
                heapq.heappush(running, (now + lengths[i], i))
            else:
                queue.append(i)
        now, done = heapq.heappop(running)
        if jobs[done].slot:
            free += 1
            if queue:
                free -= 1
                following = queue.popleft()
                heapq.heappush(running, (now + lengths[following], following))
        ready = []
        for i in after[done]:
            waits_for[i] -= 1
            if not waits_for[i]:
                ready.append(i)
    return now


# ---- how a graph is made ----


def _sorted(plans: dict[Hashable, Plan], last: Hashable) -> list[Hashable]:
    """Names of all jobs that `last` needs, each after those that it waits for."""
    order: list[Hashable] = []
    state: dict[Hashable, bool] = {}  # False: being visited
    stack: list[tuple[Hashable, bool]] = [(last, False)]
    while stack:
        name, ready = stack.pop()
        if ready:
            state[name] = True
            order.append(name)
            continue
        if state.get(name) is not None:
            continue
        state[name] = False
        stack.append((name, True))
        for other in plans[name].before:
            if other in plans:
                if state.get(other) is False:
                    raise ValueError(f"jobs wait for each other: {name} and {other}")
                stack.append((other, False))
    return order


def _ends(plans: Sequence[Plan], before: Sequence[tuple[int, ...]], start_ns: int) -> list[int]:
    """Ends of the jobs, none after the end of a job that waited for it: clocks of devices have an uncertainty."""
    ends = [plan.end_ns for plan in plans]
    for i in range(len(plans) - 1, -1, -1):
        for other in before[i]:
            ends[other] = min(ends[other], ends[i])
    return [max(start_ns, end) for end in ends]


def _freed(
    plans: Sequence[Plan], before: Sequence[tuple[int, ...]], ends: Sequence[int], start_ns: int, slots: int
) -> dict[int, int]:
    """By job that waited for a slot: the job whose end freed it. Slots go to jobs in the order in which they are
    ready."""
    found: dict[int, int] = {}
    ready = [
        (max((ends[o] for o in before[i]), default=start_ns), plan.start_ns, i)
        for i, plan in enumerate(plans)
        if plan.slot
    ]
    running: list[tuple[int, int]] = []
    for at, _, i in sorted(ready) if slots else ():
        while running and running[0][0] <= at:
            heapq.heappop(running)
        if len(running) == slots:
            end, other = heapq.heappop(running)
            if end < ends[i]:
                found[i] = other
        heapq.heappush(running, (ends[i], i))
    return found


def _job(plan: Plan, ends: Sequence[int], before: tuple[int, ...], slot_of: int, i: int, start_ns: int) -> Job:
    waited = before if slot_of < 0 else (*before, slot_of)
    start = min(ends[i], max((ends[other] for other in waited), default=start_ns))
    return Job(start, ends[i], before, plan.split(start, ends[i]), plan.slot, slot_of)
