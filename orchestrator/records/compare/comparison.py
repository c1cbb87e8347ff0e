"""Summaries of several runs -> one table, with what must be known to read it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from edgebed.pacing import HOST
from orchestrator.records.compare.look_alikes import look_alike_notes, ran_on
from orchestrator.records.compare.paired import unpaired
from orchestrator.records.critical.bound_by import savings_text, waits_text
from orchestrator.records.summary import Summary
from orchestrator.records.timeline.host_index import differing_hosts, index_text, is_slow
from orchestrator.records.timeline.in_quota import UNSLOWED, sentence
from orchestrator.records.types import SIMULATED
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import NONE, accuracy, factor, known, number, percent, seconds, size

RESIDUAL_LIMIT = 0.02
"""A timeline that leaves more than this share of a round unexplained is not trusted."""


class Comparison(msgspec.Struct, frozen=True):
    """One row per run. `rows` are values, `texts` the same for people, `labels` the names of the columns."""

    rows: list[dict[str, Any]]
    texts: list[dict[str, str]]
    labels: dict[str, str]
    notes: list[str]


def compare(summaries: Sequence[Summary]) -> Comparison:
    """The last run is the baseline of `speed_up`: its time to target ÷ the run's."""
    base = summaries[-1].time_to_target_s if summaries else None
    rows = [_row(summary, base) for summary in summaries]
    notes = _notes(summaries) + unpaired(summaries) + [note for each in summaries for note in _disturbed(each)]
    indices = {each.run: index for each in summaries if each.speed == HOST and (index := each.host_index) is not None}
    notes = [*look_alike_notes(summaries), *differing_hosts(indices), *notes]
    notes += [note for each in summaries for note in _boards(each)]
    texts = [_texts(summary, base) for summary in summaries]
    return Comparison(rows, texts, {key: column.label for key, column in COLUMNS.items()}, notes)


def _row(summary: Summary, base: float | None) -> dict[str, Any]:
    values = {key: msgspec.to_builtins(column.of(summary)) for key, column in COLUMNS.items()}
    return values | {"speed_up": _speed_up(summary, base)}


def _texts(summary: Summary, base: float | None) -> dict[str, str]:
    texts = {key: known(column.of(summary), column.show) for key, column in COLUMNS.items()}
    if (speed_up := _speed_up(summary, base)) is not None:
        texts["speed_up"] = factor(speed_up)
    else:
        texts["speed_up"] = f"{NONE} ({'it' if summary.time_to_target_s is None else 'the last'} missed the target)"
    if on := ran_on(summary):
        texts["method"] += f", on {on}"
    return texts


def _speed_up(summary: Summary, base: float | None) -> float | None:
    """Over the baseline, whose time to target is `base`."""
    own = summary.time_to_target_s
    return base / own if base and own else None


class Column(msgspec.Struct, frozen=True):
    """What is shown of each run: its name, its value, the value for people."""

    label: str
    of: Callable[[Summary], Any]
    show: Callable[[Any], str]


COLUMNS: dict[str, Column] = {
    "method": Column("method", lambda run: run.method, str),
    "run": Column("run", lambda run: run.run, str),
    "seed": Column("seed", lambda run: run.seed, str),
    "ended": Column("ended", lambda run: run.ended, str),
    "rounds": Column("rounds", lambda run: len(run.rounds), str),
    "target_accuracy": Column("target accuracy", lambda run: run.target_accuracy, accuracy),
    "best_accuracy": Column("best accuracy", lambda run: run.best_accuracy, accuracy),
    "time_to_target_s": Column("time to target, interpolated", lambda run: run.time_to_target_s, seconds),
    "speed_up": Column("speed-up over the last", lambda run: None, factor),
    "total_s": Column("time of all rounds", lambda run: run.total_s, seconds),
    "round_s_median": Column("round, median", lambda run: run.round_s_median, seconds),
    "round_s_p95": Column("round, 95th percentile", lambda run: run.round_s_p95, seconds),
    "straggler_gap_s": Column("straggler gap", lambda run: run.straggler_gap_s, seconds),
    "idle_share_mean": Column("idle share", lambda run: run.idle_share_mean, percent),
    "bound_by": Column("bound by", lambda run: run.bound_by, lambda found: found.text or found.why_not or NONE),
    "what_if": Column(
        "twice as fast would save", lambda run: run.what_if, lambda found: savings_text(found.savings) or NONE
    ),
    "wait_share_mean": Column(
        "devices waited for", lambda run: run.wait_share_mean, lambda shares: waits_text(shares) or NONE
    ),
    "bytes_up_total": Column("bytes up", lambda run: run.bytes_up_total, size),
    "bytes_down_total": Column("bytes down", lambda run: run.bytes_down_total, size),
    "timeline_residual_max": Column("timeline residual, worst", lambda run: run.timeline_residual_max, percent),
    "backend": Column("backend", lambda run: run.backend, str),
    "enforcement": Column("limits held by", lambda run: run.enforcement, str),
    "dilation": Column("dilation", lambda run: run.dilation, number),
    "grain": Column("grain", lambda run: run.grain, str),
    "speed": Column("speed", lambda run: run.speed or NONE, str),
    "host_index": Column("the host's index", lambda run: run.host_index, index_text),
    "reference_s": Column(
        "CPU seconds of the reference",
        lambda run: run.reference_s,
        lambda found: vocabulary.origins_text(found) or NONE,
    ),
    "late_rounds": Column("late rounds", lambda run: run.late_rounds, str),
    "orchestrator_share_mean": Column(
        "orchestrator, at the speed of the host", lambda run: run.orchestrator_share_mean, percent
    ),
    "batches_in_quota_share": Column(
        "batches within one period's quota", lambda run: run.batches_in_quota_share, percent
    ),
    "disturbed_rounds": Column("rounds disturbed by the host", lambda run: run.disturbed_rounds, str),
    "calibrated": Column("calibrated", lambda run: run.calibrated, lambda value: "yes" if value else "NO"),
}


def _notes(summaries: Sequence[Summary]) -> list[str]:
    """What makes these figures doubtful or not comparable. What holds for several runs is listed once."""
    notes = []
    for key in ("enforcement", "dilation", "grain", "speed", "target_accuracy"):
        column = COLUMNS[key]
        values = sorted({known(column.of(summary), column.show) for summary in summaries})
        if len(values) > 1 and not (key == "dilation" and _seeds_of_one_experiment(summaries)):
            notes.append(f"the runs differ in {column.label} ({', '.join(values)}): compare their times with care")
    runs: dict[str, list[str]] = {}
    for summary in summaries:
        for doubt in _doubts(summary):
            runs.setdefault(doubt, []).append(summary.run)
    return notes + [f"{_named(who, len(summaries))}: {doubt}" for doubt, who in runs.items()]


def _seeds_of_one_experiment(summaries: Sequence[Summary]) -> bool:
    """Whether they are held runs of one experiment whose methods share a dilation within each seed: every seed has a
    fleet of its own, and ratios are taken within a seed."""
    fleets = {(run.seed, run.dilation) for run in summaries}
    one = len({run.series for run in summaries}) == 1 and summaries[0].series != ""
    return one and summaries[0].speed not in ("", HOST) and len(fleets) == len({seed for seed, _ in fleets})


def _doubts(summary: Summary) -> Iterable[str]:
    if summary.enforcement == "software":
        yield "limits were held by the agents themselves, not by the kernel"
    if summary.enforcement == SIMULATED:
        costs = f" ({model})" if (model := summary.costs) else ""
        yield f"simulated; no device ran, times come from a cost model{costs}"
    if not summary.calibrated:
        yield "the limits were not shown to hold, or devices were late (uncalibrated)"
    if summary.late_rounds:
        yield f"devices were later than those of the reference {summary.speed} in {summary.late_rounds} rounds"
    for device, early in summary.early_s.items():
        yield f"{device} did not hold: it was up to {seconds(early)} earlier than a device of {summary.speed}"
    if summary.speed == HOST and (index := summary.host_index) is not None and is_slow(index):
        yield f"the host was slow throughout ({index_text(index)}), and so its devices"
    if guessed := vocabulary.guessed_share(summary.reference_s):
        yield f"{percent(guessed)} of the devices' work is not recorded in the reference {summary.speed}"
    if summary.grain != "pacing" and (summary.batches_in_quota_share or 0.0) >= UNSLOWED:
        yield sentence(summary.batches_in_quota_share, summary.grain)
    yield from filter(None, (summary.server_note, summary.threads_note))
    residual = summary.timeline_residual_max
    if residual is not None and residual > RESIDUAL_LIMIT:
        yield f"up to {percent(residual)} of a round has no name in the timeline"


def _disturbed(summary: Summary) -> Iterable[str]:
    if count := summary.disturbed_rounds:
        causes = Counter(cause for row in summary.rounds for cause in row.disturbed or ())
        by = ", ".join(f"{vocabulary.disturbance(cause)} in {rounds}" for cause, rounds in causes.most_common())
        yield (
            f"{summary.run}: the host disturbed {count} of {len(summary.rounds)} rounds ({by}): end what disturbs it "
            "and repeat the run, or leave these rounds out"
        )


def _boards(summary: Summary) -> Iterable[str]:
    if boards := summary.unlimited:
        yield f"{summary.run}: unlimited, real boards: {', '.join(boards)}"


def _named(runs: Sequence[str], of: int) -> str:
    """Those of `of` runs; by name where they are not all."""
    return f"{of} runs" if len(runs) == of > 1 else ", ".join(runs)
