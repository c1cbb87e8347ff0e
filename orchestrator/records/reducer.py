"""Records -> state of a run, record by record, in any number of portions. Pure.

The live page and the terminal follow a run with this. `run_index.sort` keeps every fact of a whole file for report,
trace and comparison. Both keep sessions and clocks in the same structs, and take stragglers and their causes from
`orchestrator.records.stragglers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.records import formatting
from orchestrator.records import types as t
from orchestrator.records.run_index import Session
from orchestrator.records.run_state import DeviceState, OpenDevice, OpenRound, RoundRow, RunEvent, RunState
from orchestrator.records.settling import close, settle

MEMORY_S = 10.0
"""CPU and throttling are averages over about so many seconds (not divided) that a device reported."""

PATIENCE = 64
"""A round is settled after so many others, whatever phases of it are missing."""

OWN_WORK = ("decode", "compute", "encode")


def reduce(state: RunState, lines: Iterable[tuple[int, t.Record]]) -> None:
    """Take in records with their offsets in the file, in the order of the file."""
    state.rev += 1
    for offset, record in lines:
        step = STEPS.get(type(record))
        if step is not None and (state.sessions or isinstance(record, t.RunStarted)):
            step(state, record, offset)
    settle(state)


# ---- the run ----


def _run_started(state: RunState, record: t.RunStarted, offset: int) -> None:
    again = bool(state.sessions)
    state.sessions.append(Session(record))
    state.last_ns, state.open, state.tasks, state.stale, state.calibration = record.at_ns, {}, {}, set(), []
    state.begin_ns, state.lanes = 0, False
    _remove_rows(state, record.resumed_from)
    for info in record.devices:
        _device(state, info)
    if again:
        _event(state, record.at_ns, "resumed", "", f"goes on from round {record.resumed_from + 1}")


def _remove_rows(state: RunState, first: int) -> None:
    """Rounds that a resumed run does again count as they are done last."""
    keep = next((i for i, row in enumerate(state.rows) if row.number >= first), len(state.rows))
    if keep == len(state.rows):
        return
    state.epoch += 1
    del state.rows[keep:]
    for device in state.devices.values():
        for column in (device.cuts, device.predicted_s, device.actual_s):
            del column[keep:]
    last = state.rows[-1] if state.rows else None
    state.elapsed_s = last.axis_s + (last.seconds or 0.0) if last else 0.0


def _device(state: RunState, info: t.DeviceInfo) -> None:
    limits = (info.cpus, float(info.uplink_bit_s), float(info.downlink_bit_s), info.memory_mib, info.samples)
    old = state.devices.get(info.name)
    if old is None:
        new = state.devices[info.name] = DeviceState(info.name, info.profile, *limits)
        nothing = [None] * len(state.rows)
        new.cuts, new.predicted_s, new.actual_s = [*nothing], [*nothing], [*nothing]
    else:
        old.profile, old.cpus, old.uplink_bit_s, old.downlink_bit_s, old.memory_mib, old.samples = info.profile, *limits


def _run_finished(state: RunState, record: t.RunFinished, offset: int) -> None:
    state.session.finished = record
    _event(state, record.at_ns, "ended", "", record.why)


def _calibrated(state: RunState, record: t.Calibrated, offset: int) -> None:
    state.calibration.append(record)


# ---- devices ----


def _joined(state: RunState, record: t.DeviceJoined, offset: int) -> None:
    state.session.add_presence(record)
    if record.again and record.at_ns >= state.session.started.at_ns:
        _event(state, record.at_ns, "joined", record.device, "came back")


def _left(state: RunState, record: t.DeviceLeft, offset: int) -> None:
    state.session.add_presence(record)
    if record.at_ns >= state.session.started.at_ns:
        _event(state, record.at_ns, "left", record.device, record.why)


def _clock(state: RunState, record: t.ClockOffset, offset: int) -> None:
    state.session.add_clock(record)


def _fault(state: RunState, record: t.Fault, offset: int) -> None:
    _event(state, record.at_ns, "fault", record.device, record.what)


def _limits(state: RunState, record: t.LimitsSet, offset: int) -> None:
    device = state.devices.get(record.device)
    if device is None:
        return
    factor, old = state.dilation, device.profile
    device.profile = record.profile
    device.cpus = record.cpus * factor
    device.uplink_bit_s, device.downlink_bit_s = record.uplink_bit_s * factor, record.downlink_bit_s * factor
    device.held = None if record.held_cpus is None else True
    if record.at_ns < state.session.started.at_ns or (record.why != "reprofile" and old == record.profile):
        return
    up, down = formatting.rate(device.uplink_bit_s), formatting.rate(device.downlink_bit_s)
    limits = f"{formatting.number(device.cpus)} CPU, {up} up, {down} down"
    text = f"profile {old} → {record.profile}: {limits}"
    device.reprofiled = _event(state, record.at_ns, "profile", record.device, text).round


def _phases(state: RunState, record: t.DevicePhases, offset: int) -> None:
    device = state.devices.get(record.device)
    if device is None or not record.phases:
        return
    state.last_ns = record.at_ns
    clock = state.session.device(record.device).clocks.get(record.incarnation)
    span = cpu = work = stopped = 0
    task, opened, number = "", None, -1
    spent = device.phase_ns
    for phase in record.phases:
        name, length = phase.name, phase.end_ns - phase.start_ns
        span += length
        cpu += phase.cpu_ns
        spent[name] = spent.get(name, 0) + length
        if name in OWN_WORK:
            work += length
            stopped += phase.throttled_ns
        if phase.task != task:
            task = phase.task
            number, opened = _device_of(state, task)
        if opened is not None:
            _count(opened, name, length, clock.to_orchestrator(phase.end_ns) if clock and name in ENDS else 0)
            if name == "upload_tail":
                state.stale.add(number)
    device.phase = record.phases[-1].name
    device.stopped_ns += stopped
    if span and device.cpus:
        quota = device.cpus / state.dilation
        device.cpu_share = _average(device.cpu_share, cpu / span / quota, span / 1e9)
    if work:
        device.throttled_share = _average(device.throttled_share, min(1.0, stopped / work), work / 1e9)


ENDS = ("download", "upload_tail")
"""Phases whose end is needed on the orchestrator's clock."""


def _count(opened: OpenDevice, name: str, length: int, end_ns: int) -> None:
    costs = opened.costs
    if name in OWN_WORK:
        costs.cpu += length
    elif name == "blocked":
        costs.uplink += length
    elif name == "upload_tail":
        costs.uplink, opened.tail_end_ns = costs.uplink + length, end_ns
    elif name == "download":
        opened.download_end_ns = end_ns
    elif name == "reply_wait":
        costs.reply_wait += length


def _average(old: float | None, new: float, seconds: float) -> float:
    keep = 0.0 if old is None else math.exp(-seconds / MEMORY_S)
    return (old or 0.0) * keep + new * (1 - keep)


def _device_of(state: RunState, task: str) -> tuple[int, OpenDevice | None]:
    number, device = state.tasks.get(task, (-1, ""))
    opened = state.open.get(number)
    return number, opened.devices.get(device) if opened is not None else None


# ---- rounds ----


def _round_started(state: RunState, record: t.RoundStarted, offset: int) -> None:
    state.last_ns = record.at_ns
    if not state.begin_ns:
        state.begin_ns, state.before_s = record.at_ns, state.elapsed_s
    state.lanes = state.lanes or bool(record.lane)
    start_s = state.wall(record.at_ns) if state.lanes else state.elapsed_s
    row = RoundRow(record.round, offset, len(state.sessions) - 1, record.at_ns, start_s, len(record.devices))
    row.rev = state.rev
    state.open[record.round] = OpenRound(len(state.rows), devices={name: OpenDevice() for name in record.devices})
    state.rows.append(row)
    drawn = set(record.devices)
    for name, device in state.devices.items():
        assignment, predicted = record.assignments.get(name), record.predicted_s.get(name)
        device.cuts.append(assignment.stages if assignment is not None else None)
        device.predicted_s.append(None if predicted is None else predicted / state.dilation)
        device.actual_s.append(None)
        if name in drawn:
            device.activity, device.since_ns, device.round_bytes = "waiting", 0, 0
            device.before_s, device.took_s = device.took_s or device.before_s, None
        elif not record.lane:  # in another lane it may be at work
            device.activity, device.since_ns, device.round_bytes, device.took_s = "not drawn", 0, 0, None


def _own_phase(state: RunState, record: t.OrchestratorPhase, offset: int) -> None:
    state.last_ns = record.end_ns
    if record.name == "plan" and record.round in state.open:
        state.open[record.round].plan_end_ns = record.end_ns


def _task_sent(state: RunState, record: t.TaskSent, offset: int) -> None:
    state.last_ns = record.at_ns
    state.tasks[record.task] = (record.round, record.device)
    opened, device = _both(state, record)
    if opened is not None and device is not None:
        opened.sent_ns = device.since_ns = record.at_ns
        _set_activity(state, record, "receiving")


def _task_delivered(state: RunState, record: t.TaskDelivered, offset: int) -> None:
    state.last_ns = record.at_ns
    _add_bytes(state, record.device, 0, record.bytes)
    opened, device = _both(state, record)
    if opened is None or device is None:
        return
    _set_activity(state, record, "working")
    opened.download_end_ns = opened.download_end_ns or record.at_ns  # simulated devices report no download
    if record.at_ns > opened.sent_ns > 0 and device.downlink_bit_s:
        received = record.bytes * 8e9 / (record.at_ns - opened.sent_ns) * state.dilation
        device.downlink_share = received / device.downlink_bit_s


def _upload(state: RunState, record: t.UploadReceived, offset: int) -> None:
    state.last_ns = record.at_ns
    _add_bytes(state, record.device, record.bytes, 0)
    opened = _opened(state, record)
    if opened is not None:
        opened.costs.replies_up += record.at_ns - record.first_ns


def _reply(state: RunState, record: t.ReplyDelivered, offset: int) -> None:
    _add_bytes(state, record.device, 0, record.bytes)
    opened = _opened(state, record)
    if opened is not None:
        opened.costs.replies_down += record.at_ns - record.first_ns


def _update(state: RunState, record: t.UpdateReceived, offset: int) -> None:
    state.last_ns = record.at_ns
    _add_bytes(state, record.device, record.bytes, 0)
    opened, device = _both(state, record)
    if device is None:
        return
    if opened is not None:
        _set_activity(state, record, "server half")
    report = record.report
    sent, took = report.upload_bytes, report.upload_s
    if not sent or not took:
        sent, took = record.bytes, (record.at_ns - record.first_ns) / 1e9
    if took > 0 and device.uplink_bit_s:
        device.uplink_share = sent / took * 8 * state.dilation / device.uplink_bit_s
    device.memory_used_mib = report.memory_mib or device.memory_used_mib


def _add_bytes(state: RunState, name: str, up: int, down: int) -> None:
    device = state.devices.get(name)
    if up:
        state.bytes_up += up
        if device is not None:
            device.bytes_up += up
            device.round_bytes += up
    if down:
        state.bytes_down += down
        if device is not None:
            device.bytes_down += down
            device.round_bytes += down


def _done(state: RunState, record: t.DeviceDone, offset: int) -> None:
    state.last_ns = record.at_ns
    opened, device = _both(state, record)
    if opened is None or device is None:
        return
    opened.done_ns, opened.seconds, opened.costs.held = record.at_ns, record.seconds, round(record.held_s * 1e9)
    device.actual_s[state.open[record.round].row] = record.seconds / state.dilation
    if _set_activity(state, record, "done"):
        device.took_s = record.seconds / state.dilation
    state.stale.add(record.round)


def _out(state: RunState, record: t.DeviceOut, offset: int) -> None:
    text = f"left out of round {record.round + 1} ({record.how}): {record.why}"
    _event(state, record.at_ns, "out", record.device, text)
    opened, device = _both(state, record)
    if opened is not None and device is not None:
        _set_activity(state, record, "left out")
        row = state.rows[state.open[record.round].row]
        row.left_out, row.rev = row.left_out + 1, state.rev


def _round_finished(state: RunState, record: t.RoundFinished, offset: int) -> None:
    state.last_ns = record.at_ns
    opened = state.open.get(record.round)
    if opened is None:
        return
    row = state.rows[opened.row]
    row.seconds, row.merged, row.rev = record.seconds / state.dilation, len(record.merged), state.rev
    state.elapsed_s = max(state.elapsed_s, row.axis_s + row.seconds)
    opened.finished = True
    state.stale.add(record.round)
    if len(state.open) > PATIENCE:
        settle(state)
        if len(state.open) > PATIENCE:
            close(state, min(state.open))


def _evaluated(state: RunState, record: t.Evaluated, offset: int) -> None:
    state.last_ns = record.at_ns
    row = next((row for row in reversed(state.rows[-PATIENCE:]) if row.number == record.round), None)
    if row is not None:
        loss = record.loss
        row.accuracy, row.loss, row.rev = record.accuracy, loss if math.isfinite(loss) else None, state.rev


def _opened(state: RunState, record: Any) -> OpenDevice | None:
    """The device of a record in the record's round, where that is open."""
    opened = state.open.get(record.round)
    return opened.devices.get(record.device) if opened is not None else None


def _both(state: RunState, record: Any) -> tuple[OpenDevice | None, DeviceState | None]:
    """The same, and the device itself."""
    return _opened(state, record), state.devices.get(record.device)


def _set_activity(state: RunState, record: Any, activity: str) -> bool:
    """What a device does now; a record of a round before the current one says nothing of that."""
    now = state.lanes or record.round == state.rows[-1].number
    if now:
        state.devices[record.device].activity = activity
    return now


# ---- events ----


def _event(state: RunState, at_ns: int, kind: str, device: str, text: str) -> RunEvent:
    row = state.current
    number = 0 if row is None else row.number
    if row is not None and row.seconds is not None and kind == "profile":
        number += 1  # put on between two rounds, for the one to come
    event = RunEvent(state.axis(at_ns), number, kind, device, text)
    state.events.append(event)
    return event


STEPS: dict[type, Callable[[RunState, Any, int], None]] = {
    t.RunStarted: _run_started,
    t.RunFinished: _run_finished,
    t.Calibrated: _calibrated,
    t.DeviceJoined: _joined,
    t.DeviceLeft: _left,
    t.Fault: _fault,
    t.LimitsSet: _limits,
    t.ClockOffset: _clock,
    t.DevicePhases: _phases,
    t.RoundStarted: _round_started,
    t.OrchestratorPhase: _own_phase,
    t.TaskSent: _task_sent,
    t.TaskDelivered: _task_delivered,
    t.UploadReceived: _upload,
    t.ReplyDelivered: _reply,
    t.UpdateReceived: _update,
    t.DeviceDone: _done,
    t.DeviceOut: _out,
    t.RoundFinished: _round_finished,
    t.Evaluated: _evaluated,
}
"""Records that are not here (server steps, costs of cuts) matter only to the Gantt of one round."""
