"""The whole run over time: what every device did when, how much of its limits it used, what the host's processes used.

One structure for the live page, from the state of a run that goes on (a device works or waits), and for the report,
from the timelines (every name of its time). Pages draw it with `dashboard/static/over_time.js`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec

from edgebed.errors import counted
from orchestrator.records.live.run_state import RunState
from orchestrator.records.run_index import Session
from orchestrator.records.shown.round_view import joined
from orchestrator.records.timeline.disturbance import usual_loop_ms
from orchestrator.records.timeline.timeline import RoundTimeline, Segment
from orchestrator.records.timeline.utilisation import DeviceLoad
from orchestrator.records.words.drawing import legend, phases, six_digits, stride
from orchestrator.records.words.formatting import seconds
from orchestrator.records.words.vocabulary import BOARD_MARKS, EVENTS, disturbances

FINEST, MOST_BARS = 600, 24_000
"""A stretch shorter than this part of the run is drawn with its neighbours; of all devices together at most so many."""

MOST_CELLS = 300
"""Cells of one device; of more rounds several are one cell, with their mean."""

QUANTITIES = {"cpu": "CPU", "uplink": "uplink", "downlink": "downlink", "memory": "memory"}
"""Fields of DeviceLoad, and what people read."""


class RoundOnAxis(msgspec.Struct, frozen=True):
    """A finished round on the time axis, in seconds divided by the dilation."""

    number: int  # from 1
    start_s: float
    end_s: float
    loads: Mapping[str, DeviceLoad | None]
    cores: Mapping[str, float]  # CPU seconds per second: the whole host, and processes of the run
    disturbed: Sequence[str] = ()


def of_state(state: RunState) -> dict[str, Any]:
    """Of a run that goes on: the axis is that of the page's curves."""
    rounds = [
        _round(state, index, row.axis_s, row.end_s, row.disturbed)
        for index, row in enumerate(state.rows)
        if row.seconds is not None
    ]
    rows = {name: list(_worked(state, name)) for name in state.devices}
    slowed = {name: device.slowed for name, device in state.devices.items()}
    return _drawn(rounds, rows, slowed, int(state.elapsed_s * 1e9))


def _round(state: RunState, index: int, start_s: float, end_s: float, disturbed: Sequence[str] | None) -> RoundOnAxis:
    row = state.rows[index]
    loads = {name: device.loads[index] for name, device in state.devices.items()}
    return RoundOnAxis(row.number + 1, start_s, end_s, loads, row.host.cores, disturbed or ())


def _worked(state: RunState, name: str) -> Iterable[Segment]:
    """What the state knows of a device in every finished round: until when it worked, and whether that counted."""
    device = state.devices[name]
    for index, row in enumerate(state.rows):
        cut, took = device.cuts[index], device.actual_s[index]
        start, end = int(row.axis_s * 1e9), int(row.end_s * 1e9)
        if row.seconds is None or (cut is None and state.lanes):
            continue
        where = f"round {row.number + 1}"
        if cut is None:
            yield Segment("idle", start, end, where)
        elif took is None:
            yield Segment("left_out", start, end, where)
        else:
            done = min(end, start + int(took * 1e9))
            yield Segment("working", start, done, f"{where}, cut {cut}")
            if done < end:
                yield Segment("wait_for_others", done, end, where)


class OverTime:
    """Takes the timelines of a run that is over, as `settling.explained` gives them. The axis is the wall clock since
    the first round, evaluations included; a session begins where the one before it ended."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._begin: dict[int, int] = {}
        before = 0
        for session in state.sessions:
            ends = [facts.end_ns for facts in session.rounds.values()]
            self._begin[id(session)] = int(session.begin_ns - before * session.started.dilation)
            before += int((max(ends) - session.begin_ns) / session.started.dilation) if ends else 0
        self._sessions = {id(facts): session for session, facts in state.run.rounds()}
        self._total_ns = before
        self._segments: dict[str, list[Segment]] = {
            info.name: [] for session in state.sessions for info in session.started.devices
        }
        self._finest_ns = _finest(before, len(self._segments))

    def add(self, timeline: RoundTimeline) -> None:
        session = self._sessions[id(timeline.facts)]
        for name, device in timeline.devices.items():
            own = [  # without details, which would keep neighbours apart
                Segment(each.name, self._at(each.start_ns, session), self._at(each.end_ns, session))
                for each in device.segments
            ]
            self._segments.setdefault(name, []).extend(joined(own, self._finest_ns))

    def _at(self, at_ns: int, session: Session) -> int:
        return int((at_ns - self._begin[id(session)]) / session.started.dilation)

    def result(self) -> dict[str, Any]:
        """All rounds must have passed."""
        state, rounds = self._state, []
        usual_ms = usual_loop_ms(row.host for row in state.rows)
        for index, row in enumerate(state.rows):
            if row.seconds is not None:
                start_s = self._at(row.start_ns, state.sessions[row.session]) / 1e9
                disturbed = row.host.compared(usual_ms).causes
                rounds.append(_round(state, index, start_s, start_s + row.seconds, disturbed))
        return _drawn(rounds, self._segments, self._slowed(), self._total_ns)

    def _slowed(self) -> dict[str, list[tuple[str, float, float]]]:
        """By board: what slowed it down, from and to on the axis."""
        found: dict[str, list[tuple[str, float, float]]] = {}
        for session in self._state.sessions:
            begin_ns, scale = self._begin[id(session)], 1e9 * session.started.dilation
            for name, device in session.devices.items():
                for mark, *ends in ((each.mark, each.begin_ns, each.end_ns) for each in device.slowed):
                    begin_s, end_s = (max(0.0, (at_ns - begin_ns) / scale) for at_ns in ends)
                    found.setdefault(name, []).append((mark, begin_s, end_s))
        return found


def _finest(total_ns: int, devices: int) -> int:
    return total_ns // max(60, min(FINEST, MOST_BARS // max(1, devices)))


def _drawn(
    rounds: Sequence[RoundOnAxis],
    rows: Mapping[str, list[Segment]],
    slowed: Mapping[str, Sequence[tuple[str, float, float]]],
    total_ns: int,
) -> dict[str, Any]:
    finest = _finest(total_ns, len(rows))
    processes = dict.fromkeys(name for one in rounds for name in one.cores)
    return {
        "to": six_digits(total_ns / 1e9),
        "lanes": _lanes({name: joined(segments, finest) for name, segments in rows.items()}, slowed, total_ns / 1e9),
        "loads": {
            label: [{"label": name, "cells": _cells(rounds, name, field)} for name in rows]
            for field, label in QUANTITIES.items()
        },
        "host": {name: _processes(rounds, name) for name in processes},
        "disturbed": [
            {"x": six_digits(one.end_s), "text": f"round {one.number} was disturbed by {disturbances(one.disturbed)}"}
            for one in rounds
            if one.disturbed
        ],
    }


def _lanes(
    rows: Mapping[str, Sequence[Segment]], slowed: Mapping[str, Sequence[tuple[str, float, float]]], total_s: float
) -> dict[str, Any]:
    """A row per device with the names of its time, and marks where a board was slowed down."""
    names = {segment.name for segments in rows.values() for segment in segments}
    boards = [{"name": EVENTS["board"], "cls": "key.m-board"}] if any(slowed.values()) else []
    return {
        "rows": [
            {
                "label": name,
                "pick": name,
                "bars": [_bar(segment) for segment in segments],
                "marks": [_mark(*mark) for mark in slowed.get(name, ())],
            }
            for name, segments in rows.items()
            if total_s
        ],
        "to": six_digits(total_s),
        "timed": True,
        "format": "tick",
        "legend": legend(phases(names)) + boards,
        "summary": f"{counted(len(rows), 'device')} over {seconds(total_s)}.",
        "empty": "no round has ended yet",
        "x": "what, from and to",
    }


def _mark(mark: str, begin_s: float, end_s: float) -> tuple[str, float, float, str]:
    told = f"{BOARD_MARKS[mark]}\n{seconds(end_s - begin_s)}, from {seconds(begin_s)} to {seconds(end_s)}"
    return "m-board", six_digits(begin_s), six_digits(end_s), told


def _bar(segment: Segment) -> tuple[str, float, float, str]:
    return segment.name, six_digits(segment.start_ns / 1e9), six_digits(segment.end_ns / 1e9), segment.detail


def _cells(rounds: Sequence[RoundOnAxis], name: str, field: str) -> list[tuple[float, float, float, str]]:
    """From, to, share, and which rounds."""
    own = [(one, getattr(load, field)) for one in rounds if (load := one.loads.get(name)) is not None]
    known = [(one, share) for one, share in own if share is not None]
    step = stride(len(known), MOST_CELLS)
    parts = [known[at : at + step] for at in range(0, len(known), step)]
    return [_cell(part) for part in parts]


def _cell(part: Sequence[tuple[RoundOnAxis, float]]) -> tuple[float, float, float, str]:
    first, last = part[0][0], part[-1][0]
    which = f"round {first.number}" if first is last else f"rounds {first.number} to {last.number}"
    return six_digits(first.start_s), six_digits(last.end_s), six_digits(fmean(share for _, share in part)), which


def _processes(rounds: Sequence[RoundOnAxis], name: str) -> list[tuple[float, float]]:
    """Ends of rounds and cores in use; of many rounds every n-th."""
    points = [(six_digits(one.end_s), six_digits(one.cores[name])) for one in rounds if name in one.cores]
    return points[:: stride(len(points), MOST_CELLS)]
