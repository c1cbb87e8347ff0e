"""The facts of a run as pandas tables. Pure. docs/python.md says what every column means.

All tables follow the same rules:

- The unit of a column is in its name: `_s` seconds, `_mbit_s` megabits per second, `_mib` mebibytes; `bytes` are bytes.
  `accuracy` and columns that end in `_share` are between 0 and 1.
- Seconds are divided by the dilation, as in `summary.json`.
- `start_s` is on one time axis for all devices: seconds since the first round began, on the orchestrator's clock.
  Device clocks are put on it by the offsets that were measured during the run.
- `round` counts from 1. Only finished rounds have rows; of a round that was done again after a resume, the last one.
- A value that is not known is NaN (numbers and text) or NA (whole numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from edgebed.wire.reading import BoardReading
from orchestrator.records import types as t
from orchestrator.records.board_marks import BoardMark
from orchestrator.records.critical.bound_by import RoundBounds, in_words
from orchestrator.records.critical.stragglers import CAUSES
from orchestrator.records.run_index import RoundFacts, RunFacts
from orchestrator.records.summary import DeviceFigures, RoundFigures, Summary
from orchestrator.records.timeline.board import line_of
from orchestrator.records.timeline.limits_in_force import LimitsInForce
from orchestrator.records.timeline.timeline import timelines
from orchestrator.records.words.vocabulary import BOUNDS, board_mark


class TimeAxis:
    """Times of the orchestrator's clock -> seconds since the run's first round began, divided by the dilation.

    Each session of the orchestrator (from a start or a resume to its end) has a clock of its own. The first round of a
    session begins where the session before it ended.
    """

    def __init__(self, run: RunFacts) -> None:
        self._sessions = run.sessions
        self._begin_s = [0.0]
        for session in run.sessions:
            length_s = max(0, session.end_ns - session.begin_ns) / 1e9 / session.started.dilation
            self._begin_s.append(self._begin_s[-1] + length_s)

    def seconds(self, session: int, at_ns: int) -> float:
        """`at_ns` of the clock of session number `session` (from 0), in seconds. Negative before the first round."""
        facts = self._sessions[session]
        return self._begin_s[session] + (at_ns - facts.begin_ns) / 1e9 / facts.started.dilation


class Rounds:
    """The finished rounds of a run in the order of their numbers (`finished`), and where they are on the axis."""

    def __init__(self, run: RunFacts) -> None:
        self.axis = TimeAxis(run)
        numbers = {id(session): number for number, session in enumerate(run.sessions)}
        pairs = run.rounds()
        self._session = {facts.number: numbers[id(session)] for session, facts in pairs}
        self.finished = [(session, facts) for session, facts in pairs if facts.finished is not None]

    def seconds(self, facts: RoundFacts, at_ns: int) -> float:
        """A time of the clock of the round's session, in seconds."""
        return self.axis.seconds(self._session[facts.number], at_ns)


Row = tuple[Any, ...]

FROM_SUMMARY: dict[str, Callable[[RoundFigures], object]] = {
    "round": lambda row: row.number,
    "lane": lambda row: row.lane,
    "duration_s": lambda row: row.round_s,
    "elapsed_s": lambda row: row.elapsed_s,
    "accuracy": lambda row: row.accuracy,
    "loss": lambda row: row.loss,
    "merged_devices": lambda row: row.merged,
    "bytes": lambda row: row.bytes,
    "straggler": lambda row: row.straggler,
    "straggler_profile": lambda row: row.straggler_profile,
    "straggler_cause": lambda row: row.straggler_why,
    "straggler_gap_s": lambda row: row.straggler_gaps_s,
    "waited_for": lambda row: row.waited_for,
    "waited_s": lambda row: row.waited_s,
    "timeline_residual_share": lambda row: row.timeline_residual,
    "host_speed": lambda row: row.host_speed,
    "stolen_share": lambda row: row.stolen_share,
    "others_share": lambda row: row.others_share,
}
"""Columns of the rounds table, from the figures of a round."""

PHASES = ("round", "lane", "device", "phase", "start_s", "duration_s", "waiting_for")
UPLOADS = ("round", "device", "kind", "batch", "start_s", "duration_s", "bytes")
READINGS = ("device", "start_s", "mhz", "cap", "celsius", "hot", "throttled_bits", "watts", "marks")
FAULTS = ("session", "start_s", "round", "device", "event", "kind", "reason")

LIMITS = ("profile", "cpus", "uplink_mbit_s", "downlink_mbit_s")
DEVICES = (
    *("device", *LIMITS, "memory_mib", "samples", "classes", "rounds", "straggler_rounds"),
    *("idle_share", "throttled_share", "tasks_in_quota", "batches_in_quota", "bytes_up", "bytes_down"),
)
ASSIGNMENTS = (
    *("round", "lane", "device", *LIMITS, "cut", "outcome", "start_s", "predicted_s"),
    *("duration_s", "communication_s", "server_s"),  # of the record DeviceDone
    *("compute_s", "compute_cpu_s", "samples", "batches", "train_loss", "memory_mib"),  # of the device's report
    *("bytes_up", "bytes_down"),
    "joules",
)

TEXT = frozenset(
    (
        *("lane", "device", "profile", "phase", "waiting_for", "waited_for", "outcome", "kind", "event", "reason"),
        *("straggler", "straggler_profile", "straggler_cause", "marks"),
    )
)
WHOLE = frozenset(("round", "session", "cut", "merged_devices", "rounds", "straggler_rounds", "classes"))
OPTIONAL = frozenset(("batch", "batches", "samples"))
"""Columns of whole numbers that may be unknown."""


def _table(columns: Sequence[str], rows: Iterable[Row], optional: Container[str] = OPTIONAL) -> pd.DataFrame:
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return _typed(dict(zip(columns, values, strict=True)), optional)


def _typed(columns: Mapping[str, Sequence[Any]], optional: Container[str] = OPTIONAL) -> pd.DataFrame:
    return pd.DataFrame(
        {name: pd.array(list(values), dtype=_dtype(name, optional)) for name, values in columns.items()}
    )


def _dtype(column: str, optional: Container[str]) -> str:
    if column in TEXT:
        return "str"
    if column in optional:
        return "Int64"
    return "int64" if column in WHOLE or column.startswith("bytes") else "float64"


def rounds_table(run: RunFacts, summary: Summary) -> pd.DataFrame:
    """One row per round, in the order in which rounds ended."""
    rounds = Rounds(run)
    start_s = {facts.number + 1: rounds.seconds(facts, facts.start_ns) for _, facts in rounds.finished}
    table = _typed({name: [of(row) for row in summary.rounds] for name, of in FROM_SUMMARY.items()})
    table["disturbed"] = pd.array([_words(row.disturbed) for row in summary.rounds], dtype="str")
    table.insert(2, "start_s", table["round"].map(start_s).astype("float64"))
    bounds = [row.round_bounds for row in summary.rounds]
    table["bound_by"] = pd.array([None if found is None else in_words(found) for found in bounds], dtype="str")
    for what in BOUNDS:
        table[f"bound_by_{what}_share"] = pd.array([_share(row, what) for row in bounds], dtype="float64")
    for cause, seconds in _behind(summary).items():
        table[f"straggler_behind_{cause}_s"] = pd.array(seconds, dtype="float64")
    for name in summary.extra_names:
        table[f"extra_{name}"] = pd.array([row.extra.get(name) for row in summary.rounds], dtype="float64")
    return table


def _words(causes: Sequence[str] | None) -> str | None:
    return None if causes is None else " ".join(causes)


def _share(bounds: RoundBounds | None, what: str) -> float | None:
    """Share of a round for which bounds of one kind were on its critical path."""
    return None if bounds is None else float(sum(part.share for part in bounds.parts if part.what == what))


def _behind(summary: Summary) -> dict[str, list[float | None]]:
    """By cause: how many seconds the straggler was behind the median device; None in a round without a straggler."""
    rows = [row.straggler_behind_s or {} for row in summary.rounds]
    return {cause: [row.get(cause) for row in rows] for cause in CAUSES}


def curve_table(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rounds that were evaluated, from the table of all rounds. `total_bytes`: of all rounds so far, both ways."""
    table = rounds[["round", "elapsed_s", "accuracy", "loss"]].copy()
    table.insert(2, "total_bytes", rounds["bytes"].cumsum())
    return table[table["accuracy"].notna()].reset_index(drop=True)


def phases_table(run: RunFacts) -> pd.DataFrame:
    """One row per named interval of a device's time."""
    rounds, rows = Rounds(run), list[Row]()
    for timeline in timelines(run):
        facts = timeline.facts
        if facts.finished is None:
            continue
        zero_s, zero_ns, scale = rounds.seconds(facts, facts.start_ns), facts.start_ns, 1e9 * facts.dilation
        for device, account in timeline.devices.items():
            head = (facts.number + 1, facts.lane, device)
            rows += [
                (*head, s.name, zero_s + (s.start_ns - zero_ns) / scale, (s.end_ns - s.start_ns) / scale, s.detail)
                for s in account.segments
            ]
    return _table(PHASES, rows)


def devices_table(run: RunFacts, summary: Summary) -> pd.DataFrame:
    """One row per device of the fleet."""
    infos = {info.name: info for session in run.sessions for info in session.started.devices}
    return _table(DEVICES, (_device(info, summary.devices[info.name], summary.rounds) for info in infos.values()))


def _device(info: t.DeviceInfo, device: DeviceFigures, rounds: Sequence[RoundFigures]) -> Row:
    return (
        *(info.name, info.profile, info.cpus, info.uplink_bit_s / 1e6, info.downlink_bit_s / 1e6, info.memory_mib),
        *(info.samples, sum(count > 0 for count in info.labels)),
        *(sum(cut is not None for cut in device.cut), sum(row.straggler == info.name for row in rounds)),
        *(device.idle_share, device.throttled_share, device.tasks_in_quota, device.batches_in_quota),
        *(device.bytes_up, device.bytes_down),
    )


def assignments_table(run: RunFacts, summary: Summary) -> pd.DataFrame:
    """One row per device and round in which it had work."""
    rounds, place = Rounds(run), {row.number - 1: place for place, row in enumerate(summary.rounds)}
    limits = {id(session): LimitsInForce(session) for session in run.sessions}
    rows = (
        (
            *_assignment(rounds, facts, device, limits[id(session)]),
            summary.devices[device].joules[place[facts.number]],
        )
        for session, facts in rounds.finished
        for device in facts.started.assignments
    )
    return _table(ASSIGNMENTS, rows)


def _assignment(rounds: Rounds, facts: RoundFacts, device: str, limits: LimitsInForce) -> Row:
    sent, predicted = facts.sent.get(device), facts.started.predicted_s.get(device)
    return (
        *(facts.number + 1, facts.lane, device, *_limits(facts, device, limits)),
        *(facts.started.assignments[device].stages, _outcome(facts, device)),
        None if sent is None else rounds.seconds(facts, sent.at_ns),
        None if predicted is None else predicted / facts.dilation,
        *_done(facts, device),
        *_reported(facts, device),
        *facts.moved(device),
    )


def _limits(facts: RoundFacts, device: str, limits: LimitsInForce) -> Row:
    """The limits at the start of the round, in the fleet file's units: multiplied by the dilation and rounded, since
    the kernel takes whole bits and microseconds."""
    row = limits.at(device, facts.start_ns)
    if row is None:
        return ("", None, None, None)
    up, down = (round(rate * facts.dilation / 1e6, 3) for rate in (row.uplink_bit_s, row.downlink_bit_s))
    return row.profile, round(row.cpus * facts.dilation, 4), up, down


def _outcome(facts: RoundFacts, device: str) -> str:
    """`merged`, or how the device's work was left out."""
    if facts.finished is not None and device in facts.finished.merged:
        return "merged"
    out = facts.out.get(device)
    return out.how if out is not None else "not merged"


def _done(facts: RoundFacts, device: str) -> Row:
    done = facts.done.get(device)
    if done is None:
        return (None, None, None)
    return tuple(seconds / facts.dilation for seconds in (done.seconds, done.communication_s, done.server_s))


def _reported(facts: RoundFacts, device: str) -> Row:
    update = facts.updates.get(device)
    if update is None:
        return (None,) * 6
    report = update.report
    compute_s, compute_cpu_s = report.compute_s / facts.dilation, report.compute_cpu_s / facts.dilation
    return (compute_s, compute_cpu_s, report.samples, report.batches, report.loss, report.memory_mib or None)


def uploads_table(run: RunFacts) -> pd.DataFrame:
    """One row per transfer from a device that arrived whole, from its first chunk to its last."""
    rounds, rows = Rounds(run), list[Row]()
    for _, facts in rounds.finished:
        arrived: list[t.UploadReceived | t.UpdateReceived] = [*facts.updates.values()]
        arrived += [upload for each in facts.uploads.values() for upload in each]
        for record in arrived:
            start_s, end_s = rounds.seconds(facts, record.first_ns), rounds.seconds(facts, record.at_ns)
            kind, batch = ("features", record.batch) if isinstance(record, t.UploadReceived) else ("update", None)
            rows.append((facts.number + 1, record.device, kind, batch, start_s, end_s - start_s, record.bytes))
    return _table(UPLOADS, sorted(rows, key=lambda row: row[4]))


def readings_table(run: RunFacts) -> pd.DataFrame:
    """One row per reading of a board's sensors, in all sessions."""
    axis, rows = TimeAxis(run), list[Row]()
    for number, session in enumerate(run.sessions):
        for name, device in session.devices.items():
            line = line_of(device)
            for at_ns, reading, marks in zip(line.at_ns, line.readings, line.marks, strict=True):
                rows.append((name, axis.seconds(number, at_ns), *_read(reading, marks)))
    return _table(READINGS, rows, optional=("throttled_bits",))


def _read(reading: BoardReading, marks: Sequence[str] | None) -> Row:
    """`mhz`: the mean of the cores."""
    known = [mhz for mhz in reading.mhz if mhz is not None]
    mhz = sum(known) / len(known) if known else None
    hot = None if reading.hot is None else float(reading.hot)
    return mhz, reading.cap, reading.celsius, hot, reading.throttled, reading.watts, _words(marks)


def faults_table(run: RunFacts) -> pd.DataFrame:
    """One row per unexpected event: work that was left out, devices that left or came back, other faults. All sessions,
    and rounds that did not finish too; `round` is NA where the event belongs to no round."""
    axis = Rounds(run).axis
    rows = [
        (number + 1, axis.seconds(number, event.at_ns), *_event(event))
        for number, session in enumerate(run.sessions)
        for event in session.events
    ]
    return _table(FAULTS, rows, optional=("round",))


def _event(event: t.Happened) -> Row:
    """Round, device, event, kind, reason."""
    match event:
        case t.DeviceOut():
            return event.round + 1, event.device, "device_out", event.how, event.why
        case t.DeviceJoined():
            return None, event.device, "device_joined", "", ""
        case t.DeviceLeft():
            return None, event.device, "device_left", "", event.why
        case t.Fault():
            return None, event.device, "fault", "", event.what
        case t.ScenarioStep():
            kind = event.kind if event.begins else f"{event.kind} over"
            return None, event.device, "scenario", kind, event.error or event.asked
        case BoardMark():
            return None, event.device, "board", event.mark, board_mark(event.mark, event.setting)
