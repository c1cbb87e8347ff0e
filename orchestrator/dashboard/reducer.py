"""Records -> state, one record at a time, in any number of steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from edgebed.wire.messages import Phase
from orchestrator.dashboard.state import Account, Device, Mark, Open, Row, SessionState, State
from orchestrator.records import types as t
from orchestrator.records.run_index import Clock
from orchestrator.records.stragglers import CAUSES, standing_out

MEMORY_S = 10.0
"""CPU and throttling are averages over about so many seconds (not divided) that a device reported."""

PATIENCE = 64
"""A round is settled after so many others, whatever phases of it are missing."""

OWN_WORK = ("decode", "compute", "encode")


def fold(state: State, lines: Iterable[tuple[int, t.Record]]) -> None:
    """Take over records with their offsets in the file, in the order of the file."""
    state.rev += 1
    for offset, record in lines:
        step = STEPS.get(type(record))
        if step is not None and (state.sessions or isinstance(record, t.RunStarted)):
            step(state, record, offset)
    _settle(state)


# ---- the run ----


def _run_started(state: State, record: t.RunStarted, offset: int) -> None:
    again = bool(state.sessions)
    state.sessions.append(SessionState(record))
    state.last_ns, state.open, state.tasks, state.stale, state.calibration = record.at_ns, {}, {}, set(), []
    _take_back(state, record.resumed_from)
    for info in record.devices:
        _device(state, info)
    if again:
        _mark(state, record.at_ns, "resumed", "", f"taken up again from round {record.resumed_from + 1}")


def _take_back(state: State, first: int) -> None:
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


def _device(state: State, info: t.DeviceInfo) -> None:
    limits = (info.cpus, float(info.uplink_bit_s), float(info.downlink_bit_s), info.memory_mib, info.samples)
    old = state.devices.get(info.name)
    new = Device(info.name, info.profile, *limits)
    if old is None:
        new.cuts, new.predicted_s, new.actual_s = (
            [None] * len(state.rows),
            [None] * len(state.rows),
            [None] * len(state.rows),
        )
        state.devices[info.name] = new
    else:
        old.profile, old.cpus, old.uplink_bit_s, old.downlink_bit_s, old.memory_mib, old.samples = info.profile, *limits


def _run_finished(state: State, record: t.RunFinished, offset: int) -> None:
    state.session.finished = record.why
    _mark(state, record.at_ns, "ended", "", record.why)


def _calibrated(state: State, record: t.Calibrated, offset: int) -> None:
    state.calibration.append(record)


# ---- devices ----


def _joined(state: State, record: t.DeviceJoined, offset: int) -> None:
    state.session.presence.setdefault(record.device, []).append((record.at_ns, record.incarnation))
    if record.again and record.at_ns >= state.session.started.at_ns:
        _mark(state, record.at_ns, "joined", record.device, "came back")


def _left(state: State, record: t.DeviceLeft, offset: int) -> None:
    state.session.presence.setdefault(record.device, []).append((record.at_ns, ""))
    if record.at_ns >= state.session.started.at_ns:
        _mark(state, record.at_ns, "left", record.device, record.why)


def _fault(state: State, record: t.Fault, offset: int) -> None:
    _mark(state, record.at_ns, "fault", record.device, record.what)


def _limits(state: State, record: t.LimitsSet, offset: int) -> None:
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
    up, down = device.uplink_bit_s / 1e6, device.downlink_bit_s / 1e6
    text = f"profile {old} → {record.profile}: {device.cpus:.3g} CPU, {up:.3g} Mbit/s up, {down:.3g} Mbit/s down"
    mark = _mark(state, record.at_ns, "profile", record.device, text)
    device.reprofiled = mark.round


def _clock(state: State, record: t.ClockOffset, offset: int) -> None:
    session = state.session
    clock = session.clocks.setdefault(record.device, {}).setdefault(session.incarnation(record.device), Clock())
    clock.add(record.at_ns, record.offset_ns, record.uncertainty_ns)


def _phases(state: State, record: t.DevicePhases, offset: int) -> None:
    device = state.devices.get(record.device)
    if device is None or not record.phases:
        return
    state.last_ns = record.at_ns
    clocks = state.session.clocks.get(record.device, {})
    clock = clocks.get(record.incarnation)
    span = cpu = work = stopped = 0
    task, account, number = "", None, -1
    for name, of, start, end, used, throttled, _ in map(_fields, record.phases):
        span, cpu = span + end - start, cpu + used
        device.phase_ns[name] = device.phase_ns.get(name, 0) + end - start
        if name in OWN_WORK:
            work, stopped = work + end - start, stopped + throttled
        if of != task:
            task, (number, account) = of, _account_of(state, of)
        if account is not None:
            _count(account, name, end - start, clock.to_orchestrator(end) if clock and name in ENDS else 0)
            if name == "upload_tail":
                state.stale.add(number)
    device.phase = record.phases[-1].name
    device.stopped_ns += stopped
    if span and device.cpus:
        quota = device.cpus / state.dilation
        device.cpu_share = _average(device.cpu_share, cpu / span / quota, span / 1e9)
    if work:
        device.throttled_share = _average(device.throttled_share, min(1.0, stopped / work), work / 1e9)


def _fields(p: Phase) -> tuple[str, str, int, int, int, int, int]:
    return p.name, p.task, p.start_ns, p.end_ns, p.cpu_ns, p.throttled_ns, p.throttled


ENDS = ("download", "upload_tail")


def _count(account: Account, name: str, length: int, end_ns: int) -> None:
    if name in OWN_WORK:
        account.cpu += length
    elif name == "blocked":
        account.uplink += length
    elif name == "upload_tail":
        account.uplink, account.tail_end_ns = account.uplink + length, end_ns
    elif name == "download":
        account.download_end_ns = end_ns
    elif name == "reply_wait":
        account.reply_wait += length


def _average(old: float | None, new: float, seconds: float) -> float:
    keep = 0.0 if old is None else math.exp(-seconds / MEMORY_S)
    return (old or 0.0) * keep + new * (1 - keep)


def _account_of(state: State, task: str) -> tuple[int, Account | None]:
    number, device = state.tasks.get(task, (-1, ""))
    opened = state.open.get(number)
    return number, opened.devices.get(device) if opened is not None else None


# ---- rounds ----


def _round_started(state: State, record: t.RoundStarted, offset: int) -> None:
    state.last_ns = record.at_ns
    session = state.session
    if not session.begin_ns:
        session.begin_ns, session.before_s = record.at_ns, state.elapsed_s
    session.lanes = session.lanes or bool(record.lane)
    start_s = _wall(state, record.at_ns) if session.lanes else state.elapsed_s
    row = Row(record.round, offset, len(state.sessions) - 1, record.at_ns, start_s, len(record.devices))
    row.rev = state.rev
    state.open[record.round] = Open(len(state.rows), devices={name: Account() for name in record.devices})
    state.rows.append(row)
    for name, device in state.devices.items():
        assignment, predicted = record.assignments.get(name), record.predicted_s.get(name)
        device.cuts.append(assignment.stages if assignment is not None else None)
        device.predicted_s.append(None if predicted is None else predicted / state.dilation)
        device.actual_s.append(None)


def _own_phase(state: State, record: t.OrchestratorPhase, offset: int) -> None:
    state.last_ns = record.end_ns
    if record.name == "plan" and record.round in state.open:
        state.open[record.round].plan_end_ns = record.end_ns


def _task_sent(state: State, record: t.TaskSent, offset: int) -> None:
    state.last_ns = record.at_ns
    state.tasks[record.task] = (record.round, record.device)
    if (account := _account(state, record)) is not None:
        account.sent_ns = record.at_ns


def _task_delivered(state: State, record: t.TaskDelivered, offset: int) -> None:
    state.last_ns = record.at_ns
    _add_bytes(state, record.device, 0, record.bytes)
    account, device = _account(state, record), state.devices.get(record.device)
    if account is None or device is None:
        return
    account.moved = True
    if record.at_ns > account.sent_ns > 0 and device.downlink_bit_s:
        rate = record.bytes * 8e9 / (record.at_ns - account.sent_ns) * state.dilation
        device.downlink_share = rate / device.downlink_bit_s


def _upload(state: State, record: t.UploadReceived, offset: int) -> None:
    state.last_ns = record.at_ns
    _add_bytes(state, record.device, record.bytes, 0)
    if (account := _account(state, record)) is not None:
        account.replies_up += record.at_ns - record.first_ns


def _reply(state: State, record: t.ReplyDelivered, offset: int) -> None:
    _add_bytes(state, record.device, 0, record.bytes)
    if (account := _account(state, record)) is not None:
        account.replies_down += record.at_ns - record.first_ns


def _update(state: State, record: t.UpdateReceived, offset: int) -> None:
    state.last_ns = record.at_ns
    _add_bytes(state, record.device, record.bytes, 0)
    device, report = state.devices.get(record.device), record.report
    if device is None:
        return
    sent, took = report.upload_bytes, report.upload_s
    if not sent or not took:
        sent, took = record.bytes, (record.at_ns - record.first_ns) / 1e9
    if took > 0 and device.uplink_bit_s:
        device.uplink_share = sent / took * 8 * state.dilation / device.uplink_bit_s
    device.memory_used_mib = report.memory_mib or device.memory_used_mib


def _add_bytes(state: State, name: str, up: int, down: int) -> None:
    state.bytes_up, state.bytes_down = state.bytes_up + up, state.bytes_down + down
    device = state.devices.get(name)
    if device is not None:
        device.bytes_up, device.bytes_down = device.bytes_up + up, device.bytes_down + down


def _done(state: State, record: t.DeviceDone, offset: int) -> None:
    state.last_ns = record.at_ns
    account, device = _account(state, record), state.devices.get(record.device)
    if account is None or device is None:
        return
    account.done_ns, account.seconds, account.held_ns = record.at_ns, record.seconds, round(record.held_s * 1e9)
    device.actual_s[state.open[record.round].row] = record.seconds / state.dilation
    state.stale.add(record.round)


def _out(state: State, record: t.DeviceOut, offset: int) -> None:
    _mark(
        state, record.at_ns, "out", record.device, f"left out of round {record.round + 1} ({record.how}): {record.why}"
    )
    if (account := _account(state, record)) is not None:
        account.out = record.how
        row = state.rows[state.open[record.round].row]
        row.left_out, row.rev = row.left_out + 1, state.rev


def _round_finished(state: State, record: t.RoundFinished, offset: int) -> None:
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
        _settle(state)
        if len(state.open) > PATIENCE:
            _close(state, min(state.open))


def _evaluated(state: State, record: t.Evaluated, offset: int) -> None:
    state.last_ns = record.at_ns
    row = next((row for row in reversed(state.rows[-PATIENCE:]) if row.number == record.round), None)
    if row is not None:
        loss = record.loss
        row.accuracy, row.loss, row.rev = record.accuracy, loss if math.isfinite(loss) else None, state.rev


def _account(state: State, record: Any) -> Account | None:
    opened = state.open.get(record.round)
    return opened.devices.get(record.device) if opened is not None else None


# ---- stragglers ----


def _settle(state: State) -> None:
    """Work out the stragglers of rounds of which something new is known; close those of which all is."""
    for number in sorted(state.stale):
        opened = state.open.get(number)
        if opened is None:
            continue
        done = {name: account for name, account in opened.devices.items() if account.seconds is not None}
        complete = all(account.tail_end_ns for account in done.values())
        if opened.finished:
            _straggler(state, opened, done, complete)
            if complete:
                _close(state, number)
    state.stale.clear()


def _straggler(state: State, opened: Open, done: dict[str, Account], complete: bool) -> None:
    row = state.rows[opened.row]
    row.rev = state.rev
    if len(done) < 2 or state.session.started.method == "serve":
        return
    seconds = {name: account.seconds or 0.0 for name, account in done.items()}
    slowest = max(seconds, key=lambda name: seconds[name])
    row.straggler, row.gap_s = slowest, (seconds[slowest] - median(seconds.values())) / state.dilation
    if not done[slowest].tail_end_ns:
        return  # its phases are still to come: why is not known yet
    costs = {name: causes(account, opened.plan_end_ns) for name, account in done.items() if account.tail_end_ns}
    middle = [median(column) for column in zip(*costs.values(), strict=True)]
    row.behind_s = tuple((a - b) / 1e9 / state.dilation for a, b in zip(costs[slowest], middle, strict=True))
    row.why = standing_out(dict(zip(CAUSES, row.behind_s, strict=True)), row.gap_s)


def causes(account: Account, plan_end_ns: int) -> tuple[int, int, int, int]:
    """Nanoseconds by cause, as `orchestrator.records.stragglers.causes` has them from the whole timeline."""
    down = max(0, account.download_end_ns - plan_end_ns) if account.download_end_ns else 0
    server = max(0, account.done_ns - account.tail_end_ns) if account.tail_end_ns else 0
    up_wait = min(account.reply_wait, account.replies_up)
    down_wait = min(account.reply_wait - up_wait, account.replies_down)
    rest = account.reply_wait - up_wait - down_wait
    held = min(account.uplink, account.held_ns)  # the server half was behind and held the link back
    return account.cpu, account.uplink - held + up_wait, down + down_wait, server + held + rest


def _close(state: State, number: int) -> None:
    opened = state.open.pop(number)
    names = set(opened.devices)
    for task in [task for task, (of, name) in state.tasks.items() if of == number and name in names]:
        del state.tasks[task]


# ---- the time axis ----


def axis(state: State, at_ns: int) -> float:
    """Where a moment of this life is on the time axis: what happens between two rounds stands where the first ends."""
    row = state.current
    if row is None or row.session != len(state.sessions) - 1:
        return state.elapsed_s
    if state.session.lanes:
        return _wall(state, at_ns)
    if row.seconds is not None:
        return row.axis_s + min(row.seconds, max(0.0, (at_ns - row.start_ns) / 1e9 / state.dilation))
    return row.axis_s + max(0.0, (at_ns - row.start_ns) / 1e9 / state.dilation)


def _wall(state: State, at_ns: int) -> float:
    session = state.session
    return session.before_s + max(0.0, (at_ns - session.begin_ns) / 1e9 / state.dilation)


def _mark(state: State, at_ns: int, kind: str, device: str, text: str) -> Mark:
    row = state.current
    number = 0 if row is None else row.number
    if row is not None and row.seconds is not None and kind == "profile":
        number += 1  # put on between two rounds, for the one to come
    mark = Mark(axis(state, at_ns), number, kind, device, text)
    state.marks.append(mark)
    return mark


STEPS: dict[type, Callable[[State, Any, int], None]] = {
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
