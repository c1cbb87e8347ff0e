"""`report.html` and the comparison page: one file each that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from orchestrator.records import types as t
from orchestrator.records.comparison import RESIDUAL_LIMIT, compare, percent, seconds, size
from orchestrator.records.facts import RunFacts
from orchestrator.records.summary import OWN_WORK
from orchestrator.records.timeline import RoundTimeline
from orchestrator.report import charts
from orchestrator.report.charts import Figure, Summary

MOST_ROWS = 400
"""Rows of a table; what is beyond is counted and left to records.jsonl."""

NOT_DILATED = (
    "Devices are slowed by the dilation and every second is divided by it. The server, the merge and the broker are "
    "not slowed: in these figures they look that many times faster than this host is."
)
CALIBRATED = (
    "The limits were measured at the start. Those set later, on a new profile or after a device came back, are read "
    "back from whoever holds them."
)
RESIDUAL = (
    "The part of the worst round that the account of a device does not explain. With all devices on one host there is "
    "one clock: then it shows lost, doubled and disordered reports, and nothing else."
)

Badge = tuple[str, str, str]
"""Text, kind (good, plain or bad), and what is shown when the pointer rests on it."""


def report_page(run: RunFacts, summary: Summary, drawn: list[tuple[str, RoundTimeline]]) -> str:
    """The page of one run. `drawn`: rounds whose Gantt can be chosen, with their labels."""
    figures = {"accuracy": charts.accuracy([summary]), "shares": charts.shares(summary)}
    if summary["rounds"]:
        figures |= {"rounds": charts.rounds(summary), "cuts": charts.cuts(summary)}
    if (predictions := charts.predictions(summary)) is not None:
        figures["predictions"] = predictions
    return _render(
        "report.html.j2",
        title=f"{summary['experiment']} · {summary['method']}",
        figures=figures,
        gantt=[{"label": label, "figure": charts.gantt(timeline)} for label, timeline in drawn],
        summary=summary,
        started=run.started,
        badges=badges(summary),
        tiles=_tiles(summary),
        calibration=_first([_calibration_row(row) for row in run.stretches[-1].calibration]),
        limits=_limits_rows(run),
        devices=[_device_row(device, summary) for device in run.started.devices],
        not_dilated=NOT_DILATED if summary["dilation"] != 1 else "",
        throttled=_first(_throttled_rows(summary)),
        events=_first(_events(run)),
        cut_costs=run.stretches[-1].cuts,
    )


def comparison_page(summaries: Sequence[Summary]) -> str:
    """The page of several runs: their curves, and the table of `edgebed compare`."""
    comparison = compare(summaries)
    return _render(
        "comparison.html.j2",
        title=" · ".join(summary["method"] for summary in summaries),
        figures={"accuracy": charts.accuracy(summaries)}
        | {f"shares{index}": charts.shares(summary) for index, summary in enumerate(summaries)},
        gantt=[],
        summaries=summaries,
        not_dilated=NOT_DILATED if any(summary["dilation"] != 1 for summary in summaries) else "",
        badges=_common_badges(summaries),
        comparison=comparison,
    )


def badges(summary: Summary) -> list[Badge]:
    """What must stay in sight beside every figure."""
    enforcement, dilation, residual = summary["enforcement"], summary["dilation"], summary["timeline_residual_max"]
    result = [
        (f"limits held by: {enforcement}", "bad" if enforcement == "software" else "good", ""),
        (f"dilation {dilation:.3g}", "plain", NOT_DILATED if dilation != 1 else ""),
        ("calibrated", "good", CALIBRATED) if summary["calibrated"] else ("NOT calibrated", "bad", ""),
    ]
    if residual is not None:
        kind = "good" if residual <= RESIDUAL_LIMIT else "bad"
        result.append((f"timeline residual ≤ {percent(residual)}", kind, RESIDUAL))
    return result


def _common_badges(summaries: Sequence[Summary]) -> list[Badge]:
    """Badges that all runs share, once; the others with the run's method before them."""
    of_run = [badges(summary) for summary in summaries]
    shared = [badge for badge in of_run[0] if all(badge in other for other in of_run)]
    own = [
        (f"{summary['method']}: {text}", kind, about)
        for summary, mine in zip(summaries, of_run, strict=True)
        for text, kind, about in mine
        if (text, kind, about) not in shared
    ]
    return shared + own


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    """The figures that a reader looks for first."""
    target, reached = f"{summary['target_accuracy']:.0%}", summary["time_to_target_s"] is not None
    shown: list[tuple[str, Any, Any]] = [
        (f"to {target} accuracy" + ("" if reached else ": not reached"), summary["time_to_target_s"], seconds),
        ("best accuracy", summary["best_accuracy"], percent),
        ("rounds", summary["rounds"], str),
        ("median round", summary["round_s_median"], seconds),
        ("95th percentile", summary["round_s_p95"], seconds),
        ("straggler gap", summary["straggler_gap_s"], seconds),
        ("idle share", summary["idle_share_mean"], percent),
        ("bytes up", summary["bytes_up_total"], size),
        ("bytes down", summary["bytes_down_total"], size),
    ]
    return [(label, _text(value, show)) for label, value, show in shown]


def _text(value: Any, show: Any) -> str:
    return "–" if value is None else str(show(value))


# ---- rows of tables ----


def _calibration_row(row: t.Calibrated) -> dict[str, Any]:
    verdict = "not judged" if not row.judged else ("passed" if row.passed else "FAILED")
    return {
        "cells": [
            row.device,
            row.quantity,
            row.condition,
            quantity(row.requested, row.unit),
            quantity(row.measured, row.unit),
            f"{row.error:+.1%}",
            f"{verdict} {row.cause}".strip(),
        ],
        "bad": row.judged and not row.passed,
    }


def _limits_rows(run: RunFacts) -> dict[str, Any]:
    self_held = run.stretches[-1].started.enforcement == "software"
    return _first([_limits_row(row, self_held) for row in run.stretches[-1].limits])


def _limits_row(row: t.LimitsSet, self_held: bool) -> dict[str, Any]:
    """Requested / read back. What the agent holds itself cannot be read back, which is no fault."""
    held = (row.held_cpus, row.held_uplink_bit_s, row.held_downlink_bit_s)
    asked = (row.cpus, row.uplink_bit_s, row.downlink_bit_s)
    read = ["–", "–", "–"] if self_held else _limits(*held)
    shown = [f"{a} / {h}" for a, h in zip(_limits(*asked), read, strict=True)]
    return {"cells": [row.device, row.why, row.profile, *shown], "bad": None in held and not self_held}


def _limits(cpus: float | None, up: float | None, down: float | None) -> list[str]:
    rates = ["none" if rate is None else quantity(rate, "bit/s") for rate in (up, down)]
    return ["none" if cpus is None else f"{cpus:.3g}", *rates]


def _device_row(device: t.DeviceInfo, summary: Summary) -> list[str]:
    name = device.name
    return [
        name,
        device.profile,
        f"{device.cpus:g}",
        quantity(device.uplink_bit_s, "bit/s"),
        quantity(device.downlink_bit_s, "bit/s"),
        f"{device.memory_mib} MiB",
        f"{device.samples}",
        " ".join(str(count) for count in device.labels),
        _text(summary["idle_share"].get(name), percent),
        size(summary["bytes_up"].get(name, 0)),
        size(summary["bytes_down"].get(name, 0)),
    ]


def _throttled_rows(summary: Summary) -> list[list[str]]:
    """How long each device worked, and for what part of that its quota stopped it; nothing if no device reported it."""
    shares: dict[str, float | None] = summary["throttled_share"]
    if all(share is None for share in shares.values()):
        return []
    worked = {name: sum(phases.get(own, 0.0) for own in OWN_WORK) for name, phases in summary["phase_s"].items()}
    return [[name, seconds(worked[name]), _text(share, percent)] for name, share in shares.items()]


def _events(run: RunFacts) -> list[list[str]]:
    """What went otherwise than planned, in the order of time; seconds count from the start of the orchestrator."""
    rows = []
    for stretch in run.stretches:
        for event in stretch.events:
            at = f"{(event.at_ns - stretch.started.at_ns) / 1e9 / stretch.started.dilation:.1f} s"
            rows.append([at, event.device or "orchestrator", *_event(event)])
    return rows


def _event(event: t.DeviceOut | t.DeviceJoined | t.DeviceLeft | t.Fault) -> tuple[str, str]:
    match event:
        case t.DeviceOut():
            return f"left out of round {event.round + 1}: {event.how}", event.why
        case t.DeviceLeft():
            return "left", event.why
        case t.DeviceJoined():
            return "came back", f"incarnation {event.incarnation[:8]}"
        case t.Fault():
            return "fault", event.what


def quantity(value: float, unit: str) -> str:
    """With a unit that keeps the figure short."""
    if unit == "bit/s":
        return f"{value / 1e6:.4g} Mbit/s"
    return f"{value:.4g} {unit}"


def _first(rows: list[Any]) -> dict[str, Any]:
    return {"rows": rows[:MOST_ROWS], "more": max(0, len(rows) - MOST_ROWS)}


# ---- rendering ----


def _render(template: str, *, figures: dict[str, Figure], gantt: list[dict[str, Any]], **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"seconds": seconds, "percent": percent, "size": size}
    return environment.get_template(template).render(
        plotly=Markup(get_plotlyjs()),
        data=embedded({"figures": figures, "gantt": gantt}),
        figures=figures,
        gantt=gantt,
        **values,
    )


def embedded(value: Any) -> Markup:
    """JSON that may stand in a <script>: no text in it can end the element."""
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
