"""`edgebed reproduce`: computes a table of a paper and prints our figures beside the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from edgebed.errors import RunError, UsageError, counted
from edgebed.typed import nearest
from orchestrator.cli import tiers
from orchestrator.cli.arguments import BackendOption, Json
from orchestrator.cli.console import columns, console, print_json, say, show
from orchestrator.files.shipped import shipped
from orchestrator.fleet.backends import DEFAULT
from orchestrator.papers import fleet_runs, page, reproducing
from orchestrator.papers.agreement import gather
from orchestrator.papers.counted import counted as operation_counts
from orchestrator.papers.entries import Measured, Selection, printed
from orchestrator.papers.eq1 import WITHIN_SD, check_eq1
from orchestrator.papers.reproducing import Place
from orchestrator.papers.tables import SCALES, Claim, Reproduction, ScaleName, load_reproduction
from orchestrator.papers.verdicts import judge, limits, ours_of
from orchestrator.records.compare.ratios import Entry, with_range
from orchestrator.records.words.formatting import NONE, factor, number
from orchestrator.runs.find import runs_folder

TABLES = shipped("profiles") / "experiments" / "papers"
RESULTS, DOCS = Path("results"), Path("docs")

Scale = Annotated[
    str,
    typer.Option(
        metavar=f"<{'|'.join(SCALES)}>", help="Size: digits takes minutes, real hours; full is the paper's own."
    ),
]


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table, such as dtfl-table3. Without it, all tables are listed.",
            autocompletion=lambda incomplete: [path.stem for path in _tables() if path.stem.startswith(incomplete)],
        ),
    ] = None,
    scale: Scale = "digits",
    seeds: Annotated[
        str | None, typer.Option(metavar="<1,2,3>", help="Seeds.", show_default="those of the file")
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row, and the baseline. Repeatable.")
    ] = None,
    columns: Annotated[list[str] | None, typer.Option("--column", help="Only this column. Repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells that are computed at a time, each by one thread.")] = 1,
    cells: Annotated[str, typer.Option(metavar="<1/4>", help="Compute only this part of the cells.")] = "1/1",
    results: Annotated[Path, typer.Option(help="The folder of the cells' files.")] = RESULTS,
    gathered: Annotated[
        list[Path] | None, typer.Option("--gather", help="Take in the cells of another machine's folder. Repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compute the first rounds of the cells again, and compare.")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="With --check: only so many cells, drawn at random; all their rounds."),
    ] = None,
    seed: Annotated[int, typer.Option(help="With --sample: seed of the draw.")] = 0,
    write_page: Annotated[
        bool, typer.Option("--page", help="Write docs/results.md; with --check, only compare it.")
    ] = False,
    throttled: Annotated[
        bool, typer.Option("--throttled", help="Run on the throttled fleet instead of simulating it.")
    ] = False,
    backend: BackendOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute again what is there.")] = False,
    share: Annotated[
        bool, typer.Option("--share", help="Train once for cells that learn the same and differ in times alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compute a table of a paper, and print our ratios between methods beside the paper's."""
    selection = Selection(_scale(scale), parse_seeds(seeds) or (), rows or (), columns or (), parse_part(cells))
    if gathered:
        say(f"{counted(len(gather(results, gathered)), 'cell')} taken in")
    if write_page:
        _page(results, only_compare=check)
    elif check:
        _check(name, selection, results, sample, seed, jobs)
    elif name is not None:
        if share and (fresh or throttled):
            raise UsageError("--share does not work with --fresh or --throttled", hint="leave out one of them")
        at = Place(results, runs_folder() / "cells")
        _table_of(name, selection, at, jobs, throttled, backend, fresh=fresh, share=share, as_json=as_json)
    elif not gathered:
        _list()


def _table_of(
    name: str,
    selection: Selection,
    at: Place,
    most: int,
    throttled: bool,
    backend: str | None,
    *,
    fresh: bool,
    share: bool,
    as_json: bool,
) -> None:
    path = find_table(name)
    table = load_reproduction(path)
    if not table.rows and (throttled or fresh or selection != Selection()):
        raise UsageError(f"{name} takes no option but --json and --backend", hint="leave out the other options")
    if table.kind != "runs" and throttled:
        raise UsageError(f"{name} trains nothing", hint="leave out --throttled")
    match table.kind:
        case "tiers":
            tiers.command(count=7, backend=backend or DEFAULT, as_json=as_json)
        case "operations":
            _operations(table, as_json=as_json)
        case "eq1":
            _eq1(table, path, as_json=as_json)
        case _ if throttled:
            runs = runs_folder() / "reproduce"
            found = fleet_runs.measure(table, path, selection, runs, backend=backend, fresh=fresh, notify=say)
            _show(table, found, as_json=as_json)
        case _:
            found = reproducing.reproduce(table, path, selection, at, most=most, fresh=fresh, notify=say, share=share)
            _show(table, found, as_json=as_json)


def _check(name: str | None, selection: Selection, results: Path, sample: int | None, seed: int, most: int) -> None:
    """Print what the check says of each cell; the exit code is 1 where one does not hold."""
    wanted = []
    for path in [find_table(name)] if name else _tables():
        table = load_reproduction(path)
        for scale in (selection.scale,) if name else SCALES:
            if table.rows and table.at(scale) is not None:
                wanted.append((path, table, msgspec.structs.replace(selection, scale=scale)))
    at = Place(results, runs_folder() / "cells-check")
    found = reproducing.check(wanted, at, sample=sample, seed=seed, most=most, notify=say)
    for each in found:
        show(f"{each.name}: {each.why or 'agrees'}")
    _refuse(
        [each.name for each in found if each.why],
        "cells that do not hold",
        "`edgebed reproduce TABLE` computes them again; if no figure was meant to change, mend the code",
    )


def _page(results: Path, *, only_compare: bool) -> None:
    """Write the page and its pictures, or say where it differs from the cells."""
    made = page.make(results, list(_tables()))
    wrong = page.differences(made, DOCS) if only_compare else []
    if not only_compare:
        for path in page.write(made, DOCS):
            say(f"written: {path}")
    for line in [*made.refused, *wrong]:
        show(line)
    again = "take edited ones from git again; `edgebed reproduce TABLE` computes the others again"
    _refuse(made.refused, "cells that do not count", again)
    _refuse(wrong, "lines of the page that the cells do not give", "`edgebed reproduce --page` writes it again")


def _refuse(wrong: Sequence[object], what: str, hint: str) -> None:
    if wrong:
        raise RunError(f"{what}: {len(wrong)}", hint=hint)


def _scale(text: str) -> ScaleName:
    for scale in SCALES:
        if scale == text:
            return scale
    raise UsageError(f"there is no scale {text!r}{nearest(text, SCALES)}", hint=f"choose one of: {', '.join(SCALES)}")


def parse_part(text: str) -> tuple[int, int]:
    """`2/4` is the second of four parts."""
    number, _, of = text.partition("/")
    if not (len(text) < 20 and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UsageError(f"--cells {text!r} is not a part", hint="give the part and the number of parts: 1/4 to 4/4")
    return int(number), int(of)


def find_table(name: str) -> Path:
    """The file of a table, given its name or path. Raises UsageError with the known names."""
    for path in (TABLES / f"{name}.yaml", Path(name)):
        if path.is_file():
            return path
    known = [path.stem for path in _tables()]
    raise UsageError(f"there is no table {name!r}{nearest(name, known)}", hint=f"choose one of: {', '.join(known)}")


def parse_seeds(text: str | None) -> list[int] | None:
    try:
        return None if text is None else list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--seeds {text!r} is not a list of whole numbers", hint="write 1,2,3") from None


def _tables() -> Iterator[Path]:
    yield from sorted(TABLES.glob("*.yaml"))


def _list() -> None:
    out = Table(title="Tables that can be reproduced")
    for heading in ("name", "what", "source"):
        out.add_column(heading, overflow="fold")
    for path in _tables():
        table = load_reproduction(path)
        out.add_row(*map(escape, (path.stem, table.title, table.source)))
    console.print(out)


def _operations(table: Reproduction, *, as_json: bool) -> None:
    """FedPMT's table II: counted operations, which must be equal to the printed ones."""
    found = operation_counts(table)
    if as_json:
        ours, paper = ({label: [pair[i] for pair in pairs] for label, pairs in found.items()} for i in (0, 1))
        print_json({"ours": ours, "paper": paper})
        return
    heads = columns(">network", ">layers without backward", ">ours", ">paper", ">")
    out = Table(*heads, title=escape(table.title))
    for label, pairs in found.items():
        for layers, (own, theirs) in enumerate(pairs):
            out.add_row(escape(label), str(layers), f"{own}", f"{theirs}", "equal" if own == theirs else "DIFFERS")
    console.print(out)


def _eq1(table: Reproduction, path: Path, *, as_json: bool) -> None:
    """S²FL's table 3: figures that follow from eq. 1 and the number of rounds."""
    checks = check_eq1(table, path)
    if as_json:
        print_json([{**msgspec.to_builtins(check), "agrees": check.agrees} for check in checks])
        return
    caption = f"seconds agree within {WITHIN_SD:g} standard deviations of the draws"
    out = Table(title=escape(table.title), caption=caption)
    for heading in ("method", "what", "rounds", "ours", "paper", ""):
        out.add_column(heading, justify="right")
    for check in checks:
        ours = f"{check.ours:.0f}" + (f" ± {check.sd:.0f}" if check.sd else "")
        verdict = ("equal" if not check.sd else "agrees") if check.agrees else "DIFFERS"
        out.add_row(escape(check.method), escape(check.what), str(check.rounds), ours, f"{check.paper:.0f}", verdict)
    console.print(out)


def _show(table: Reproduction, found: Measured, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"title": table.title, "how": found.how, "scale": found.about, "tables": msgspec.to_builtins(found.tables)}
        )
        return
    for quantity, entries in found.tables.items():
        console.print(_table(f"{table.title} – {quantity}, {found.how}", entries, table.baseline))
    show(f"Scale: {found.about}")
    if found.saved:
        show(f"{found.saved}.")
    for claim in table.expects:
        show(f"The paper claims: {claim if isinstance(claim, str) else _judged(claim, table, found)}")


def _judged(claim: Claim, table: Reproduction, found: Measured) -> str:
    """The claim, its verdict, and the ratios that the verdict follows from."""
    columns = list(dict.fromkeys(entry.column for entry in found.tables[claim.quantity]))
    values, paper = found.values[claim.quantity], printed(table, claim.quantity)
    verdict = judge(claim, table.baseline, columns, values, paper, found.seeds)
    if verdict is None:
        return f"{claim.text}: cannot be told, no cell is there"
    pairs = "; ".join(f"{pair.row}, {pair.column}: {ours_of(pair)}" for pair in verdict.pairs)
    return f"{claim.text}: {verdict.word} ({limits(claim, claim.than or table.baseline)}; {pairs})"


def _table(title: str, entries: Sequence[Entry], baseline: str) -> Table:
    out = Table(title=escape(title), caption=f"ours: mean of the seeds that have it, and × {escape(baseline)}")
    out.add_column("")
    columns = list(dict.fromkeys(entry.column for entry in entries))
    for column in columns:
        out.add_column(escape(column), justify="right", overflow="fold")
    for row in dict.fromkeys(entry.row for entry in entries):
        by_column = {entry.column: entry for entry in entries if entry.row == row}
        out.add_row(escape(row), *(text_of(by_column[column]) for column in columns))
        out.add_row("  paper", *(paper_of(by_column[column]) for column in columns), style="dim")
    return out


def text_of(entry: Entry) -> str:
    if entry.mean is None:
        return f"0 of {entry.runs}" if entry.runs else "not run"
    text = number(entry.mean)
    if entry.ratio is not None:
        text += f"  {factor(entry.ratio)}"
    text = with_range(text, entry.low, entry.high)
    return text if entry.reached == entry.runs else f"{text} ({entry.reached} of {entry.runs})"


def paper_of(entry: Entry) -> str:
    if entry.paper is None:
        return NONE
    return number(entry.paper) + ("" if entry.paper_ratio is None else f"  {factor(entry.paper_ratio)}")
