"""`trace.json`: a run in the Chrome trace format, which https://ui.perfetto.dev opens.

One process per device: its tasks with the named phases inside, its uploads, counters of its CPU and links. One for the
orchestrator: rounds with its own phases inside, server steps, the queue before them; an arrow from every upload to the
server step that used it. Times are whole microseconds, divided by the dilation like all reported times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from orchestrator.records.run_index import RoundFacts, RunFacts, Session
from orchestrator.records.timeline.timeline import OF_A_TASK, DeviceTimeline, RoundTimeline
from orchestrator.report.counters import Scale, cpu_counters, link_counters, queue_counter
from orchestrator.report.events import Arrow, Event, Name, Slice

MOST_EVENTS = 200_000
"""The most that a viewer in a browser can show; of longer runs every n-th round is written, which the file notes."""

ORCHESTRATOR, PHASES, THREADS, ROUNDS = 1, 2, 10, 100_000
"""Process of the orchestrator; thread of phases, first thread of uploads or server steps, and of rounds."""


class TraceFile:
    """Writes the trace round by round to another file; `close` renames it."""

    def __init__(self, path: Path, run: RunFacts) -> None:
        self._path, self._part = path, path.with_suffix(".part")
        stride = -(-_estimate(run) // MOST_EVENTS) or 1
        self._chosen = {facts.number for _, facts in run.rounds()[::stride]}
        self._tracks = _Tracks(run, self._chosen)
        self._encode = msgspec.json.Encoder().encode
        self._file: BinaryIO = self._part.open("wb")
        note = "every round" if stride == 1 else f"every {stride}th round: the whole run is too large for a viewer"
        other = {"run": run.started.run, "dilation": run.dilation, "rounds": note}
        self._file.write(b'{"displayTimeUnit":"ms","otherData":' + self._encode(other) + b',"traceEvents":[\n')
        self._write(self._tracks.names(), end=b"")

    def add(self, timeline: RoundTimeline) -> None:
        """Write a round, if it is one of those that are written."""
        if timeline.facts.number in self._chosen:
            self._write(self._tracks.round(timeline))

    def close(self) -> None:
        self._write(self._tracks.rest())
        self._file.write(b"\n]}\n")
        self._file.close()
        self._part.replace(self._path)

    def _write(self, events: Iterable[Event], end: bytes = b",\n") -> None:
        text = self._encode(list(events))[1:-1]
        if text:
            self._file.write(end + text)


def _estimate(run: RunFacts) -> int:
    phases = sum(len(device.phases) for session in run.sessions for device in session.devices.values())
    steps = sum(len(facts.steps) for session in run.sessions for facts in session.rounds.values())
    return 2 * phases + 6 * steps


class _Threads:
    """Slices of one thread must not overlap, so what runs at the same time gets threads of its own."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []  # (end of its last slice, thread)
        self.count = 0

    def take(self, start_ns: int, end_ns: int) -> int:
        """A thread whose last slice has ended."""
        if self._free and self._free[0][0] <= start_ns:
            thread = heapq.heappop(self._free)[1]
        else:
            thread, self.count = self.count, self.count + 1
        heapq.heappush(self._free, (end_ns, thread))
        return THREADS + thread


class _Tracks:
    """Turns rounds into events; numbers processes, threads and arrows."""

    def __init__(self, run: RunFacts, chosen: set[int]) -> None:
        self._run, self._chosen = run, chosen
        self._scales = _scales(run.sessions)
        self._session_of = {id(facts): id(session) for session, facts in run.rounds()}
        names = dict.fromkeys(name for session in run.sessions for name in session.devices)
        self._pids = {name: ORCHESTRATOR + 1 + index for index, name in enumerate(names)}
        self._threads: dict[int, _Threads] = {pid: _Threads() for pid in (ORCHESTRATOR, *self._pids.values())}
        lanes = dict.fromkeys(facts.lane for _, facts in run.rounds())
        self._rounds = {lane: ROUNDS + index for index, lane in enumerate(lanes)}
        self._scale = Scale(0, 0, 1.0)
        self._flows = 0

    def names(self) -> Iterator[Event]:
        rounds = {tid: f"rounds of lane {lane}" if lane else "rounds" for lane, tid in self._rounds.items()}
        yield from _named(ORCHESTRATOR, "orchestrator", rounds | {THREADS: "server steps"})
        for name, pid in self._pids.items():
            yield from _named(pid, name, {PHASES: "tasks and phases", THREADS: "uploads"})

    def round(self, timeline: RoundTimeline) -> Iterator[Event]:
        facts = timeline.facts
        self._scale = self._scales[self._session_of[id(facts)]]
        tid = self._rounds[facts.lane]
        label = f"round {facts.number + 1}"
        yield self._slice(label, "round", facts.start_ns, facts.end_ns, ORCHESTRATOR, tid, _about(facts))
        for own in facts.own:
            yield self._slice(own.name, "phase", own.start_ns, min(own.end_ns, facts.end_ns), ORCHESTRATOR, tid)
        for name, device in timeline.devices.items():
            yield from self._device(label, self._pids[name], device)
        yield from self._uploads(facts)
        yield from link_counters(facts, self._pids, self._scale)
        yield from queue_counter(facts, ORCHESTRATOR, self._scale)

    def rest(self) -> Iterator[Event]:
        """Counters that need no rounds."""
        for session in self._run.sessions:
            windows = [f for f in session.rounds.values() if f.number in self._chosen and id(f) in self._session_of]
            yield from cpu_counters(session, windows, self._pids, self._scales[id(session)])

    def _device(self, label: str, pid: int, device: DeviceTimeline) -> Iterator[Event]:
        """The task, and every segment of the window; segments of the task are inside its slice."""
        own = [s for s in device.segments if s.name in OF_A_TASK]
        if own:
            yield self._slice(label, "task", own[0].start_ns, own[-1].end_ns, pid, PHASES)
        for s in device.segments:
            yield self._slice(s.name, "phase", s.start_ns, s.end_ns, pid, PHASES, {"for": s.detail} if s.detail else {})

    def _uploads(self, facts: RoundFacts) -> Iterator[Event]:
        """Uploads, server steps, and an arrow from each upload to the step of the same device and batch."""
        sent: dict[tuple[str, int], tuple[int, int, int]] = {}
        for device, uploads in facts.uploads.items():
            pid = self._pids[device]
            for upload in sorted(uploads, key=lambda u: u.first_ns):
                thread = self._threads[pid].take(upload.first_ns, upload.at_ns)
                sent[device, upload.batch] = (upload.first_ns, pid, thread)
                about = {"bytes": upload.bytes}
                yield self._slice(f"upload {upload.batch}", "link", upload.first_ns, upload.at_ns, pid, thread, about)
        for step in sorted(facts.steps, key=lambda s: s.start_ns):
            thread = self._threads[ORCHESTRATOR].take(step.start_ns, step.end_ns)
            name, used = f"step {step.batch}", {"devices": list(step.devices), "batch": step.batch}
            yield self._slice(name, "server", step.start_ns, step.end_ns, ORCHESTRATOR, thread, used)
            for device in step.devices:
                if (device, step.batch) in sent:
                    yield from self._arrow(*sent[device, step.batch], step.start_ns, thread)

    def _arrow(self, at_ns: int, pid: int, thread: int, step_ns: int, step_thread: int) -> Iterator[Event]:
        self._flows += 1
        us = self._scale.us
        yield Arrow("s", us(at_ns), pid, thread, self._flows)
        yield Arrow("f", us(step_ns), ORCHESTRATOR, step_thread, self._flows)

    def _slice(
        self, name: str, cat: str, start_ns: int, end_ns: int, pid: int, tid: int, about: dict[str, Any] | None = None
    ) -> Event:
        start, end = self._scale.us(start_ns), self._scale.us(end_ns)
        return Slice(name, cat, start, max(0, end - start), pid, tid, about or {})


def _named(pid: int, process: str, threads: dict[int, str]) -> Iterable[Event]:
    yield Name("process_name", pid, 0, {"name": process})
    yield Name("process_sort_index", pid, 0, {"sort_index": pid})
    for tid, name in threads.items():
        yield Name("thread_name", pid, tid, {"name": name})


def _about(facts: RoundFacts) -> dict[str, Any]:
    about: dict[str, Any] = {"devices": len(facts.started.devices), "lr": facts.started.lr}
    if facts.finished is not None:
        about |= {"merged": list(facts.finished.merged), "why": facts.finished.why}
    if facts.evaluated is not None:
        about |= {"accuracy": facts.evaluated.accuracy}
    return about


def _scales(sessions: list[Session]) -> dict[int, Scale]:
    """Put sessions, each with its own clock and dilation, one after the other from zero."""
    scales, now_us = {}, 0
    for session in sessions:
        scales[id(session)] = scale = Scale(
            min(session.started.at_ns, session.begin_ns), now_us, session.started.dilation
        )
        now_us = scale.us(session.end_ns) + 1
    return scales
