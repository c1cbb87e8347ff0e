"""`trace.json`: a run in the Chrome trace format, which https://ui.perfetto.dev opens.

One process per device with its named phases and its uploads; the orchestrator with rounds, phases and server steps;
an arrow from every upload to the server step that used it. Times are divided by the dilation, like all reported times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.records.facts import RoundFacts, RunFacts, Stretch
from orchestrator.records.timeline import RoundTimeline, timelines

MOST_EVENTS = 400_000
"""A viewer in a browser takes no more; of longer runs only every n-th round is written, and the file says which."""

ORCHESTRATOR, ROUNDS, PHASES, LANES = 1, 1, 2, 10
"""Process of the orchestrator; threads of any process, its first lane being number 10."""

Event = dict[str, Any]


def write_trace(path: Path, run: RunFacts) -> None:
    """Write the trace, event by event, aside and then in place."""
    part = path.with_suffix(".part")
    stride = -(-_estimate(run) // MOST_EVENTS) or 1
    note = "every round" if stride == 1 else f"every {stride}th round: the whole run is too large for a viewer"
    other = {"run": run.started.run, "dilation": run.dilation, "rounds": note}
    encoder = msgspec.json.Encoder()
    with part.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":' + encoder.encode(other) + b',"traceEvents":[')
        for index, event in enumerate(trace_events(run, stride)):
            file.write((b",\n" if index else b"\n") + encoder.encode(event))
        file.write(b"\n]}\n")
    part.replace(path)


def trace_events(run: RunFacts, stride: int = 1) -> Iterator[Event]:
    """The events of every `stride`-th round, with the names of processes and threads first."""
    tracks = _Tracks(run)
    yield from tracks.names()
    for timeline in timelines(run, {facts.number for _, facts in run.rounds()[::stride]}):
        yield from tracks.round(timeline)


def _estimate(run: RunFacts) -> int:
    phases = sum(len(device.phases) for stretch in run.stretches for device in stretch.devices.values())
    steps = sum(len(facts.steps) for stretch in run.stretches for facts in stretch.rounds.values())
    return phases + 4 * steps


class _Lanes:
    """Slices of one thread must not overlap, so what runs at the same time gets lanes of its own."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []  # (end of its last slice, lane)
        self.count = 0

    def take(self, start_ns: int, end_ns: int) -> int:
        """A lane that is free; slices must come in the order of their starts."""
        if self._free and self._free[0][0] <= start_ns:
            lane = heapq.heappop(self._free)[1]
        else:
            lane, self.count = self.count, self.count + 1
        heapq.heappush(self._free, (end_ns, lane))
        return LANES + lane


class _Scale(msgspec.Struct, frozen=True):
    """How times of a stretch become the trace's: microseconds, divided by its dilation."""

    start_ns: int
    start_us: float
    dilation: float


class _Tracks:
    """Turns rounds into events; numbers processes, lanes and arrows."""

    def __init__(self, run: RunFacts) -> None:
        self._scales = _scales(run.stretches)
        self._stretch_of = {id(facts): id(stretch) for stretch, facts in run.rounds()}
        names = dict.fromkeys(name for stretch in run.stretches for name in stretch.devices)
        self._pids = {name: ORCHESTRATOR + 1 + index for index, name in enumerate(names)}
        self._lanes: dict[int, _Lanes] = {pid: _Lanes() for pid in (ORCHESTRATOR, *self._pids.values())}
        self._scale = _Scale(0, 0.0, 1.0)
        self._flows = 0

    def names(self) -> Iterator[Event]:
        yield from _named(ORCHESTRATOR, "orchestrator", {ROUNDS: "rounds", PHASES: "phases", LANES: "server steps"})
        for name, pid in self._pids.items():
            yield from _named(pid, name, {PHASES: "phases", LANES: "uploads"})

    def round(self, timeline: RoundTimeline) -> Iterator[Event]:
        facts = timeline.facts
        self._scale = self._scales[self._stretch_of[id(facts)]]
        yield self._slice(
            f"round {facts.number + 1}", facts.start_ns, facts.end_ns, ORCHESTRATOR, ROUNDS, _about(facts)
        )
        for own in facts.own:
            yield self._slice(own.name, own.start_ns, own.end_ns, ORCHESTRATOR, PHASES)
        for name, device in timeline.devices.items():
            for s in device.segments:
                detail = {"for": s.detail} if s.detail else {}
                yield self._slice(s.name, s.start_ns, s.end_ns, self._pids[name], PHASES, detail)
        yield from self._uploads(facts)

    def _uploads(self, facts: RoundFacts) -> Iterator[Event]:
        """Uploads, server steps, and an arrow from each upload to the step of the same device and batch."""
        sent: dict[tuple[str, int], tuple[int, int, int]] = {}
        for device, uploads in facts.uploads.items():
            for upload in sorted(uploads, key=lambda u: u.first_ns):
                pid = self._pids[device]
                lane = self._lanes[pid].take(upload.first_ns, upload.at_ns)
                sent[device, upload.batch] = (upload.first_ns, pid, lane)
                yield self._slice(
                    f"upload {upload.batch}", upload.first_ns, upload.at_ns, pid, lane, {"bytes": upload.bytes}
                )
        for step in sorted(facts.steps, key=lambda s: s.start_ns):
            lane = self._lanes[ORCHESTRATOR].take(step.start_ns, step.end_ns)
            about = {"devices": list(step.devices), "batch": step.batch}
            yield self._slice(f"step {step.batch}", step.start_ns, step.end_ns, ORCHESTRATOR, lane, about)
            for device in step.devices:
                if (device, step.batch) in sent:
                    yield from self._arrow(*sent[device, step.batch], step.start_ns, lane)

    def _arrow(self, at_ns: int, pid: int, lane: int, step_ns: int, step_lane: int) -> Iterator[Event]:
        self._flows += 1
        common = {"name": "features", "cat": "upload", "id": self._flows}
        yield common | {"ph": "s", "ts": self._us(at_ns), "pid": pid, "tid": lane}
        yield common | {"ph": "f", "bp": "e", "ts": self._us(step_ns), "pid": ORCHESTRATOR, "tid": step_lane}

    def _slice(
        self, name: str, start_ns: int, end_ns: int, pid: int, tid: int, about: dict[str, Any] | None = None
    ) -> Event:
        start, end = self._us(start_ns), self._us(end_ns)
        event = {"ph": "X", "name": name, "cat": "edgebed", "ts": start, "dur": max(0.0, end - start)}
        return event | {"pid": pid, "tid": tid, "args": about or {}}

    def _us(self, at_ns: int) -> float:
        scale = self._scale
        return round(scale.start_us + (at_ns - scale.start_ns) / 1e3 / scale.dilation, 3)


def _named(pid: int, process: str, threads: dict[int, str]) -> Iterable[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for tid, name in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _about(facts: RoundFacts) -> dict[str, Any]:
    about: dict[str, Any] = {"devices": len(facts.started.devices), "lr": facts.started.lr}
    if facts.finished is not None:
        about |= {"merged": list(facts.finished.merged), "why": facts.finished.why}
    if facts.evaluated is not None:
        about |= {"accuracy": facts.evaluated.accuracy}
    return about


def _scales(stretches: list[Stretch]) -> dict[int, _Scale]:
    """Put stretches, each with a clock and a dilation of its own, one after the other from zero."""
    scales, now_us = {}, 0.0
    for stretch in stretches:
        begin = min([stretch.started.at_ns, *(facts.start_ns for facts in stretch.rounds.values())])
        scales[id(stretch)] = _Scale(begin, now_us, stretch.started.dilation)
        now_us += (stretch.end_ns - begin) / 1e3 / stretch.started.dilation
    return scales
