"""`edgebed reproduce`: computes a table of a paper and prints our figures beside the printed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from edgebed.errors import UsageError
from edgebed.models import operations
from edgebed.typed import nearest
from orchestrator.cli import tiers
from orchestrator.cli.arguments import Json
from orchestrator.cli.console import columns, console, print_json, say, show
from orchestrator.files.shipped import shipped
from orchestrator.fleet.backends import DEFAULT, choices
from orchestrator.papers.measure import Measured, measure
from orchestrator.papers.tables import Reproduction, load_reproduction
from orchestrator.records.compare.ratios import Cell
from orchestrator.records.words.formatting import NONE, factor, fixed, number
from orchestrator.runs.find import runs_folder

TABLES = shipped("profiles") / "experiments" / "papers"


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table, such as dtfl-table3. Without it, all tables are listed.",
            autocompletion=lambda incomplete: [path.stem for path in _tables() if path.stem.startswith(incomplete)],
        ),
    ] = None,
    real: Annotated[bool, typer.Option(help="Run on the throttled fleet instead of simulating it.")] = False,
    backend: Annotated[str | None, typer.Option(help=f"With --real: {choices()}.")] = None,
    full: Annotated[bool, typer.Option(help="The paper's own size instead of the file's `scale`.")] = False,
    seeds: Annotated[str | None, typer.Option(help="Seeds, comma-separated. Default: those of the file.")] = None,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only these rows (and the baseline).")] = None,
    columns: Annotated[list[str] | None, typer.Option("--column", help="Only these columns.")] = None,
    fresh: Annotated[bool, typer.Option(help="Repeat runs that already exist.")] = False,
    as_json: Json = False,
) -> None:
    """Do the runs for a table of a paper, and print our ratios between methods beside the paper's."""
    if name is None:
        _list()
        return
    path = find_table(name)
    table = load_reproduction(path)
    if table.kind != "runs" and (real or full or fresh or seeds or rows or columns):
        raise UsageError(f"{name} takes no option but --json and --backend", hint="leave out the other options")
    match table.kind:
        case "tiers":
            tiers.command(backend=backend or DEFAULT, as_json=as_json)
        case "operations":
            _operations(table, as_json=as_json)
        case _:
            found = measure(
                table,
                path,
                runs_folder() / "reproduce",
                real=real,
                backend=backend,
                full=full,
                fresh=fresh,
                seeds=parse_seeds(seeds),
                rows=rows,
                columns=columns,
                notify=say,
            )
            _show(table, found, as_json=as_json)


def find_table(name: str) -> Path:
    """The file of a table, given its name or path. Raises UsageError with the known names."""
    for path in (TABLES / f"{name}.yaml", Path(name)):
        if path.is_file():
            return path
    known = [path.stem for path in _tables()]
    raise UsageError(f"there is no table {name!r}{nearest(name, known)}", hint=f"choose one of: {', '.join(known)}")


def parse_seeds(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds {text!r}", hint="give whole numbers separated by commas: 1,2,3") from None


def _tables() -> Iterator[Path]:
    yield from sorted(TABLES.glob("*.yaml"))


def _list() -> None:
    out = Table(title="Tables that can be reproduced")
    for heading in ("name", "what", "source"):
        out.add_column(heading, overflow="fold")
    for path in _tables():
        table = load_reproduction(path)
        out.add_row(path.stem, table.title, table.source)
    console.print(out)


def _operations(table: Reproduction, *, as_json: bool) -> None:
    """FedPMT's table II: counted operations, which must be equal to the printed ones."""
    ours = {
        label: [count(number) for number in range(len(figures["operations"]))]
        for label, count in COUNTS.items()
        if (figures := table.figures.get(label))
    }
    paper = {label: table.figures[label]["operations"] for label in ours}
    if as_json:
        print_json({"ours": ours, "paper": paper})
        return
    heads = columns(">network", ">layers without backward", ">ours", ">paper", ">")
    out = Table(*heads, title=table.title)
    for label, counts in ours.items():
        for layers, (own, printed) in enumerate(zip(counts, paper[label], strict=True)):
            out.add_row(label, str(layers), f"{own}", f"{printed}", "equal" if own == printed else "DIFFERS")
    console.print(out)


COUNTS: dict[str, Callable[[int], int]] = {
    "fcnn batch 12": lambda n: operations.fcnn_operations(operations.FCNN_WIDTHS, 12, n),
    "cnn-mnist batch 12": lambda n: operations.cnn_operations(
        operations.MNIST_CONVOLUTIONS, operations.MNIST_WIDTHS, 12, n
    ),
    "cnn-cifar batch 20": lambda n: operations.cnn_operations(
        operations.CIFAR10_COUNTED_CONVOLUTIONS,
        operations.CIFAR10_WIDTHS,
        20,
        n,
        operations.cifar10_error_signals(operations.CIFAR10_WIDTHS),
    ),
}


def _show(table: Reproduction, found: Measured, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"title": table.title, "how": found.how, "scale": found.about, "tables": msgspec.to_builtins(found.tables)}
        )
        return
    for quantity, cells in found.tables.items():
        console.print(_table(f"{table.title} – {quantity}, {found.how}", cells, table.baseline))
    show(f"Scale: {found.about}")
    for claim in table.expects:
        show(f"The paper claims: {claim}")


def _table(title: str, cells: Sequence[Cell], baseline: str) -> Table:
    out = Table(title=escape(title), caption=f"ours: mean of the seeds that reached it, and × {escape(baseline)}")
    out.add_column("")
    columns = list(dict.fromkeys(cell.column for cell in cells))
    for column in columns:
        out.add_column(escape(column), justify="right", overflow="fold")
    for row in dict.fromkeys(cell.row for cell in cells):
        by_column = {cell.column: cell for cell in cells if cell.row == row}
        out.add_row(escape(row), *(text_of(by_column[column]) for column in columns))
        out.add_row("  paper", *(paper_of(by_column[column]) for column in columns), style="dim")
    return out


def text_of(cell: Cell) -> str:
    if cell.mean is None:
        return "not reached"
    text = number(cell.mean)
    if cell.ratio is not None:
        text += f"  {factor(cell.ratio)}"
    if cell.low is not None and cell.high is not None:
        text += f" [{fixed(cell.low, 2)}, {fixed(cell.high, 2)}]"
    return text if cell.reached == cell.runs else f"{text} ({cell.reached} of {cell.runs})"


def paper_of(cell: Cell) -> str:
    if cell.paper is None:
        return NONE
    return number(cell.paper) + ("" if cell.paper_ratio is None else f"  {factor(cell.paper_ratio)}")
