"""State -> what the page is sent: a snapshot, then what has changed since. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from orchestrator.records.critical.bound_by import in_words, more_words
from orchestrator.records.critical.stragglers import whole_run
from orchestrator.records.live.run_state import DeviceState, RoundRow, RunEvent, RunState
from orchestrator.records.live.summing import on_axis, progress
from orchestrator.records.older_words import ending_of
from orchestrator.records.shown.calibrated import calibration_row
from orchestrator.records.shown.round_view import median_round, waited_for
from orchestrator.records.timeline.board import BOARD_COLUMNS, SENSORS, board_row
from orchestrator.records.timeline.host_index import index_text
from orchestrator.records.types import SIMULATED
from orchestrator.records.words.drawing import six_digits
from orchestrator.records.words.palette import style

UNSETTLED = 128
"""Older rows than so many do not change any more."""


SHOWN = (
    *("run", "experiment", "method", "seed", "backend", "enforcement", "unlimited", "limited_boards"),
    *("grain", "speed", "dilation", "server_note", "calibrated", "started", "resumed"),
)
"""Fields of `Progress` that are always in sight."""

FIGURES = ("final_accuracy", "best_accuracy", "time_to_target_s", "straggler_gap_s")
"""Its figures on top of the page."""


class Cursor(msgspec.Struct):
    """How much of a state a page has."""

    epoch: int = -1
    rev: int = -1
    rows: int = 0
    events: int = 0
    sessions: int = 0
    calibration: int = 0


def changes(state: RunState, cursor: Cursor, now_ns: int = 0) -> dict[str, Any] | None:
    """What a page lacks; None where nothing. `cursor` moves on. Rows and events come with the index of the first.
    `now_ns`: as in `head`."""
    if (state.epoch, state.rev) == (cursor.epoch, cursor.rev) or not state.sessions:
        return None
    whole = state.epoch != cursor.epoch or len(state.sessions) != cursor.sessions
    if whole:
        cursor.rows = cursor.events = 0
        cursor.rev = -1
    first = _first_changed(state, cursor)
    result: dict[str, Any] = {
        "whole": whole,
        "head": head(state, now_ns),
        "devices": [_device(state, device) for device in state.devices.values()],
        "boards": _boards(state),
        "rows_from": first,
        "rows": [_row(row) for row in state.rows[first:]],
        "events_from": cursor.events,
        "events": [_event(event) for event in state.events[cursor.events :]],
    }
    if whole or len(state.calibration) != cursor.calibration:
        result["calibration"] = [calibration_row(row) for row in state.calibration]
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


def shown(state: RunState) -> int | None:
    """The round that the page shows first: the one in progress; of a run that is over that of median length."""
    if state.sessions and state.ended:
        return median_round((row.seconds, row.number) for row in state.rows if row.seconds is not None)
    return state.current.number if state.current is not None else None


def head(state: RunState, now_ns: int = 0) -> dict[str, Any]:
    """What must always be in sight.

    Args:
        now_ns: the orchestrator's clock, where it is known: for how long devices wait follows from it.
    """
    ends = on_axis(state)
    now = progress(state, ends)
    done = [row for row in state.rows if row.seconds is not None]
    judged = [row for row in state.calibration if row.judged]
    return {
        **{name: getattr(now, name) for name in SHOWN},
        "host_index": now.host_index and f"host: {index_text(now.host_index)}",
        "style": msgspec.structs.asdict(style(now.method)),
        "serving": now.method == "serve",
        "checks": len(judged),
        "checks_failed": sum(not row.passed for row in judged),
        "ended": state.ended,
        "ending": "" if state.session.finished is None else ending_of(state.session.finished),
        "session": _session(state),
        "waiting": _waiting(state, now_ns),
        "story": whole_run([(r.straggler, r.why, r.waited_for, r.waited_s) for r in done], now.profiles),
        "target": now.target_accuracy,
        "elapsed_s": state.elapsed_s,
        "bytes_up": now.bytes_up_total,
        "bytes_down": now.bytes_down_total,
        "figures": {"rounds": len(ends), **{name: getattr(now, name) for name in FIGURES}},
    }


def _session(state: RunState) -> dict[str, Any]:
    """When the session began (wall clock), the rounds before it, and the seconds until its first round began and its
    last one ended."""
    started, begun_ns = state.session.started, state.begun_ns[-1]
    ends = [row.end_ns for row in state.rows[state.first_row :] if row.end_ns]
    first_s, last_s = ((at_ns - started.at_ns) / 1e9 for at_ns in (begun_ns, max(ends, default=begun_ns)))
    seconds = {"first_s": six_digits(first_s), "last_s": six_digits(last_s)} if begun_ns else {}
    return {"began": started.wall, "from": max(0, started.resumed_from), **seconds}


LONGEST_S = 86_400.0
"""A longer wait is none of this clock: the records come from another host, or from before its last start."""


def _waiting(state: RunState, now_ns: int) -> dict[str, Any] | None:
    """Who is waited for, and for how many seconds already (None: not known)."""
    names, since_ns = waited_for(state)
    waited_s = (now_ns - since_ns) / 1e9 / state.dilation
    on_this_clock = 0 <= waited_s < LONGEST_S and state.session.started.enforcement != SIMULATED
    return {"names": names, "s": waited_s if on_this_clock else None} if names else None


def _row(row: RoundRow) -> list[Any]:
    """number, start on the axis, seconds, accuracy, loss, drawn, merged, left out, straggler, gap, why, behind,
    disturbed by, what bounded it in words, its what-ifs and waits in words."""
    behind = [six_digits(value) for value in row.behind_s]
    numbers = [six_digits(value) for value in (row.axis_s, row.seconds, row.accuracy, row.loss)]
    return [
        row.number + 1,
        *numbers,
        row.drawn,
        row.merged,
        sum(row.left_out.values()),
        row.straggler,
        six_digits(row.gap_s),
        row.why,
        behind,
        row.disturbed,
        "" if row.bounds is None else in_words(row.bounds),
        "" if row.bounds is None else more_words(row.bounds),
    ]


def _event(event: RunEvent) -> list[Any]:
    """Place on the axis, round, kind, device, text."""
    return [six_digits(event.axis_s), event.round + 1, event.kind, event.device, event.text]


OF_DEVICE = (
    *("name", "phase", "profile", "cpus", "uplink_bit_s", "downlink_bit_s", "memory_mib", "held", "samples"),
    *("bytes_up", "bytes_down"),
)
ROUNDED = ("cpu_share", "throttled_share", "uplink_share", "downlink_share", "memory_used_mib")
"""Fields of `DeviceState` that a page gets: as they are, and with six digits."""


def _device(state: RunState, device: DeviceState) -> dict[str, Any]:
    return {
        **{name: getattr(device, name) for name in OF_DEVICE},
        **{name: six_digits(getattr(device, name)) for name in ROUNDED},
        "state": state.activity(device.name),
        "unlimited": not device.uplink_bit_s,
        "reprofiled": None if device.reprofiled is None else device.reprofiled + 1,
        "batches_in_quota": six_digits(device.in_quota.piece_share),
        "cut": _last(device.cuts),
        "actual_s": six_digits(_last(device.actual_s)),
        "predicted_s": six_digits(_last(device.predicted_s)),
    }


def _boards(state: RunState) -> dict[str, Any] | None:
    """A table of the real boards; None where there are none."""
    devices = state.session.devices
    joules = {name: _last([each and each.joules for each in state.devices[name].boards[-50:]]) for name in devices}
    rows = [
        board_row(name, facts.host, facts.readings[-1][1] if facts.readings else None, joules[name])
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
        "predicted_s": [six_digits(value) for value in device.predicted_s],
        "actual_s": [six_digits(value) for value in device.actual_s],
        "events": [_event(event) for event in state.events if event.device == name],
    }


def _last(values: list[Any]) -> Any:
    """The last known of the last 50."""
    return next((value for value in reversed(values[-50:]) if value is not None), None)
