"""A comparison as CSV and LaTeX, for programs and papers. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from orchestrator.records.compare.groups import FEWEST, Estimate, Group, ProfileRow, by_key, mean_by_name, named
from orchestrator.records.compare.paired import Paired
from orchestrator.records.critical.bound_by import sentence, together, waits_text
from orchestrator.records.summary import Summary
from orchestrator.records.words.formatting import NONE, accuracy, factor, number, percent, ratio, seconds, size
from orchestrator.records.words.vocabulary import cause

Column = tuple[str, Callable[[Group], str]]


def with_interval(value: Estimate, show: Callable[[float], str]) -> str:
    """The mean and its interval; of few values, which have none, the values themselves."""
    if value.mean is None:
        return NONE
    if value.low is not None and value.high is not None:
        return f"{show(value.mean)} [{show(value.low)}, {show(value.high)}]"
    return ", ".join(map(show, value.values if len(value.values) < FEWEST else ())) or show(value.mean)


def by_cause(rounds: Mapping[str, int]) -> str:
    """Rounds by the cause of their straggler, the most first: "its CPU 12, its uplink 3"."""
    return ", ".join(f"{cause(name)} {count}" for name, count in sorted(rounds.items(), key=lambda item: -item[1]))


def why_no_speed_up(row: Group, baseline: Group | None) -> str:
    """In place of a speed-up that does not exist."""
    if baseline is None:
        return f"{NONE} (no such run beside it)"
    if row.reached and baseline.reached:
        return f"{NONE} (no seed in which both reached the target)"
    return f"{NONE} ({baseline.method if row.reached else row.method} missed the target)"


def profile_row(row: ProfileRow) -> list[str]:
    """A class of devices in one method: in how many rounds it had the straggler, and what that cost."""
    rounds = f"{row.rounds} ({percent(row.share)})"
    return [row.method, row.profile, rounds, seconds(row.waited_s), by_cause(row.why)]


def sentences(summaries: Sequence[Summary]) -> list[str]:
    """One per method: what bounded its rounds, and what its devices waited for; the means of its runs."""
    told = []
    for runs in by_key(summaries).values():
        parts = together(part for run in runs for part in run.bound_by.parts)
        waits = [run.wait_share_mean for run in runs if run.wait_share_mean]
        waited = waits_text(mean_by_name(waits))
        bound_by = f"bound by {sentence(parts)}" if parts else ""
        texts = filter(None, (bound_by, f"devices waited for {waited}" if waited else ""))
        told.append(f"{named(runs[0])}: {'; '.join(texts) or 'what bounded its rounds is not known'}.")
    return told


RESTRICTED = "where runs missed the target, times are Kaplan–Meier means up to the seconds in brackets"


def time_text(row: Group) -> str:
    """Mean seconds to the target; with the time up to which they count, where a run missed it."""
    told, until = with_interval(row.time_to_target_s, seconds), row.restricted_to_s
    return told if until is None else f"{told} (to {seconds(until)})"


def speed_up_text(row: Group) -> str:
    """The speed-up; with the log-rank test where a run missed the target."""
    told, p = with_interval(row.speed_up, factor), row.log_rank_p
    return told if p is None else f"{told} (log-rank p {number(p, 2)})"


COLUMNS: tuple[Column, ...] = (
    ("method", lambda g: g.method),
    ("runs", lambda g: str(g.runs)),
    ("reached the target", lambda g: f"{g.reached} of {g.runs}"),
    ("time to target", time_text),
    ("speed-up", speed_up_text),
    ("best accuracy", lambda g: with_interval(g.best_accuracy, accuracy)),
    ("round, median", lambda g: with_interval(g.round_s, seconds)),
    ("idle share", lambda g: with_interval(g.idle_share, percent)),
    ("bytes", lambda g: with_interval(g.bytes_total, size)),
)
"""What is shown of a group, to people."""


PAIRED: tuple[tuple[str, Callable[[Paired], str]], ...] = (
    ("method", lambda p: p.method),
    ("ratio of rounds", lambda p: with_interval(p.round_ratio, ratio)),
    ("pairs of rounds", lambda p: str(p.rounds)),
    ("ratio of times to target", lambda p: with_interval(p.time_ratio, ratio)),
    ("experiments", lambda p: str(p.experiments)),
)
"""What is shown of paired ratios."""


def about_pairs(rows: Sequence[Paired]) -> str:
    """What the table of paired ratios shows. There is one row at least."""
    most = max(rows, key=lambda row: row.experiments)
    over = f"{most.experiments} {most.unit}" if most.experiments > 1 else "rounds of one experiment"
    return f"Seconds ÷ seconds of {rows[0].baseline}, of rounds that alternated: geometric mean [95 % over {over}]"


def time_in_words(row: Paired) -> str:
    """The ratio of the times to target as a sentence; "" where there is none. Runs that missed it are no part of it."""
    if row.time_ratio.mean is None:
        return ""
    took, count = with_interval(row.time_ratio, ratio), row.time_ratio.count
    over = f"95 % over {count} {row.unit}" if count > 1 else "one experiment: no interval"
    return (
        f"{row.method} took {took} of {row.baseline}'s time to the target ({over}; interpolated between evaluations)."
    )


def no_formula(value: Any) -> Any:
    """A cell of a CSV file. A text that a spreadsheet would calculate gets an apostrophe in front, and stays text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """One line per run; names as in summary.json, None empty."""
    out = io.StringIO()
    write_rows(out, rows)
    return out.getvalue()


def write_rows(file: TextIO, rows: Sequence[dict[str, Any]]) -> None:
    """The same into an open file."""
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: no_formula(value) for key, value in row.items()} for row in rows)


def to_latex(groups: Sequence[Group], baseline: str, notes: Sequence[str], pairs: Sequence[Paired] = ()) -> str:
    """A table for the package booktabs; what must be known to read it follows as comments. With `pairs` it has a column
    of the rounds' paired ratios."""
    columns = [column for column in COLUMNS if column[0] not in ("round, median", "bytes")]
    if pairs:
        columns.append(("round, paired ratio", lambda group: _paired_ratio(group, pairs)))
    lines = [
        "% needs \\usepackage{booktabs}",
        "% Means over seeds, 95% intervals (Student's t; below three seeds the values).",
        f"% Speed-ups over {_plain(baseline)}, in pairs of one seed.",
        *({f"% {RESTRICTED[0].upper()}{RESTRICTED[1:]}." for group in groups if group.restricted_to_s}),
        *((f"% Paired ratios: {_plain(about_pairs(pairs))}.",) if pairs else ()),
        *(f"% {_plain(note)}" for note in notes),
        f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        "\\toprule",
        " & ".join(_escaped(name) for name, _ in columns) + " \\\\",
        "\\midrule",
        *(" & ".join(_escaped(show(group)) for _, show in columns) + " \\\\" for group in groups),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _paired_ratio(group: Group, pairs: Sequence[Paired]) -> str:
    """Of the method's rounds to the baseline's; 1 for the baseline itself."""
    if group.method in {each.baseline for each in pairs}:
        return ratio(1.0)
    found = next((each.round_ratio for each in pairs if each.method == group.method), Estimate(None))
    return with_interval(found, ratio)


def _plain(text: str) -> str:
    """Nothing in it can end a comment."""
    return " ".join(text.split())


_SPECIAL = {character: f"\\{character}" for character in "%&#_$"} | {
    "\\": "\\textbackslash{}",
    "{": "\\{",
    "}": "\\}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "×": "$\\times$",
    "–": "--",
}


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
