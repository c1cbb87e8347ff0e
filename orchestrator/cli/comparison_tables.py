"""What `edgebed compare` prints: the runs side by side, or the methods as rows; and the error of a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table

from edgebed.errors import counted
from orchestrator.cli.console import columns, console, print_whole, show
from orchestrator.records.compare import tabulate
from orchestrator.records.compare.comparison import Comparison, compare, conditions
from orchestrator.records.compare.groups import Group, ProfileRow, default_baseline, group, profiles
from orchestrator.records.compare.paired import Paired, paired
from orchestrator.records.compare.sim_error import SimError
from orchestrator.records.summary import Summary
from orchestrator.records.words.formatting import NONE, percent, seconds, signed_percent

MOST_COLUMNS = 3
"""Runs side by side as columns; of more, methods are rows."""

NINE = {
    *("ended", "rounds", "best_accuracy", "time_to_target_s", "speed_up", "round_s_median", "straggler_gap_s"),
    *("idle_share_mean", "bytes_total"),
}
"""What is shown without --all."""

MOST_NOTES = 5
"""Notes that are printed without --all."""

PROFILES = ("method", "profile", ">straggler in rounds", ">others waited, per run", "why")
"""Heads of the stragglers by profile."""

ERRORS = ("device", "phase", ">simulated", ">real", ">error", ">of its round")
"""Heads of a simulation's error."""

SHOWN_SHARE = 0.005
"""In the tables of a simulation's error, a phase whose error is a smaller share of its device's round is not shown."""


def show_all(summaries: list[Summary], base: Summary | None, everything: bool, notes: Sequence[str]) -> None:
    """`base`: a run of the baseline; None: the default one. `notes`: what only the runs' folders tell."""
    comparison, groups, pairs = compare(summaries, base), group(summaries, base), paired(summaries, base)
    if len(summaries) <= MOST_COLUMNS or everything:
        _print_side_by_side(comparison, everything)
    if len(summaries) > MOST_COLUMNS or (everything and len(groups) < len(summaries)):
        _print_groups(groups, base or default_baseline(summaries))
    _tell(f"All runs: {conditions(summaries)}.")
    if pairs:
        _print_pairs(pairs)
    for line in tabulate.sentences(summaries) if not everything else ():
        _tell(line)
    if everything:
        _print_profiles(profiles(summaries))
    _print_notes([*notes, *comparison.notes], everything)


def _tell(line: str) -> None:
    """A sentence, broken between words where the terminal is narrow."""
    console.print(line, highlight=False, markup=False)


def _print_side_by_side(comparison: Comparison, everything: bool) -> None:
    """Runs are columns; what is equal in all of them stands once below the table."""
    shown = [key for key in comparison.labels if key not in ("method", "run") and (everything or key in NINE)]
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in comparison.texts:
        table.add_column(escape(row["method"]), justify="right")
    equal = []
    for key in shown:
        values, label = [row[key] for row in comparison.texts], comparison.labels[key]
        if len(values) > 1 and len(set(values)) == 1 and key.partition("_")[0] not in ("best", "time"):
            equal.append(f"{label} {values[0]}")
        else:
            table.add_row(label, *map(escape, values))
    console.print(table)
    if equal:
        _tell(f"Equal in all: {'; '.join(equal)}.")
    for row in comparison.texts:  # not in the table: an id that is broken cannot be copied
        console.print(f"  {escape(row['method'])}: {escape(row['run'])}", highlight=False, soft_wrap=True)


def _print_groups(groups: list[Group], base: Summary) -> None:
    """Methods are rows. Their figures are in as many tables, one below the other, as the width needs; an interval
    stands below its mean."""
    heads = [name if name != "speed-up" else f"speed-up over {base.method}" for name, _ in tabulate.COLUMNS]
    cells = [[text(one).replace(" [", "\n[").replace(" (", "\n(") for _, text in tabulate.COLUMNS] for one in groups]
    wide = [
        max(len(line) for text in (*column, *head.split()) for line in text.split("\n"))
        for head, column in zip(heads, zip(*cells, strict=True), strict=True)
    ]
    for columns_ in _that_fit(wide, console.width):
        table = Table(
            Column(heads[0], no_wrap=True),
            *(Column(heads[i], justify="right", width=wide[i]) for i in columns_),
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        for row in cells:
            table.add_row(escape(row[0]), *(escape(row[i]) for i in columns_))
        console.print(table)
    if any(one.runs > 1 for one in groups):
        _tell("Several values: one per seed. [ ]: 95 % interval of the mean over three seeds or more.")
    restricted = f"; {tabulate.RESTRICTED}" if any(one.restricted_to_s for one in groups) else ""
    _tell(f"Times to target are interpolated between evaluations{restricted}.")


def _that_fit(widths: Sequence[int], room: int) -> list[list[int]]:
    """Indexes of columns, but the first, in tables that are no wider than `room`; the first one is in each."""
    tables: list[list[int]] = [[]]
    for index, width in enumerate(widths[1:], 1):
        used = widths[0] + sum(widths[i] + 3 for i in tables[-1])
        if tables[-1] and used + width + 7 > room:
            tables.append([])
        tables[-1].append(index)
    return tables


def _print_pairs(pairs: list[Paired]) -> None:
    heads = columns(*(name if name == "method" else f">{name}" for name, _ in tabulate.PAIRED))
    table = Table(*heads, box=SIMPLE_HEAD, title=escape(tabulate.about_pairs(pairs)))
    for each in pairs:
        table.add_row(*(escape(text(each)) for _, text in tabulate.PAIRED))
    print_whole(table)
    for line in filter(None, map(tabulate.time_in_words, pairs)):
        _tell(line)


def _print_profiles(rows: list[ProfileRow]) -> None:
    table = Table(*columns(*PROFILES), box=SIMPLE_HEAD, title="Stragglers by profile of device")
    for row in rows:
        table.add_row(*map(escape, tabulate.profile_row(row)))
    if rows:
        console.print(table)


def _print_notes(notes: Sequence[str], everything: bool) -> None:
    shown = notes if everything else notes[:MOST_NOTES]
    for note in shown:
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False)
    if len(shown) < len(notes):
        _tell(f"{counted(len(notes) - len(shown), 'more note')}; --all prints all notes, and all other figures.")


def show_sim_error(error: SimError) -> None:
    """Two tables: the rounds in a line, devices and phases in rows."""
    show(
        f"Error of the simulation over {counted(len(error.rounds), 'round')}: median {percent(error.median)}, "
        f"90th percentile {percent(error.p90)}, all rounds together {signed_percent(error.total_error)}; "
        f"{percent(error.same_cuts, 0)} of the assignments are the same"
    )
    table = Table(*columns(*ERRORS), title="Devices: medians of simulation and real run", header_style="bold")
    for row in error.devices:
        if row.phase != "whole" and abs(row.share) < SHOWN_SHARE:
            continue
        first = row.phase == "whole"
        relative = signed_percent(row.simulated_s / row.real_s - 1) if row.real_s else NONE
        table.add_row(
            escape(row.device) if first else "",
            row.phase,
            seconds(row.simulated_s),
            seconds(row.real_s),
            relative,
            signed_percent(row.share),
            style="bold" if first else "",
        )
    console.print(table)
