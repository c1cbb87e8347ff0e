"""The jobs of one round and what each waits for, from its records. Pure.

    planned -> sent -> download -> work … -> update -> done -> end

An upload is on the link between the work that made it and its last byte. It is taken when its server half has a place
for it, decoded, and used by a step, which needs a slot of the trainer. A reply goes back over the link and ends a wait
of the device. A device whose upload queue is full goes on when the upload that holds the place was taken.
docs/architecture.md describes the queues.

A round ends when the last device that it needs is done. A deadline that made devices leave is a job of its own. Jobs on
a device's clock may be wrong by the uncertainty of its offset; they never end after what they made possible.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from operator import attrgetter

from orchestrator.records import types as t
from orchestrator.records.critical.device_jobs import DeviceJobs
from orchestrator.records.critical.event_graph import Bound, EventGraph, Parts, Plan, whole
from orchestrator.records.critical.round_jobs import HOST, SERVER, TURN, Jobs, SessionFacts
from orchestrator.records.host_records import ServerStep
from orchestrator.records.older_words import limit_of
from orchestrator.records.run_index import RoundFacts
from orchestrator.records.timeline.timeline import RoundTimeline

NO_FACTS = "its records are of an older version and do not say when the server half could begin"


def lacks(facts: RoundFacts) -> str:
    """Why the path of a round cannot be found; "" where it can."""
    if "serving" in facts.started.notes:
        return "it served requests"
    if facts.finished is None:
        return "it was not finished"
    uploads = (upload for of_device in facts.uploads.values() for upload in of_device)
    if any(not step.ready_ns for step in facts.steps) or any(not upload.taken_ns for upload in uploads):
        return NO_FACTS
    return ""


def graph_of(timeline: RoundTimeline, session: SessionFacts) -> EventGraph | None:
    """The graph of a finished round; None where `lacks` says why, or where its records contradict each other."""
    if lacks(timeline.facts):
        return None
    try:
        return _Round(timeline, session).graph()
    except ValueError:
        return None


class _Round:
    def __init__(self, timeline: RoundTimeline, session: SessionFacts) -> None:
        self._timeline, self._facts, self._slots = timeline, timeline.facts, session.slots
        self._queued = session.queued
        self._jobs = Jobs(session, timeline.facts.start_ns)
        self._steps = sorted(self._facts.steps, key=attrgetter("start_ns"))
        self._of_device: dict[str, list[int]] = {}  # numbers of steps
        for number, step in enumerate(self._steps):
            for device in step.devices:
                self._of_device.setdefault(device, []).append(number)
        self._groups = _groups(self._steps)
        reads = [work for work in self._facts.half_work if work.what == "read"]
        self._read = {device: number for number, work in enumerate(reads) for device in work.devices}

    def graph(self) -> EventGraph:
        facts = self._facts
        planned = max((phase.end_ns for phase in facts.own if phase.name == "plan"), default=facts.start_ns)
        self._jobs.add("planned", planned, HOST)
        self._add_half_work()
        for device in facts.started.devices:
            self._device(device)
        self._add_steps()
        self._end()
        return EventGraph(self._jobs.plans, facts.start_ns, "end", self._slots)

    def _device(self, device: str) -> None:
        facts, jobs = self._facts, self._jobs
        if (sent := facts.sent.get(device)) is not None:
            jobs.add(("sent", device, 0), sent.at_ns, HOST, "planned")
        found = self._timeline.devices.get(device)
        steps = self._of_device.get(device, [])
        last = DeviceJobs(jobs, facts, device, found.segments if found is not None else (), steps).add()
        uploads = facts.uploads.get(device, [])
        for number, upload in enumerate(uploads):
            self._taken(device, number, upload)
        if (update := facts.updates.get(device)) is not None:
            before = last, ("taken", device, len(uploads) - 1)
            jobs.transfer(("update", device), update.at_ns, device, "uplink", update.bytes, *before)
        if (done := facts.done.get(device)) is not None:
            read = self._read.get(device)
            half = self._half_complete(device, done.at_ns) if read is None else (("read", read),)
            jobs.add(("done", device), done.at_ns, HOST, ("update", device), *half)
        elif (out := facts.out.get(device)) is not None:
            self._out(device, out, last)

    def _add_half_work(self) -> None:
        """Halves are made while the tasks go out, and read after their last steps. Older records do not tell."""
        for work in self._facts.half_work:
            if work.what == "make":
                self._jobs.add("halves", work.end_ns, SERVER, "planned")
                continue
            number = self._read[work.devices[0]]
            before = [name for device in work.devices for name in self._half_complete(device, work.start_ns)]
            updates = [("update", device) for device in work.devices]
            self._jobs.add(("complete", number), work.start_ns, HOST, *updates, *before)
            slot = work.end_ns > work.start_ns  # simulated ones take no time and no slot
            read = Plan(work.end_ns, (("complete", number),), whole(SERVER), slot, work.start_ns)
            self._jobs.plans["read", number] = read

    def _taken(self, device: str, number: int, upload: t.UploadReceived) -> None:
        before: list[Hashable] = [("up", device, number), ("taken", device, number - 1)]
        steps = self._of_device.get(device, [])
        if 0 <= number - self._queued < len(steps):
            before.append(("step", steps[number - self._queued]))
        self._jobs.add(("taken", device, number), upload.taken_ns, HOST, *before)

    def _half_complete(self, device: str, done_ns: int) -> Iterator[Hashable]:
        """A half gives its weights when its last step is over and all its devices have finished or left."""
        if steps := self._of_device.get(device):
            yield "step", steps[-1]
        for other in self._groups.get(device, ()):
            yield "update", other
            yield from self._gone(other, done_ns)

    def _missing(self, device: str, by_ns: int) -> Iterator[Hashable]:
        """Why a half goes on without a device: its update says that no more uploads come, or it left."""
        update = self._facts.updates.get(device)
        if update is not None and update.at_ns <= by_ns:
            yield "update", device
        yield from self._gone(device, by_ns)

    def _gone(self, device: str, by_ns: int) -> Iterator[Hashable]:
        """A device's leaving, where it left before a moment."""
        out = self._facts.out.get(device)
        if out is not None and device not in self._facts.done and out.at_ns <= by_ns:
            yield "out", device

    def _out(self, device: str, out: t.DeviceOut, last: Hashable) -> None:
        name = "out", device
        if out.how != "late":
            self._jobs.add(name, out.at_ns, Bound("lost", device), last, ("update", device))
        elif (limit_s := limit_of(out)) is not None:
            limit = self._facts.start_ns + round(limit_s * 1e9)
            self._jobs.add(("limit", device), min(limit, out.at_ns), Bound("deadline"))
            arrived = (("update", d) for d, row in self._facts.updates.items() if row.at_ns <= out.at_ns)
            self._jobs.add(name, out.at_ns, HOST, ("limit", device), *arrived)
        # Else others were enough: the end of the round made it leave.

    def _add_steps(self) -> None:
        counts: dict[str, int] = {}
        for number, step in enumerate(self._steps):
            before: list[Hashable] = ["halves"]
            for device in step.devices:
                place = counts[device] = counts.get(device, -1) + 1
                before.append(("taken", device, place))
                if place:
                    before.append(("step", self._of_device[device][place - 1]))
                others = self._groups.get(device, frozenset()) - set(step.devices)
                before += [name for other in others for name in self._missing(other, step.ready_ns)]
            self._jobs.add(("ready", number), step.ready_ns, HOST, *before)
            split = _TurnThenWork(step.start_ns)
            self._jobs.plans["step", number] = Plan(step.end_ns, (("ready", number),), split, True, step.start_ns)

    def _end(self) -> None:
        facts = self._facts
        assert facts.finished is not None
        needed = [("done", device) for device, row in facts.done.items() if row.at_ns <= facts.finished.at_ns]
        gone = [("out", device) for device in facts.out if device not in facts.done]
        self._jobs.add("end", facts.finished.at_ns, HOST, "planned", *needed, *gone)


class _TurnThenWork:
    """Divides a step: until it begins to work it waits for its turn."""

    def __init__(self, work_ns: int) -> None:
        self._work_ns = work_ns

    def __call__(self, start: int, end: int) -> Parts:
        begin = min(max(start, self._work_ns), end)
        return (TURN, begin - start), (SERVER, end - begin)


def _groups(steps: Iterable[ServerStep]) -> dict[str, frozenset[str]]:
    """For every device that shares its half: all devices of that half."""
    found: dict[str, frozenset[str]] = {}
    for step in steps:
        if len(step.devices) > 1:
            group = frozenset(step.devices).union(*(found.get(device, ()) for device in step.devices))
            found |= dict.fromkeys(group, group)
    return found
