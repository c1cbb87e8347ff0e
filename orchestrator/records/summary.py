"""`summary.json`: the figures of a run, flat, with names and units that docs/records.md lists.

Every time is divided by the dilation. The time axis is the sum of the rounds' seconds, each from its plan to the end of
its merge; evaluation and checkpoints are not part of training and are not in it. Where rounds overlap (lanes of an
asynchronous method) the axis is the wall clock from the first round's start, with the evaluations, which run at the
same time as other lanes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from edgebed.errors import UsageError
from orchestrator.records.board_marks import BoardMark
from orchestrator.records.critical.bound_by import BoundBy, WaitSums, in_summary
from orchestrator.records.critical.critical_path import Paths, RoundPath
from orchestrator.records.critical.stragglers import in_summary_row, straggler, waits
from orchestrator.records.critical.whatif import WhatIf
from orchestrator.records.reader import read
from orchestrator.records.run_index import RoundFacts, RunFacts, Session, sort
from orchestrator.records.timeline.board import BoardRound, board_facts, boards_of_rounds
from orchestrator.records.timeline.disturbance import HostOfRound, NodeShares, hosts_of_rounds
from orchestrator.records.timeline.in_quota import InQuota, throttled_share
from orchestrator.records.timeline.limits_in_force import LimitsInForce
from orchestrator.records.timeline.timeline import WAITING, RoundTimeline, timelines
from orchestrator.records.types import Record, RunStarted
from orchestrator.records.words.vocabulary import server_note, threads_note

NOT_COUNTED = ("offline", "unreported")
"""Time that is neither idle nor busy."""


def summarise(records: Iterable[Record]) -> dict[str, Any]:
    """The summary of a run from its records."""
    return summarise_facts(sort(records))


def summarise_facts(run: RunFacts) -> dict[str, Any]:
    """The summary of a run; linear in the number of records."""
    summing = Summing(run)
    for timeline in timelines(run):
        summing.add(timeline)
    return summing.result()


def _head(run: RunFacts) -> dict[str, Any]:
    started, last = run.started, run.sessions[-1]
    return {
        "run": started.run,
        "experiment": started.experiment,
        "method": started.method,
        "seed": started.seed,
        "series": started.series,
        "interleaved": started.interleaved,
        "backend": started.backend,
        "enforcement": run.enforcement,
        "costs": started.host.get("costs", ""),
        "dilation": run.dilation,
        "grain": started.grain,
        "kernel": started.host.get("kernel", ""),
        "hz": int(started.host.get("hz") or 0) or None,
        "dilation_by": started.dilation_by,
        "server_cpus": started.server_cpus,
        "held_server_cpus": last.started.held_server_cpus,
        "server_note": server_note(run.dilation, started.server_cpus),
        "threads_note": threads_note(run.dilation, _limited_cpus(started)),
        "calibrated": run.calibrated,
        "started": run.sessions[0].started.wall,
        "resumed": len(run.sessions) - 1,
        "ended": last.finished.why if last.finished is not None else "not yet, or killed",
        "target_accuracy": started.target_accuracy,
        "test_accuracy": last.tested.accuracy if last.tested is not None else None,
        "boards": board_facts(run),
        "unlimited": [device.name for device in started.devices if device.unlimited],
        "limited_boards": [info.name for info in started.devices if info.board and not info.unlimited],
        "real_boards": {info.name: info.board for info in started.devices if info.board},
        "look_alikes": {info.name: info.look_alike_of for info in started.devices if info.look_alike_of},
        "profiles": {info.name: info.profile for session in run.sessions for info in session.started.devices},
    }


def _limited_cpus(started: RunStarted) -> dict[str, float]:
    """CPUs by profile, without real boards."""
    return {device.profile: device.cpus for device in started.devices if not device.unlimited}


class _Axis:
    """Ends of rounds on the time axis, and profiles. On the axis a session begins where the one before it ended."""

    def __init__(self, run: RunFacts) -> None:
        self._sessions = {id(facts): session for session, facts in run.rounds()}
        self._limits = {id(session): LimitsInForce(session) for session in run.sessions}
        self._session: Session | None = None
        self._before_s = self._end_s = 0.0

    def profile(self, device: str | None, facts: RoundFacts) -> str | None:
        """Of a device at the start of a round."""
        row = self._limits[id(self._sessions[id(facts)])].at(device, facts.start_ns) if device else None
        return row.profile if row is not None else None

    def at_end_of(self, facts: RoundFacts) -> float:
        """At the end of a finished round; rounds come in the order of their starts."""
        assert facts.finished is not None
        session = self._sessions[id(facts)]
        if session is not self._session:
            self._session, self._before_s = session, self._end_s
        if facts.ends is None:
            self._end_s += facts.finished.seconds / facts.dilation
            return self._end_s
        at = self._before_s + (facts.finished.at_ns - session.begin_ns) / 1e9 / facts.dilation
        self._end_s = max(self._end_s, at)
        return at


class Summing:
    """Adds up rounds to a summary. Only finished rounds count, except for bytes and failures."""

    def __init__(self, run: RunFacts) -> None:
        self._head = _head(run)
        self._axis, self._whatif, self._hosts = _Axis(run), WhatIf(run), hosts_of_rounds(run)
        self._boards = boards_of_rounds(run)
        self._paths, self._bounds, self._waits = Paths(run), BoundBy(), WaitSums()
        self._target = run.started.target_accuracy
        self._devices = list(dict.fromkeys(name for session in run.sessions for name in session.devices))
        self._rows: dict[str, list[Any]] = {name: [] for name in ROWS}
        self._by_device: dict[str, dict[str, list[Any]]] = {
            name: {device: [] for device in self._devices} for name in PER_ASSIGNMENT
        }
        self._phases: dict[str, dict[str, float]] = {device: {} for device in self._devices}
        self._in_round: dict[str, dict[str, float]] = {device: {} for device in self._devices}
        self._bytes_up, self._bytes_down = (
            Counter(dict.fromkeys(self._devices, 0)),
            Counter(dict.fromkeys(self._devices, 0)),
        )
        self._left_out: dict[str, int] = {}
        self._extra: list[dict[str, float]] = []
        self._load: list[dict[str, float]] = []
        self._nodes: list[dict[str, NodeShares]] = []
        self._faults = sum(not isinstance(each, BoardMark) for session in run.sessions for each in session.events)
        self._throttled = {device: throttled_share(run, device) for device in self._devices}
        self._in_quota, self._all_in_quota = {device: InQuota() for device in self._devices}, InQuota()

    def add(self, timeline: RoundTimeline) -> None:
        """Rounds come in the order of their starts."""
        facts = timeline.facts
        before = self._bytes_up.total() + self._bytes_down.total()
        self._count(facts)
        if facts.finished is None:
            return
        path = self._paths.of(timeline)
        savings = self._whatif.add(facts, path)
        self._bounds.add(timeline, path, self._hosts.get(facts.number, HostOfRound()).lost_s, savings)
        self._waits.add(timeline, path)
        self._add_row(timeline, path, self._bytes_up.total() + self._bytes_down.total() - before)
        self._add_assignments(facts)
        for name, device in timeline.devices.items():
            _accumulate(self._phases[name], device.sums, facts.dilation)
            _accumulate(self._in_round[name], device.totals(end_ns=facts.finished.at_ns), facts.dilation)

    def _count(self, facts: RoundFacts) -> None:
        up, down = self._bytes_up, self._bytes_down
        for device, uploads in facts.uploads.items():
            up[device] += sum([upload.bytes for upload in uploads])
        for device, update in facts.updates.items():
            up[device] += update.bytes
            self._in_quota[device].add(update.report)
            self._all_in_quota.add(update.report)
        for device, replies in facts.replies.items():
            down[device] += sum([reply.bytes for reply in replies])
        for device in facts.delivered:
            down[device] += facts.download_bytes(device)
        for out in facts.out.values():
            self._left_out[out.how] = self._left_out.get(out.how, 0) + 1

    def _add_row(self, timeline: RoundTimeline, path: RoundPath | None, moved: int) -> None:
        facts = timeline.facts
        assert facts.finished is not None
        evaluated, slowest = facts.evaluated, straggler(timeline, path)
        waited_for, waited = waits(timeline)
        row = {
            "number": facts.number + 1,
            "lane": facts.lane,
            "round_s": facts.finished.seconds / facts.dilation,
            "elapsed_s": self._axis.at_end_of(facts),
            "accuracy": None if evaluated is None else evaluated.accuracy,
            "loss": None if evaluated is None or not math.isfinite(evaluated.loss) else evaluated.loss,
            "merged": len(facts.finished.merged),
            "block": facts.turn.block if facts.turn is not None else None,
            "position": facts.turn.position + 1 if facts.turn is not None else None,
            "bytes": moved,
            **in_summary_row(slowest, facts.dilation),
            "straggler_profile": self._axis.profile(slowest.device if slowest is not None else None, facts),
            "waited_for": waited_for,
            "waited_s": waited / 1e9 / facts.dilation,
            "timeline_residual": None
            if facts.cut_off
            else max((d.residual for d in timeline.devices.values()), default=0),
        }
        host = self._hosts.get(facts.number, HostOfRound())
        row["round_bounds"] = in_summary(self._bounds.rounds[-1])
        for name, value in (row | _host_row(host)).items():
            self._rows[name].append(value)
        self._load.append(host.load)
        self._nodes.append(host.nodes)
        self._extra.append({} if evaluated is None else evaluated.extra)

    def _add_assignments(self, facts: RoundFacts) -> None:
        lost = self._hosts.get(facts.number, HostOfRound()).lost_s
        boards = self._boards.get(facts.number, {})
        for device in self._devices:
            board = boards.get(device, BoardRound())
            assignment, done = facts.started.assignments.get(device), facts.done.get(device)
            predicted = facts.started.predicted_s.get(device)
            values = {
                "cut": assignment.stages if assignment is not None else None,
                "predicted_s": None if predicted is None else predicted / facts.dilation,
                "actual_s": None if done is None else done.seconds / facts.dilation,
                "not_got_s": _divided_one(lost.get(device), facts.dilation),
                "joules": board.joules,
                "board_celsius": board.celsius,
                "board_marks": board.marks,
            }
            for name, value in values.items():
                self._by_device[name][device].append(value)

    def result(self) -> dict[str, Any]:
        self._in_order()
        rows, seconds = self._rows, self._rows["round_s"]
        gaps = [gap for gap in rows["straggler_gaps_s"] if gap is not None]
        known = [accuracy for accuracy in rows["accuracy"] if accuracy is not None]
        return self._head | {
            "rounds": len(seconds),
            "time_to_target_s": self._time_to_target(),
            "total_s": rows["elapsed_s"][-1] if seconds else 0.0,
            "final_accuracy": known[-1] if known else None,
            "best_accuracy": max(known, default=None),
            "round_s_median": median(seconds) if seconds else None,
            "round_s_p95": percentile(seconds, 0.95),
            "straggler_gap_s": median(gaps) if gaps else None,
            "timeline_residual_max": max(
                (share for share in rows["timeline_residual"] if share is not None), default=None
            ),
            "idle_share_mean": _mean([self._idle(d) for d in self._devices]),
            "tasks_in_quota_share": self._all_in_quota.tasks,
            "batches_in_quota_share": self._all_in_quota.pieces,
            "bytes_up_total": sum(self._bytes_up.values()),
            "bytes_down_total": sum(self._bytes_down.values()),
            "devices_left_out": self._left_out,
            "events": self._faults,
            **rows,
            "extra": _columns(self._extra),
            "load": _columns(self._load),
            "nodes": _nodes(self._nodes),
            "disturbed_rounds": _count(rows["disturbed"]),
            "bound_by": self._bounds.result(),
            "what_if": self._whatif.result(),
            **self._waits.result(),
            "idle_share": {device: self._idle(device) for device in self._devices},
            "throttled_share": self._throttled,
            "tasks_in_quota": {device: count.tasks for device, count in self._in_quota.items()},
            "batches_in_quota": {device: count.pieces for device, count in self._in_quota.items()},
            "bytes_up": self._bytes_up,
            "bytes_down": self._bytes_down,
            "phase_s": {device: _seconds(phases) for device, phases in self._phases.items()},
            **self._by_device,
        }

    def _in_order(self) -> None:
        """Sort rounds by their ends: with lanes that is not the order of their numbers."""
        ends = self._rows["elapsed_s"]
        if any(a > b for a, b in pairwise(ends)):
            order = sorted(range(len(ends)), key=lambda index: ends[index])
            of_devices = [values for by_device in self._by_device.values() for values in by_device.values()]
            for values in (*self._rows.values(), *of_devices, self._extra, self._load, self._nodes):
                values[:] = [values[index] for index in order]

    def _time_to_target(self) -> float | None:
        pairs = zip(self._rows["elapsed_s"], self._rows["accuracy"], strict=True)
        return next((at for at, accuracy in pairs if accuracy is not None and accuracy >= self._target), None)

    def _idle(self, device: str) -> float | None:
        """Share of the time in rounds in which the device was present and idle; None: it was never present."""
        sums = self._in_round[device]
        present = sum(length for name, length in sums.items() if name not in NOT_COUNTED)
        return sum(sums.get(name, 0) for name in WAITING) / present if present else None


ROWS = (
    "number",
    "lane",
    "round_s",
    "elapsed_s",
    "accuracy",
    "loss",
    "merged",
    "block",
    "position",
    "bytes",
    "straggler",
    "straggler_why",
    "straggler_gaps_s",
    "straggler_behind_s",
    "straggler_profile",
    "waited_for",
    "waited_s",
    "timeline_residual",
    "round_bounds",
    "disturbed",
    "disturbed_why",
    "host_speed",
    "stolen_share",
    "others_share",
)
"""Lists with one entry per finished round, in the order in which rounds ended."""

PER_ASSIGNMENT = ("cut", "predicted_s", "actual_s", "not_got_s", "joules", "board_celsius", "board_marks")
"""By device, lists with one entry per finished round; null where the device had no assignment, or did not finish it;
the last three: where it is no board, or its sensors do not tell."""


def _host_row(host: HostOfRound) -> dict[str, Any]:
    return {
        "disturbed": host.causes,
        "disturbed_why": None if host.disturbed is None else host.why,
        "host_speed": host.speed,
        "stolen_share": host.stolen_share,
        "others_share": host.others_share,
    }


def _count(disturbed: list[list[str] | None]) -> int | None:
    """Rounds that the host disturbed; None where it was not measured in any."""
    known = [causes for causes in disturbed if causes is not None]
    return sum(bool(causes) for causes in known) if known else None


def _columns(rows: Sequence[Mapping[str, float | None]]) -> dict[str, list[float | None]]:
    """Lists by name, with an entry per row; None where a row lacks the name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _nodes(rounds: list[dict[str, NodeShares]]) -> dict[str, dict[str, list[float | None]]]:
    """Shares of the CPU time of a Swarm's nodes, and their load and clock: lists by node, with an entry per round."""
    return {
        "busy_share": _columns([{name: each.busy for name, each in nodes.items()} for nodes in rounds]),
        "stolen_share": _columns([{name: each.stolen for name, each in nodes.items()} for nodes in rounds]),
        "others_share": _columns([{name: each.others for name, each in nodes.items()} for nodes in rounds]),
        "load": _columns([{name: each.load for name, each in nodes.items()} for nodes in rounds]),
        "clock_s": _columns([{name: each.clock_s for name, each in nodes.items()} for nodes in rounds]),
    }


def percentile(values: list[float], share: float) -> float | None:
    """The smallest value that `share` of all do not exceed (nearest rank); None of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _divided_one(seconds: float | None, dilation: float) -> float | None:
    return None if seconds is None else seconds / dilation


def _accumulate(into: dict[str, float], more: dict[str, int], dilation: float) -> None:
    for name, length in more.items():
        into[name] = into.get(name, 0.0) + length / dilation


def _seconds(phases: dict[str, float]) -> dict[str, float]:
    return {name: length / 1e9 for name, length in sorted(phases.items())}


# ---- files ----


def write_summary(folder: Path, run: RunFacts | None = None, summary: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write `summary.json` and `calibration.json` of a run from its records, and return the summary. `run` and
    `summary`: where those are at hand already."""
    run = sort(read(folder / "records.jsonl")) if run is None else run
    summary = summarise_facts(run) if summary is None else summary
    _write(folder / "summary.json", summary)
    _write(folder / "calibration.json", run.sessions[-1].calibration)
    return summary


def load_summary(folder: Path) -> dict[str, Any]:
    """The summary of a run: the file, or from the records where those are newer (a run that goes on)."""
    records, file = folder / "records.jsonl", folder / "summary.json"
    try:
        if file.stat().st_mtime >= records.stat().st_mtime:
            summary: dict[str, Any] = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
            if "bound_by" in summary:  # else an older version wrote it, which knew less
                return summary
    except (OSError, msgspec.DecodeError):
        pass  # none yet, or a torn one: the records say the same
    if not records.is_file():
        raise UsageError(f"{folder} holds no run", hint="give the folder of a run: it holds records.jsonl")
    return summarise(read(records))


def _write(path: Path, value: Any) -> None:
    """Written aside and renamed, so that a reader never sees half a file."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    part.replace(path)
