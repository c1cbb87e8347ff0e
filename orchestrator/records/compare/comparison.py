"""Summaries of several runs -> one table, with what must be known to read it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from orchestrator.records.compare.look_alikes import look_alike_notes, ran_on
from orchestrator.records.compare.paired import unpaired
from orchestrator.records.critical.bound_by import savings_text, waits_text
from orchestrator.records.timeline.in_quota import UNSLOWED, sentence
from orchestrator.records.types import SIMULATED
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import NONE, accuracy, factor, known, number, percent, seconds, size

RESIDUAL_LIMIT = 0.02
"""A timeline that leaves more than this share of a round unexplained is not trusted."""

Summary = dict[str, Any]


class Comparison(msgspec.Struct, frozen=True):
    """One row per run. `rows` are values, `texts` the same for people, `labels` the names of the columns."""

    rows: list[Summary]
    texts: list[dict[str, str]]
    labels: dict[str, str]
    notes: list[str]


def compare(summaries: Sequence[Summary]) -> Comparison:
    """The last run is the baseline of `speed_up`: its time to target ÷ the run's."""
    base = summaries[-1]["time_to_target_s"] if summaries else None
    rows = [_row(summary, base) for summary in summaries]
    notes = _notes(summaries, rows) + unpaired(summaries) + [note for each in summaries for note in _disturbed(each)]
    notes = look_alike_notes(summaries) + notes + [note for each in summaries for note in _boards(each)]
    texts = [{key: known(row[key], show) for key, (_, show) in COLUMNS.items()} for row in rows]
    for text, row in zip(texts, rows, strict=True):
        if row["speed_up"] is None:
            text["speed_up"] = f"{NONE} ({'it' if row['time_to_target_s'] is None else 'the last'} missed the target)"
    for text, summary in zip(texts, summaries, strict=True):
        if on := ran_on(summary):
            text["method"] += f", on {on}"
    return Comparison(rows, texts, {key: label for key, (label, _) in COLUMNS.items()}, notes)


def _row(summary: Summary, base: float | None) -> Summary:
    own = summary["time_to_target_s"]
    return {key: summary.get(key) for key in COLUMNS} | {"speed_up": base / own if base and own else None}


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "method": ("method", str),
    "run": ("run", str),
    "seed": ("seed", str),
    "ended": ("ended", str),
    "rounds": ("rounds", str),
    "target_accuracy": ("target accuracy", accuracy),
    "best_accuracy": ("best accuracy", accuracy),
    "time_to_target_s": ("time to target", seconds),
    "speed_up": ("speed-up over the last", factor),
    "total_s": ("time of all rounds", seconds),
    "round_s_median": ("round, median", seconds),
    "round_s_p95": ("round, 95th percentile", seconds),
    "straggler_gap_s": ("straggler gap", seconds),
    "idle_share_mean": ("idle share", percent),
    "bound_by": ("bound by", lambda value: value["text"] or value["why_not"] or NONE),
    "what_if": ("twice as fast would save", lambda value: savings_text(value["savings"]) or NONE),
    "wait_share_mean": ("devices waited for", lambda value: waits_text(value) or NONE),
    "bytes_up_total": ("bytes up", size),
    "bytes_down_total": ("bytes down", size),
    "timeline_residual_max": ("timeline residual, worst", percent),
    "backend": ("backend", str),
    "enforcement": ("limits held by", str),
    "dilation": ("dilation", number),
    "grain": ("grain", str),
    "batches_in_quota_share": ("batches within one period's quota", percent),
    "disturbed_rounds": ("rounds disturbed by the host", str),
    "calibrated": ("calibrated", lambda value: "yes" if value else "NO"),
}


def _notes(summaries: Sequence[Summary], rows: list[Summary]) -> list[str]:
    """What makes these figures doubtful or not comparable. What holds for several runs is listed once."""
    notes = []
    for key in ("enforcement", "dilation", "grain", "target_accuracy"):
        values = sorted({str(row[key]) for row in rows})
        if len(values) > 1:
            notes.append(f"the runs differ in {COLUMNS[key][0]} ({', '.join(values)}): compare their times with care")
    runs: dict[str, list[str]] = {}
    for summary, row in zip(summaries, rows, strict=True):
        for doubt in _doubts(summary | row):
            runs.setdefault(doubt, []).append(row["run"])
    return notes + [f"{_named(who, len(rows))}: {doubt}" for doubt, who in runs.items()]


def _doubts(summary: Summary) -> Iterable[str]:
    if summary["enforcement"] == "software":
        yield "limits were held by the agents themselves, not by the kernel"
    if summary["enforcement"] == SIMULATED:
        costs = f" ({model})" if (model := summary.get("costs")) else ""
        yield f"simulated; no device ran, times come from a cost model{costs}"
    if not summary["calibrated"]:
        yield "the limits were not shown to hold (uncalibrated)"
    if summary["grain"] != "pacing" and (summary["batches_in_quota_share"] or 0.0) >= UNSLOWED:
        yield sentence(summary)
    yield from filter(None, (summary.get("server_note"), summary.get("threads_note")))
    residual = summary["timeline_residual_max"]
    if residual is not None and residual > RESIDUAL_LIMIT:
        yield f"up to {percent(residual)} of a round has no name in the timeline"


def _disturbed(summary: Summary) -> Iterable[str]:
    if count := summary.get("disturbed_rounds"):
        causes = Counter(cause for causes in summary.get("disturbed") or () for cause in causes or ())
        by = ", ".join(f"{vocabulary.disturbance(cause)} in {rounds}" for cause, rounds in causes.most_common())
        yield (
            f"{summary['run']}: the host disturbed {count} of {summary['rounds']} rounds ({by}): end what disturbs it "
            "and repeat the run, or leave these rounds out"
        )


def _boards(summary: Summary) -> Iterable[str]:
    if boards := summary.get("unlimited"):
        yield f"{summary['run']}: unlimited, real boards: {', '.join(boards)}"


def _named(runs: Sequence[str], of: int) -> str:
    """Those of `of` runs; by name where they are not all."""
    return f"{of} runs" if len(runs) == of > 1 else ", ".join(runs)
