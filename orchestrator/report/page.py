"""`report.html` and the comparison page: one file each that needs no network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from edgebed.pacing import HOST
from orchestrator.records.compare.comparison import RESIDUAL_LIMIT
from orchestrator.records.compare.page import compared
from orchestrator.records.run_index import RunFacts
from orchestrator.records.shown.calibrated import calibration_row
from orchestrator.records.summary import Summary
from orchestrator.records.timeline.host_index import index_text, is_slow
from orchestrator.records.timeline.in_quota import UNSLOWED, sentence
from orchestrator.records.timeline.timeline import RoundTimeline
from orchestrator.records.words import palette
from orchestrator.records.words.formatting import number, percent, seconds, size
from orchestrator.records.words.vocabulary import CALIBRATION, HELD, OF_HOST, for_page, held_by_boards, origins_text
from orchestrator.report import charts, tables
from orchestrator.report.charts import Figure
from orchestrator.report.tables import BOARD_COLUMNS, board_rows

STATIC = Path(__file__).parent.parent / "dashboard" / "static"
"""Style and scripts of the live page, put into one file: a page of the report needs no server."""

MODULES = ("format.js", "dom.js", "charts.js", "rows.js", "gantt.js", "over_time.js", "compare.js", "report.js")
"""Each after those that it imports."""

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "[./]*/([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (class|function|const) ([\w$]+)", re.MULTILINE)

CALIBRATED = (
    "The limits were measured at the start. Those set later, on a new profile or after a device came back, are read "
    "back from whoever holds them."
)
RESIDUAL = (
    "The share of a round that the phases of a device do not explain, in the worst round. Where all devices are on one "
    "host there is one clock; then it shows only reports that were lost, doubled or out of order."
)

WEAK = {
    "software": "The agents limit themselves; no kernel holds them to it.",
    "simulated": "No device ran: times come from a cost model on a virtual clock.",
}
"""Enforcements that are no measurement under limits, and why."""

BOARDS = "Nothing is held on a real board: it is as fast as it is. Its calibration rows say what was measured."

Badge = tuple[str, str, str]
"""Text, kind (good, plain or bad), and what is shown when the pointer rests on it."""


class Collected(msgspec.Struct):
    """What the page needs besides the summary."""

    # rounds whose Gantt can be chosen, with their labels, as `orchestrator.records.shown.round_view` has them
    drawn: list[tuple[str, dict[str, Any]]] = []
    # per finished round its number and the mean device's seconds by name
    phases: list[tuple[int, dict[str, float]]] = []
    over_time: dict[str, Any] = {}  # the whole run, as `orchestrator.records.shown.over_time` has it
    experiment: str = ""  # the resolved experiment file; empty where the run's folder holds none


def mean_phases(timeline: RoundTimeline) -> dict[str, float]:
    """Seconds by name of the mean device in a round, divided by the dilation."""
    sums = Counter[str]()
    for device in timeline.devices.values():
        sums.update(device.sums)
    scale = 1e9 * timeline.facts.dilation * max(1, len(timeline.devices))
    return {name: length / scale for name, length in sums.items()}


def report_page(run: RunFacts, summary: Summary, collected: Collected) -> str:
    """The page of one run."""
    changed = tables.change_rows(run)
    return _render(
        "report.html.j2",
        title=f"{summary.experiment} · {summary.method}",
        figures=_figures(run, summary, collected),
        rounds_drawn=[{"label": label, "view": view} for label, view in collected.drawn],
        over_time=collected.over_time if summary.rounds else None,
        summary=summary,
        experiment=collected.experiment,
        host=[["edgebed", version("edgebed")], *tables.host_rows(run)],
        badges=badges(summary),
        tiles=tables.tiles(summary),
        answers=tables.answers(summary, changed) if summary.rounds else [],
        round_columns=tables.ROUND_COLUMNS,
        rounds=tables.first(tables.round_rows(summary)),
        lost=tables.first(tables.lost_rows(summary)),
        savings=tables.first(tables.saving_rows(summary)),
        changed=tables.first(changed),
        calibration_columns=CALIBRATION,
        calibration=tables.first(
            [
                {"cells": calibration_row(row), "bad": row.judged and not row.passed}
                for row in run.sessions[-1].calibration
            ]
        ),
        limits=tables.limits_rows(run),
        readouts=tables.readouts(run),
        devices=tables.first(
            [tables.device_row(device, summary.devices[device.name]) for device in run.started.devices]
        ),
        boards=board_rows(summary),
        board_columns=BOARD_COLUMNS,
        not_dilated=f"{summary.server_note} {summary.threads_note}".strip(),
        lanes=run.has_lanes,
        throttled=tables.first(tables.throttled_rows(summary)),
        events=tables.first(tables.event_rows(run)),
        cut_costs=run.sessions[-1].cuts,
    )


def _figures(run: RunFacts, summary: Summary, collected: Collected) -> dict[str, Figure]:
    if not summary.rounds:
        return {}
    optional = {"extra": charts.extra(summary), "predictions": charts.predictions(summary)}
    return {
        "accuracy": charts.accuracy(summary, "time"),
        "accuracy_bytes": charts.accuracy(summary, "bytes"),
        "rounds": charts.rounds(summary, charts.marks(run)),
        "stacked": charts.stacked(collected.phases),
        "shares": charts.shares(summary),
        "cuts": charts.cuts(summary),
    } | {name: figure for name, figure in optional.items() if figure is not None}


def comparison_page(summaries: Sequence[Summary], baseline: Summary | None = None) -> str:
    """The page of several runs: their curves, and the tables of `edgebed compare`."""
    return _render(
        "comparison.html.j2",
        title=" · ".join(dict.fromkeys(summary.method for summary in summaries)),
        compared=compared(summaries, baseline),
        summaries=summaries,
        badges=_common_badges(summaries),
    )


def badges(summary: Summary) -> list[Badge]:
    """Facts that must be visible beside every figure."""
    enforcement, dilation, residual = summary.enforcement, summary.dilation, summary.timeline_residual_max
    costs = summary.costs
    result = [
        _held(enforcement, summary.limited_boards),
        (f"dilation {number(dilation)}", "plain", summary.server_note),
        ("calibrated", "good", CALIBRATED) if summary.calibrated else ("NOT calibrated", "bad", ""),
    ]
    if (boards := summary.unlimited) and enforcement != "unlimited":
        result.append(
            (f"unlimited: the real board{'s' if len(boards) > 1 else ''} {', '.join(boards)}", "plain", BOARDS)
        )
    if said := sentence(summary.batches_in_quota_share, summary.grain):
        slowed = summary.grain == "pacing" or (summary.batches_in_quota_share or 0.0) < UNSLOWED
        result.append((f"grain: {summary.grain}", "good" if slowed else "bad", said))
    if summary.speed not in ("", HOST):
        late = summary.late_rounds or 0
        said = f"{HELD} Of the CPU seconds, {origins_text(summary.reference_s)}. Late rounds: {late}."
        if (share := summary.orchestrator_share_mean) is not None:
            said += f" The orchestrator, which is not held, took {percent(share)} of the rounds."
        early = "".join(
            f" {name} did not wait long enough, by up to {seconds(s)}." for name, s in summary.early_s.items()
        )
        result.append((f"speed: {summary.speed}", "bad" if late or early else "good", said + early))
    elif summary.speed:
        result.append((f"speed: {HOST}", "plain", OF_HOST))
    if (index := summary.host_index) is not None:
        marked = "bad" if summary.speed == HOST and is_slow(index) else "plain"
        result.append(("slow host" if is_slow(index) else "host's index", marked, f"{index_text(index)}."))
    if costs:
        result.append((f"costs: {costs}", "bad", WEAK["simulated"]))
    if residual is not None:
        kind = "good" if residual <= RESIDUAL_LIMIT else "bad"
        named = "timeline complete" if percent(residual) == percent(0.0) else f"timeline residual ≤ {percent(residual)}"
        result.append((named, kind, RESIDUAL))
    return result


def _held(enforcement: str, limited: Sequence[str]) -> Badge:
    if enforcement == "unlimited":
        return "unlimited: real boards", "plain", BOARDS
    also = f", {held_by_boards(limited)}" if limited and enforcement != "kernel" else ""
    return f"limits held by: {enforcement}{also}", "bad" if enforcement in WEAK else "good", WEAK.get(enforcement, "")


def _common_badges(summaries: Sequence[Summary]) -> list[Badge]:
    """Badges that all runs share, once; the others with the run's method before them."""
    of_run = [badges(summary) for summary in summaries]
    shared = [badge for badge in of_run[0] if all(badge in other for other in of_run)]
    own = [
        (f"{summary.method}: {text}", kind, about)
        for summary, mine in zip(summaries, of_run, strict=True)
        for text, kind, about in mine
        if (text, kind, about) not in shared
    ]
    return shared + own


# ---- rendering ----


def _render(
    template: str,
    *,
    figures: dict[str, Figure] | None = None,
    rounds_drawn: Sequence[dict[str, Any]] = (),
    over_time: dict[str, Any] | None = None,
    compared: dict[str, Any] | None = None,
    **values: Any,
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"seconds": seconds, "number": number, "size": size}
    drawn = {"figures": figures or {}, "rounds": rounds_drawn, "over_time": over_time, "compared": compared}
    return environment.get_template(template).render(
        style=Markup(style()),
        script=Markup(script()),
        data=embedded(drawn),
        figures=figures or {},
        drawn=drawn,
        **values,
    )


def style() -> str:
    """Rules of the page, and its colours."""
    return (STATIC / "style.css").read_text(encoding="utf-8") + palette.css()


def script() -> str:
    """All modules as one script. Each is a function of its own that returns what it exports."""
    words = ", ".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in for_page().items())
    parts = [f'"use strict";\nconst modules = {{"vocabulary.js": {{{words}}}}};']
    for name in MODULES:
        text = (STATIC / name).read_text(encoding="utf-8")
        exported = ", ".join(match[1] for match in _EXPORT.findall(text))
        own = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r'const \1 = modules["\2"];\n', text))
        parts.append(f'modules["{name}"] = (() => {{\n{own}\nreturn {{{exported}}};\n}})();')
    return "\n".join(parts)


def embedded(value: Any) -> Markup:
    """JSON for a <script> element: no text in it can end the element."""
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
