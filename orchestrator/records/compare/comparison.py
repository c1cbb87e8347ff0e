"""Summaries of several runs -> one table, with what must be known to read it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from edgebed.errors import counted
from edgebed.pacing import HOST
from orchestrator.records.compare.groups import bases, default_baseline, in_setting, key, named
from orchestrator.records.compare.paired import unpaired
from orchestrator.records.critical.bound_by import savings_text, waits_text
from orchestrator.records.summary import Summary
from orchestrator.records.timeline.host_index import differing_hosts, index_text, is_slow
from orchestrator.records.timeline.in_quota import UNSLOWED, sentence
from orchestrator.records.types import SIMULATED
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import NONE, accuracy, factor, fixed, known, number, percent, seconds, size

RESIDUAL_LIMIT = 0.02
"""A timeline that leaves more than this share of a round unexplained is not trusted."""


class Comparison(msgspec.Struct, frozen=True):
    """One row per run. `rows` are values, `texts` the same for people, `labels` the names of the columns."""

    rows: list[dict[str, Any]]
    texts: list[dict[str, str]]
    labels: dict[str, str]
    notes: list[str]


def compare(summaries: Sequence[Summary], baseline: Summary | None = None) -> Comparison:
    """`speed_up` of a run: time to target of the baseline's run of the same seed ÷ its own. `baseline`: one of that
    method's runs; None: `groups.default_baseline`."""
    chosen = baseline or default_baseline(summaries) if summaries else None
    base = {own: {run.seed: run for run in runs} for own, runs in bases(summaries, baseline).items()}
    rows = [_row(summary, base.get(key(summary), {})) for summary in summaries]
    notes = _notes(summaries) + unpaired(summaries) + [note for each in summaries for note in _disturbed(each)]
    indices = {each.run: index for each in summaries if each.speed == HOST and (index := each.host_index) is not None}
    notes = [*look_alike_notes(summaries), *differing_hosts(indices), *notes]
    notes += [note for each in summaries for note in _boards(each)]
    texts = [_texts(summary, base.get(key(summary), {})) for summary in summaries]
    labels = {name: column.label for name, column in COLUMNS.items()}
    if chosen is not None:
        labels["speed_up"] = f"speed-up over {chosen.method if chosen.setting else named(chosen)}"
    return Comparison(rows, texts, labels, notes)


def headline(summaries: Sequence[Summary]) -> str:
    """The gravest doubts about some runs, in one short line for a figure; "" where there is none."""
    doubts = {
        "the limits were not shown to hold": any(not each.calibrated for each in summaries),
        "simulated": any(each.enforcement == SIMULATED for each in summaries),
        "limits held by the agents": any(each.enforcement == "software" for each in summaries),
        "the host disturbed rounds": any(each.disturbed_rounds for each in summaries),
    }
    found = [text for text, holds in doubts.items() if holds]
    return f"Note: {'; '.join(found)}" if found else ""


def _row(summary: Summary, base: Mapping[int, Summary]) -> dict[str, Any]:
    values = {name: msgspec.to_builtins(column.of(summary)) for name, column in COLUMNS.items()}
    return values | {"speed_up": _speed_up(summary, base)}


def _texts(summary: Summary, base: Mapping[int, Summary]) -> dict[str, str]:
    texts = {name: known(column.of(summary), column.show) for name, column in COLUMNS.items()}
    if (speed_up := _speed_up(summary, base)) is not None:
        texts["speed_up"] = factor(speed_up)
    elif summary.time_to_target_s is None:
        texts["speed_up"] = f"{NONE} (target missed)"
    else:
        other = base.get(summary.seed)
        texts["speed_up"] = f"{NONE} ({f'{other.method} missed it' if other else 'no run of its seed'})"
    if on := ran_on(summary):
        texts["method"] += f", on {on}"
    return texts


def _speed_up(summary: Summary, base: Mapping[int, Summary]) -> float | None:
    """Over the baseline's run of the same seed; `base`: its runs by seed."""
    own, other = summary.time_to_target_s, base.get(summary.seed)
    return other.time_to_target_s / own if other is not None and other.time_to_target_s and own else None


class Column(msgspec.Struct, frozen=True):
    """What is shown of each run: its name, its value, the value for people."""

    label: str
    of: Callable[[Summary], Any]
    show: Callable[[Any], str]


COLUMNS: dict[str, Column] = {
    "method": Column("method", in_setting, str),
    "run": Column("run", lambda run: run.run, str),
    "seed": Column("seed", lambda run: run.seed, str),
    "ended": Column("ended", lambda run: run.ended, str),
    "rounds": Column("rounds", lambda run: len(run.rounds), str),
    "target_accuracy": Column("target accuracy", lambda run: run.target_accuracy, accuracy),
    "best_accuracy": Column("best accuracy", lambda run: run.best_accuracy, accuracy),
    "time_to_target_s": Column("time to target, interpolated", lambda run: run.time_to_target_s, seconds),
    "speed_up": Column("speed-up", lambda run: None, factor),
    "total_s": Column("time of all rounds", lambda run: run.total_s, seconds),
    "round_s_median": Column("round, median", lambda run: run.round_s_median, seconds),
    "round_s_p95": Column("round, 95th percentile", lambda run: run.round_s_p95, seconds),
    "straggler_gap_s": Column("straggler gap", lambda run: run.straggler_gap_s, seconds),
    "idle_share_mean": Column("idle share", lambda run: run.idle_share_mean, percent),
    "bound_by": Column("bound by", lambda run: run.bound_by, lambda found: found.text or found.why_not or NONE),
    "what_if": Column(
        "saved if twice as fast", lambda run: run.what_if, lambda found: savings_text(found.savings) or NONE
    ),
    "wait_share_mean": Column(
        "devices waited for", lambda run: run.wait_share_mean, lambda shares: waits_text(shares) or NONE
    ),
    "bytes_total": Column("bytes, both ways", lambda run: run.bytes_up_total + run.bytes_down_total, size),
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
        "compute seconds come from",
        lambda run: run.reference_s,
        lambda found: vocabulary.origins_text(found) or NONE,
    ),
    "late_rounds": Column("late rounds", lambda run: run.late_rounds, str),
    "orchestrator_share_mean": Column(
        "orchestrator's share of the rounds", lambda run: run.orchestrator_share_mean, percent
    ),
    "batches_in_quota_share": Column(
        "batches within one period's quota", lambda run: run.batches_in_quota_share, percent
    ),
    "disturbed_rounds": Column("rounds disturbed by the host", lambda run: run.disturbed_rounds, str),
    "calibrated": Column("calibrated", lambda run: run.calibrated, lambda value: "yes" if value else "NO"),
}


def conditions(summaries: Sequence[Summary]) -> str:
    """How runs were made, in a sentence that has each value once."""
    columns = [COLUMNS[name] for name in CONDITIONS]
    texts = [dict.fromkeys(known(column.of(run), column.show) for run in summaries) for column in columns]
    return "; ".join(f"{column.label} {', '.join(found)}" for column, found in zip(columns, texts, strict=True))


CONDITIONS = ("enforcement", "speed", "dilation", "late_rounds", "disturbed_rounds", "calibrated")


def _notes(summaries: Sequence[Summary]) -> list[str]:
    """What makes these figures doubtful or not comparable. What holds for several runs is listed once."""
    notes = []
    for name in ("enforcement", "dilation", "grain", "speed", "target_accuracy"):
        column = COLUMNS[name]
        values = sorted({known(column.of(summary), column.show) for summary in summaries})
        if len(values) > 1 and not (name == "dilation" and _seeds_of_one_experiment(summaries)):
            notes.append(f"the runs differ in {column.label} ({', '.join(values)}): compare their times with care")
    runs: dict[str, list[str]] = {}
    for summary in summaries:
        for doubt in _doubts(summary):
            runs.setdefault(doubt, []).append(summary.run)
    return notes + [f"{_named(who, len(summaries))}: {doubt}" for doubt, who in runs.items()]


def _seeds_of_one_experiment(summaries: Sequence[Summary]) -> bool:
    """Whether they are held runs of one experiment whose methods share a dilation within each seed and setting: each
    has a fleet of its own, and ratios are taken within it."""
    fleets = {(key(run)[-1], run.seed, run.dilation) for run in summaries}
    one = len({run.series for run in summaries}) == 1 and summaries[0].series != ""
    return one and summaries[0].speed not in ("", HOST) and len(fleets) == len({part[:2] for part in fleets})


def _doubts(summary: Summary) -> Iterable[str]:
    if summary.enforcement == "software":
        yield "the agents limited themselves; no kernel held them to it (software)"
    if summary.enforcement == SIMULATED:
        costs = f" ({model})" if (model := summary.costs) else ""
        yield f"simulated: no device ran; times come from a cost model{costs}"
    if not summary.calibrated:
        yield "not calibrated: the limits were not shown to hold, or a device was late or early"
    if summary.late_rounds:
        late = counted(summary.late_rounds, "round")
        yield f"in {late} a device was slower than the reference {summary.speed} (late rounds)"
    for device, early in summary.early_s.items():
        faster = f"up to {seconds(early)} faster than the reference {summary.speed}"
        yield f"{device} did not wait long enough: it was {faster}"
    if summary.speed == HOST and (index := summary.host_index) is not None and is_slow(index):
        yield f"the host was slow throughout the run ({index_text(index)}), and so were its devices"
    if guessed := vocabulary.guessed_share(summary.reference_s):
        yield f"{percent(guessed)} of the devices' work is not recorded in the reference {summary.speed}"
    if summary.grain != "pacing" and (summary.batches_in_quota_share or 0.0) >= UNSLOWED:
        yield sentence(summary.batches_in_quota_share, summary.grain)
    yield from filter(None, (summary.server_note, summary.threads_note))
    residual = summary.timeline_residual_max
    if residual is not None and residual > RESIDUAL_LIMIT:
        yield f"up to {percent(residual)} of a round is not explained by the timeline (its residual)"


def _disturbed(summary: Summary) -> Iterable[str]:
    if (count := summary.disturbed_rounds) and summary.late_rounds != 0:  # held in time: it did not matter
        causes = Counter(cause for row in summary.rounds for cause in row.disturbed or ())
        by = ", ".join(f"{vocabulary.disturbance(cause)} in {rounds}" for cause, rounds in causes.most_common())
        yield (
            f"{summary.run}: the host disturbed {count} of {len(summary.rounds)} rounds ({by}): stop the other load "
            "and repeat the run, or leave these rounds out"
        )


def _boards(summary: Summary) -> Iterable[str]:
    if boards := summary.unlimited:
        yield f"{summary.run}: unlimited, real boards: {', '.join(boards)}"


def _named(runs: Sequence[str], of: int) -> str:
    """Those of `of` runs; a few by name where they are not all."""
    return (
        f"{len(runs)} of {of} runs" if 3 < len(runs) < of else f"{of} runs" if len(runs) == of > 1 else ", ".join(runs)
    )


def kinds(summary: Summary) -> dict[str, dict[str, str]]:
    """What devices of a run are, in words, and their boards by device."""
    return {"boards": summary.real_boards, "look-alikes": summary.look_alikes}


def look_alike_notes(summaries: Sequence[Summary]) -> list[str]:
    """One line for every method and set of boards of which there are runs of both kinds: length of a round on the
    look-alikes ÷ on the boards, medians over the rounds and then over the runs."""
    real, like = _by_boards(summaries, "boards"), _by_boards(summaries, "look-alikes")
    return [_note(*key, median(like[key]), median(real[key])) for key in like if key in real]


def _note(method: str, boards: Sequence[str], like_s: float, real_s: float) -> str:
    return (
        f"{method}: a round on look-alikes of {', '.join(boards)} took {fixed(like_s / real_s, 2)} times as long as on "
        f"the boards themselves ({seconds(like_s)} and {seconds(real_s)}, medians)"
    )


def ran_on(summary: Summary) -> str:
    """Of `kinds` what all devices of a run are; "" where they are others, or of several kinds."""
    devices = summary.profiles.keys()
    return next((kind for kind, boards in kinds(summary).items() if boards and boards.keys() == devices), "")


def _by_boards(summaries: Sequence[Summary], kind: str) -> dict[tuple[str, tuple[str, ...]], list[float]]:
    """Median lengths of rounds by method and boards, of the runs of one kind."""
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for summary in summaries:
        if ran_on(summary) == kind and summary.round_s_median:
            key = (summary.method, tuple(sorted(kinds(summary)[kind].values())))
            found.setdefault(key, []).append(summary.round_s_median)
    return found
