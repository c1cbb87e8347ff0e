"""Rows of the report's tables. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from edgebed.device.phases import OWN_WORK
from orchestrator.records import types as t
from orchestrator.records.board_marks import MARKS
from orchestrator.records.critical.bound_by import RoundBounds, waits_text
from orchestrator.records.critical.critical_path import LEAST
from orchestrator.records.critical.stragglers import CAUSES, whole_run
from orchestrator.records.critical.whatif import Saving
from orchestrator.records.run_index import RunFacts, Session
from orchestrator.records.summary import DeviceFigures, RoundFigures, Summary
from orchestrator.records.timeline import events
from orchestrator.records.timeline.board import clock_words
from orchestrator.records.timeline.limits_in_force import changes
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import (
    NONE,
    accuracy,
    known,
    number,
    percent,
    rate,
    seconds,
    share,
    signed_seconds,
    size,
    some,
)
from orchestrator.records.words.vocabulary import EVENTS, UNLIMITED

MOST_ROWS = 2000
"""Rows of a table; the rest is counted, and is in records.jsonl."""


def first(rows: list[Any]) -> dict[str, Any]:
    return {"rows": rows[:MOST_ROWS], "more": max(0, len(rows) - MOST_ROWS)}


def tiles(summary: Summary) -> list[tuple[str, str]]:
    """The most important figures."""
    target, reached = share(summary.target_accuracy), summary.time_to_target_s is not None
    shown: list[tuple[str, Any, Any]] = [
        (f"to {target} accuracy, {'interpolated' if reached else 'not reached'}", summary.time_to_target_s, seconds),
        ("best accuracy", summary.best_accuracy, accuracy),
        *_tested(summary),
        ("rounds", len(summary.rounds), str),
        ("median round", summary.round_s_median, seconds),
        ("95th percentile", summary.round_s_p95, seconds),
        ("straggler gap", summary.straggler_gap_s, seconds),
        ("idle share", summary.idle_share_mean, percent),
        ("rounds disturbed by the host", summary.disturbed_rounds, str),
        ("bytes up", summary.bytes_up_total, size),
        ("bytes down", summary.bytes_down_total, size),
    ]
    return [(label, known(value, show)) for label, value, show in shown]


def _tested(summary: Summary) -> list[tuple[str, Any, Any]]:
    """Where rounds were measured with a validation part: the accuracy of the last weights on the test part."""
    found = summary.test_accuracy
    return [] if found is None else [("on the test part, once", found, accuracy)]


def limits_rows(run: RunFacts) -> dict[str, Any]:
    software = run.sessions[-1].started.enforcement == "software"
    return first([_limits_row(row, software) for row in run.sessions[-1].limits])


def _limits_row(row: t.LimitsSet, software: bool) -> dict[str, Any]:
    """Requested / read back. A limit that the agent holds itself cannot be read back; a real board has none, or limits
    that its kernel holds, also where those of other devices are held by `software`."""
    if row.unlimited:
        return {"cells": [row.device, row.why, row.profile, UNLIMITED, NONE, NONE], "bad": False}
    held = (row.held_cpus, row.held_uplink_bit_s, row.held_downlink_bit_s)
    asked = (row.cpus, row.uplink_bit_s, row.downlink_bit_s)
    self_held = software and held == (None, None, None)
    read = [NONE, NONE, NONE] if self_held else _limits(*held)
    shown = [f"{a} / {h}" for a, h in zip(_limits(*asked), read, strict=True)]
    return {"cells": [row.device, row.why, row.profile, *shown], "bad": None in held and not self_held}


def _limits(cpus: float | None, up: float | None, down: float | None) -> list[str]:
    rates = ["none" if limit is None else rate(limit) for limit in (up, down)]
    return ["none" if cpus is None else number(cpus), *rates]


def device_row(device: t.DeviceInfo, figures: DeviceFigures) -> list[str]:
    return [
        device.name,
        f"{device.profile}, {UNLIMITED}" if device.unlimited else device.profile,
        f"{number(device.cpus)} cores" if device.unlimited else number(device.cpus),
        *(NONE if device.unlimited else rate(limit) for limit in (device.uplink_bit_s, device.downlink_bit_s)),
        f"{device.memory_mib} MiB",
        f"{device.samples}",
        " ".join(str(count) for count in device.labels),
        known(figures.idle_share, percent),
        size(figures.bytes_up),
        size(figures.bytes_down),
        *_update_norms(figures),
    ]


def _update_norms(figures: DeviceFigures) -> list[str]:
    """The median and the largest: a device that poisons the model stands out."""
    known_ones = [norm for norm in figures.update_norm if norm is not None]
    return [number(statistics.median(known_ones)), number(max(known_ones))] if known_ones else [NONE, NONE]


def throttled_rows(summary: Summary) -> list[list[str]]:
    """How long each device worked, for what part of that its quota stopped it, and what share of its tasks and batches
    fitted into one period's quota; nothing if no device reported any of it."""
    devices = summary.devices
    if all(each.throttled_share is None and each.batches_in_quota is None for each in devices.values()):
        return []
    return [[name, *_throttled(each)] for name, each in devices.items()]


def _throttled(device: DeviceFigures) -> list[str]:
    worked = sum(device.phase_s.get(own, 0.0) for own in OWN_WORK)
    shares = device.throttled_share, device.tasks_in_quota, device.batches_in_quota
    return [seconds(worked), *(known(each, percent) for each in shares)]


def event_rows(run: RunFacts) -> list[list[str]]:
    """Unplanned events in the order of time; seconds since the orchestrator started, divided by the dilation."""
    return [
        [seconds(_since(session, event.at_ns)), event.device or "orchestrator", EVENTS[event.kind], event.text]
        for session in run.sessions
        for event in events.unplanned(session.events)
    ]


def _since(session: Session, at_ns: int) -> float:
    """Seconds since the orchestrator started, divided by the dilation."""
    return (at_ns - session.started.at_ns) / 1e9 / session.started.dilation


def change_rows(run: RunFacts) -> list[list[str]]:
    """Every change of a profile: when, on which device, from what to what, from which round on."""
    return [
        [
            seconds(_since(session, change.at_ns)),
            known(change.round, lambda index: str(index + 1)),
            change.device,
            change.before,
            change.after.profile,
            events.limits(change.after, session.started.dilation),
        ]
        for session in run.sessions
        for change in changes(session)
    ]


def round_rows(summary: Summary) -> list[list[str]]:
    """One row per round: who was the straggler and why."""
    return [_round_row(row, index, summary) for index, row in enumerate(summary.rounds)]


ROUND_COLUMNS = (
    "round",
    "length",
    "bound by",
    "straggler",
    "behind",
    "mostly",
    "cpu",
    "uplink",
    "downlink",
    "server",
    "waited",
    "disturbed by",
)
"""Heads of the rows of rounds."""

MOST_BOUNDS = 2
"""Bounds of a round that its row names."""


def _round_row(row: RoundFigures, index: int, summary: Summary) -> list[str]:
    behind, slow = row.straggler_behind_s or {}, row.straggler
    cut = summary.devices[slow].cut[index] if slow is not None else None
    who = known(slow, lambda name: f"{name} ({row.straggler_profile}{'' if cut is None else f', cut {cut}'})")
    why = [known(row.straggler_gaps_s, seconds), known(row.straggler_why, vocabulary.cause)]
    lost = [*(known(behind.get(cause), signed_seconds) for cause in CAUSES), seconds(row.waited_s)]
    first_cells = [str(row.number), seconds(row.round_s), known(row.round_bounds, _bounds), who]
    return [*first_cells, *why, *lost, known(row.disturbed, vocabulary.disturbances)]


def _bounds(row: RoundBounds) -> str:
    """The largest parts of a round's critical path."""
    parts = [part for part in row.parts if part.share >= LEAST][:MOST_BOUNDS]
    return ", ".join(f"{vocabulary.bound(part.what, part.whose)} {percent(part.share, 0)}" for part in parts)


def lost_rows(summary: Summary) -> list[list[str]]:
    """By device: rounds in which it was the straggler, by cause, and device-seconds that others waited for it."""
    rows = []
    for device, (rounds, waited) in sorted(_lost(summary).items(), key=lambda item: -item[1][1]):
        causes = [
            sum(row.straggler_why == cause for row in summary.rounds if row.straggler == device) for cause in CAUSES
        ]
        share = rounds / len(summary.rounds)
        profile = summary.profiles.get(device, NONE)
        rows.append(
            [device, profile, f"{rounds} ({percent(share, 0)})", *(str(count) for count in causes), seconds(waited)]
        )
    return rows


def _lost(summary: Summary) -> dict[str, tuple[int, float]]:
    """By device: rounds in which it was the straggler, and seconds that all others together waited for it."""
    found: dict[str, tuple[int, float]] = {}
    for row in summary.rounds:
        for device, more in ((row.straggler, (1, 0.0)), (row.waited_for, (0, row.waited_s))):
            if device is not None:
                rounds, total = found.get(device, (0, 0.0))
                found[device] = rounds + more[0], total + more[1]
    return found


def saving_rows(summary: Summary) -> list[list[str]]:
    """Seconds that faster parts would have saved, the largest first."""
    whole = summary.what_if.rounds_s
    return [
        [_whose(saving, summary), seconds(saving.saved_s), percent(saving.saved_s / whole) if whole else NONE]
        for saving in summary.what_if.savings
    ]


def _whose(saving: Saving, summary: Summary) -> str:
    thing = "link, both ways" if saving.what == "link" else vocabulary.BOUNDS[saving.what]
    if not saving.whose:
        return f"the {thing}"
    if saving.whose == "all":
        return f"every device's {thing}"
    if saving.whose == "slowest":
        return f"the slowest {thing}: {some(summary.what_if.slowest_links)}"
    return f"{saving.whose}'s {thing}"


def readouts(run: RunFacts) -> list[tuple[str, list[tuple[str, str]]]]:
    """The last read-back of every device's limits."""
    last: dict[str, t.LimitsSet] = {row.device: row for row in run.sessions[-1].limits}
    return [(f"{row.device}: {row.profile} ({row.why})", list(row.details.items())) for row in last.values()]


def host_rows(run: RunFacts) -> list[list[str]]:
    """The host and its software; where sessions differ, all values in their order."""
    rows: dict[str, list[str]] = {}
    for session in run.sessions:
        for key, value in session.started.host.items():
            known = rows.setdefault(key, [])
            if value and value not in known:
                known.append(value)
    return [[key, ", then ".join(values) or NONE] for key, values in rows.items()]


def answers(summary: Summary, changed: list[list[str]]) -> list[str]:
    """Answers to a reader's first questions, one sentence each."""
    told = (_bound(summary), _who(summary), *_faster(summary), _near_ties(summary), _changed(changed))
    return [sentence for sentence in told if sentence]


def _bound(summary: Summary) -> str:
    """What bounded the rounds, or why that is not known; and what devices waited for."""
    found = summary.bound_by
    if not found.parts:
        return f"What bounded the rounds is not known: {found.why_not}." if found.why_not else ""
    waited = waits_text(summary.wait_share_mean)
    waits = f" Devices waited for: {waited} of the rounds' time, on average." if waited else ""
    return f"The rounds were bound by: {found.text}.{waits}"


MOST_FASTER = 3
"""Savings that are told in sentences."""


def _faster(summary: Summary) -> list[str]:
    """What the largest savings would be, one sentence each."""
    whole = summary.what_if.rounds_s
    one = [row for row in summary.what_if.savings if row.whose not in ("all", "slowest")]
    told = [
        f"With {_whose(row, summary)} twice as fast, the rounds would have taken {seconds(row.saved_s)} less "
        f"({percent(row.saved_s / whole)})."
        for row in one[:MOST_FASTER]
        if whole and row.saved_s > 0
    ]
    return [*told, _slowest_link(summary)]


def _near_ties(summary: Summary) -> str:
    """Why what bounds the rounds most and what would save most may differ."""
    near = [row.round_bounds.near for row in summary.rounds if row.round_bounds is not None]
    tied = Counter(bound for bounds in near for bound in set(bounds))
    if not tied:
        return ""
    often = ", ".join(vocabulary.bound(bound.what, bound.whose) for bound, _ in tied.most_common(2))
    return (
        f"In {sum(map(bool, near))} of {len(near)} rounds another chain of steps ended at most 5 % earlier, a near-tie "
        f"(most often through {often}). There one faster device saves little, since the round then waits for the other "
        "chain: what bounds most and what would save most need not be the same."
    )


def _who(summary: Summary) -> str:
    rounds = [(row.straggler, row.straggler_why, row.waited_for, row.waited_s) for row in summary.rounds]
    return whole_run(rounds, summary.profiles)


def _slowest_link(summary: Summary) -> str:
    savings = {(row.what, row.whose): row.saved_s for row in summary.what_if.savings}
    saved, whole = savings.get(("link", "slowest")), summary.what_if.rounds_s
    if saved is None or not whole:
        return ""
    whose = some(summary.what_if.slowest_links)
    cpu = savings.get(("cpu", "all"), 0.0)
    return (
        f"With the slowest link ({whose}) twice as fast, the rounds would have taken {seconds(saved)} less of "
        f"{seconds(whole)} ({percent(saved / whole)}); with every CPU twice as fast {seconds(cpu)} less "
        f"({percent(cpu / whole)})."
    )


def _changed(rows: list[list[str]]) -> str:
    if not rows:
        return "No profile changed during the run."
    at, number, device, before, after, _ = rows[0]
    some = f"{device} went from {before} to {after} at {at} (round {number})"
    return f"{len(rows)} changes of a profile; the first: {some}."


BOARD_COLUMNS = (
    "board",
    "model",
    "kernel",
    "torch",
    "power mode",
    "clock",
    "sensors",
    "hottest",
    "rounds with marks",
    "energy per round",
    "in all rounds",
)
"""Heads of the rows of boards."""


def board_rows(summary: Summary) -> list[list[str]]:
    """What the real boards said of themselves, and what their sensors read over all rounds."""
    return [_board_row(name, facts, summary.devices[name]) for name, facts in summary.boards.items()]


def _board_row(name: str, facts: dict[str, str], device: DeviceFigures) -> list[str]:
    hottest = max((each for each in device.board_celsius if each is not None), default=None)
    marks = [each for each in device.board_marks if each is not None]
    joules = [each for each in device.joules if each is not None]
    torch = " ".join(facts[key] for key in ("torch", "torch_build", "torch_simd") if key in facts)
    return [
        name,
        facts.get("board", NONE),
        facts.get("kernel", NONE),
        torch or NONE,
        facts.get("power_mode", NONE),
        clock_words(facts),
        facts.get("sensors", NONE),
        known(hottest, lambda celsius: f"{celsius:.0f} °C"),
        _marked(marks) if marks else NONE,
        f"{number(median(joules))} J" if joules else NONE,
        f"{number(sum(joules))} J" if joules else NONE,
    ]


def _marked(marks: Sequence[Sequence[str]]) -> str:
    """In how many rounds a board was slowed down or changed, and by what."""
    by = {mark: sum(mark in each for each in marks) for mark in MARKS}
    words = [f"{mark.replace('_', ' ')} {count}" for mark, count in by.items() if count]
    return f"{', '.join(words) or 'none'} of {len(marks)}"
