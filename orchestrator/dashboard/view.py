"""State -> what the page is sent: a snapshot, then what has changed since. Pure."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records.critical.bound_by import in_words, more_words, over_rounds
from orchestrator.records.live.run_state import DeviceState, RoundRow, RunEvent, RunState
from orchestrator.records.summary import percentile
from orchestrator.records.timeline.board import BOARD_COLUMNS, SENSORS, board_row
from orchestrator.records.words.palette import style
from orchestrator.records.words.vocabulary import server_note

UNSETTLED = 128
"""Older rows than so many do not change any more."""


class Cursor(msgspec.Struct):
    """How much of a state a page has."""

    epoch: int = -1
    rev: int = -1
    rows: int = 0
    events: int = 0
    sessions: int = 0
    calibration: int = 0


def changes(state: RunState, cursor: Cursor) -> dict[str, Any] | None:
    """What a page lacks; None where nothing. `cursor` moves on. Rows and events come with the index of the first."""
    if (state.epoch, state.rev) == (cursor.epoch, cursor.rev) or not state.sessions:
        return None
    whole = state.epoch != cursor.epoch or len(state.sessions) != cursor.sessions
    if whole:
        cursor.rows = cursor.events = 0
        cursor.rev = -1
    first = _first_changed(state, cursor)
    result: dict[str, Any] = {
        "whole": whole,
        "head": head(state),
        "devices": [_device(state, device) for device in state.devices.values()],
        "boards": _boards(state),
        "rows_from": first,
        "rows": [_row(row) for row in state.rows[first:]],
        "events_from": cursor.events,
        "events": [_event(event) for event in state.events[cursor.events :]],
    }
    if whole or len(state.calibration) != cursor.calibration:
        result["calibration"] = [msgspec.structs.asdict(row) for row in state.calibration]
    cursor.epoch, cursor.rev, cursor.sessions = state.epoch, state.rev, len(state.sessions)
    cursor.rows, cursor.events, cursor.calibration = len(state.rows), len(state.events), len(state.calibration)
    return result


def _first_changed(state: RunState, cursor: Cursor) -> int:
    """Index of the first row to send: those not sent yet, and those that changed after they were."""
    if cursor.rev < 0:
        return 0
    start = max(0, len(state.rows) - UNSETTLED)
    changed = (i for i in range(start, len(state.rows)) if state.rows[i].rev > cursor.rev)
    return min(next(changed, len(state.rows)), cursor.rows)


def head(state: RunState) -> dict[str, Any]:
    """What must always be in sight."""
    started = state.sessions[-1].started
    judged = [row for row in state.calibration if row.judged]
    kinds = [session.started.enforcement for session in state.sessions]
    return {
        "run": started.run,
        "experiment": started.experiment,
        "method": started.method,
        "style": msgspec.structs.asdict(style(started.method)),
        "serving": started.method == "serve",
        "seed": started.seed,
        "backend": started.backend,
        "enforcement": next((weak for weak in ("simulated", "software") if weak in kinds), kinds[-1]),
        "unlimited": [device.name for device in started.devices if device.unlimited],
        "limited_boards": [device.name for device in started.devices if device.board and not device.unlimited],
        "grain": started.grain,
        "dilation": max(session.started.dilation for session in state.sessions),
        "server_note": server_note(max(each.started.dilation for each in state.sessions), started.server_cpus),
        "calibrated": all(session.started.calibrated for session in state.sessions),
        "checks": len(judged),
        "checks_failed": sum(not row.passed for row in judged),
        "started": state.sessions[0].started.wall,
        "resumed": len(state.sessions) - 1,
        "ended": state.ended,
        "target": started.target_accuracy,
        "elapsed_s": state.elapsed_s,
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "figures": _figures(state),
    }


def _figures(state: RunState) -> dict[str, float | None]:
    """What the page shows on top, computed as for `summary.json`."""
    done = state.finished
    gaps = [row.gap_s for row in done if row.gap_s is not None]
    known = [row for row in done if row.accuracy is not None]
    target = state.session.started.target_accuracy
    return {
        "rounds": len(done),
        "final_accuracy": known[-1].accuracy if known else None,
        "best_accuracy": max((row.accuracy or 0.0 for row in known), default=None),
        "time_to_target_s": next((row.end_s for row in known if (row.accuracy or 0.0) >= target), None),
        "straggler_gap_s": median(gaps) if gaps else None,
    }


def _row(row: RoundRow) -> list[Any]:
    """number, start on the axis, seconds, accuracy, loss, drawn, merged, left out, straggler, gap, why, behind,
    disturbed by, what bounded it in words, its what-ifs and waits in words."""
    behind = [_short(value) for value in row.behind_s]
    numbers = [_short(value) for value in (row.axis_s, row.seconds, row.accuracy, row.loss)]
    return [
        row.number + 1,
        *numbers,
        row.drawn,
        row.merged,
        row.left_out,
        row.straggler,
        _short(row.gap_s),
        row.why,
        behind,
        row.disturbed,
        "" if row.bounds is None else in_words(row.bounds),
        "" if row.bounds is None else more_words(row.bounds),
    ]


def _event(event: RunEvent) -> list[Any]:
    """Place on the axis, round, kind, device, text."""
    return [_short(event.axis_s), event.round + 1, event.kind, event.device, event.text]


def _device(state: RunState, device: DeviceState) -> dict[str, Any]:
    last = _last(device.actual_s)
    return {
        "name": device.name,
        "state": state.activity(device.name),
        "phase": device.phase,
        "profile": device.profile,
        "cpus": device.cpus,
        "uplink_bit_s": device.uplink_bit_s,
        "downlink_bit_s": device.downlink_bit_s,
        "memory_mib": device.memory_mib,
        "unlimited": not device.uplink_bit_s,
        "held": device.held,
        "reprofiled": None if device.reprofiled is None else device.reprofiled + 1,
        "cpu_share": _short(device.cpu_share),
        "throttled_share": _short(device.throttled_share),
        "batches_in_quota": _short(device.in_quota),
        "uplink_share": _short(device.uplink_share),
        "downlink_share": _short(device.downlink_share),
        "memory_used_mib": _short(device.memory_used_mib),
        "samples": device.samples,
        "cut": _last(device.cuts),
        "actual_s": _short(last),
        "predicted_s": _short(_last(device.predicted_s)),
        "bytes_up": device.bytes_up,
        "bytes_down": device.bytes_down,
    }


def _boards(state: RunState) -> dict[str, Any] | None:
    """A table of the real boards; None where there are none."""
    devices = {name: state.session.device(name) for name in state.devices}
    rows = [
        board_row(
            name, facts.host, facts.readings[-1][1] if facts.readings else None, _last(state.devices[name].joules)
        )
        for name, facts in devices.items()
        if SENSORS in facts.host
    ]
    return {"columns": BOARD_COLUMNS, "rows": rows} if rows else None


def history(state: RunState, name: str) -> dict[str, Any] | None:
    """All rounds of one device."""
    device = state.devices.get(name)
    if device is None:
        return None
    return {
        "name": name,
        "rounds": [row.number + 1 for row in state.rows],
        "cuts": device.cuts,
        "predicted_s": [_short(value) for value in device.predicted_s],
        "actual_s": [_short(value) for value in device.actual_s],
        "events": [_event(event) for event in state.events if event.device == name],
    }


def summary(state: RunState) -> dict[str, Any]:
    """The figures of a run that a comparison shows, as far as they are known from the state; see docs/records.md."""
    seconds = sorted(row.seconds for row in state.rows if row.seconds is not None)
    top, target = head(state), state.session.started.target_accuracy
    figures = top.pop("figures")
    found: dict[str, Any] = (
        top
        | figures
        | {
            "ended": top["ended"] or "not yet, or killed",
            "target_accuracy": target,
            "total_s": state.elapsed_s,
            "round_s_median": median(seconds) if seconds else None,
            "round_s_p95": percentile(seconds, 0.95),
            "idle_share_mean": None,
            "timeline_residual_max": None,
            "batches_in_quota_share": _in_quota(state),
            "disturbed_rounds": _disturbed(state),
            "disturbed": [row.disturbed for row in state.rows if row.seconds is not None],
            "bytes_up_total": state.bytes_up,
            "bytes_down_total": state.bytes_down,
        }
    )
    rounds = ((row.bounds, row.seconds) for row in state.rows)
    return found | over_rounds((bounds, seconds) for bounds, seconds in rounds if bounds is not None and seconds)


def _in_quota(state: RunState) -> float | None:
    """Share of all batches within one period's quota; None: none was counted."""
    pieces = sum(device.pieces for device in state.devices.values())
    return sum(device.pieces_in_quota for device in state.devices.values()) / pieces if pieces else None


def _disturbed(state: RunState) -> int | None:
    known = [row.disturbed for row in state.rows if row.disturbed is not None]
    return sum(bool(causes) for causes in known) if known else None


def measures(state: RunState) -> dict[str, Any]:
    """`summary` with the columns and figures of devices that `orchestrator.records.shown.metrics` shows. What only the
    whole timeline tells (idle shares, waits by name) is left out: it is known when the run is over."""
    done = state.finished
    devices = state.devices
    return summary(state) | {
        "number": [row.number + 1 for row in done],
        "round_s": [row.seconds for row in done],
        "elapsed_s": [row.end_s for row in done],
        "accuracy": [row.accuracy for row in done],
        "bytes": [row.bytes for row in done],
        "straggler_gaps_s": [row.gap_s for row in done],
        "loss": [row.loss for row in done],
        "straggler": [row.straggler or None for row in done],
        "straggler_why": [row.why for row in done],
        "events": sum(event.kind in ("fault", "left", "joined", "out") for event in state.events),
        "profiles": {name: device.profile for name, device in devices.items()},
        "bytes_up": {name: device.bytes_up for name, device in devices.items()},
        "bytes_down": {name: device.bytes_down for name, device in devices.items()},
        "cut": {name: device.cuts for name, device in devices.items()},
        "phase_s": {name: _spent(device, state.dilation) for name, device in devices.items()},
        "throttled_share": {name: _stopped(device) for name, device in devices.items()},
        "idle_share": {},
        "tasks_in_quota": {},
        "batches_in_quota": {name: device.in_quota for name, device in devices.items()},
    }


def _spent(device: DeviceState, dilation: float) -> dict[str, float]:
    return {name: ns / 1e9 / dilation for name, ns in sorted(device.phase_ns.items()) if name != "waiting"}


def _stopped(device: DeviceState) -> float | None:
    work = sum(device.phase_ns.get(name, 0) for name in OWN_WORK)
    return min(1.0, device.stopped_ns / work) if device.stopped_ns and work else None


def _last(values: list[Any]) -> Any:
    """The last known of the last 50."""
    return next((value for value in reversed(values[-50:]) if value is not None), None)


def _short(value: float | None) -> float | None:
    """Six digits are enough to draw with."""
    return None if value is None else float(f"{value:.6g}")
