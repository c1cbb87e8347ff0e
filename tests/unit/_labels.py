"""Labels that the program prints, gathered from the code that prints them; and the names that a page explains. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from orchestrator.cli import comparison_tables
from orchestrator.records.account import summarise
from orchestrator.records.compare import comparison, tabulate
from orchestrator.records.summary import Summary
from orchestrator.records.timeline import board
from orchestrator.records.types import HostIndex
from orchestrator.records.words import vocabulary
from orchestrator.report import charts, page, tables
from tests.summaries import changed, summarised
from tests.synthetic import Synthetic

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "orchestrator" / "dashboard" / "static"


def of_comparisons() -> set[str]:
    """Rows and columns of the tables that `run` and `compare` print, and that `--latex` writes."""
    columns = [*comparison.COLUMNS.values()]
    texts = [comparison_tables.PROFILES, comparison_tables.ERRORS, vocabulary.CALIBRATION]
    heads = {head.removeprefix(">") for each in texts for head in each}
    written = {name for table in (tabulate.COLUMNS, tabulate.PAIRED) for name, _ in table}
    return {column.label for column in columns} | heads | written | {"round, paired ratio"}


def of_commands() -> set[str]:
    """Columns of the tables of all commands: texts that are given to `columns`, `Table` and `add_column`, or that stand
    in a tuple called `heads`."""
    found: set[str] = set()
    for path in sorted((ROOT / "orchestrator" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found.update(_heads(node))
    return {head.removeprefix(">") for head in found} - {"", "…"}


def _heads(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Name(id="columns" | "Table"), args=args):
            yield from _texts(args)
        case ast.Call(func=ast.Attribute(attr="add_column"), args=args):
            yield from _texts(args)
        case ast.Assign(targets=[ast.Name(id="heads")], value=ast.Tuple(elts=elts)):
            yield from _texts(elts)
        case ast.For(target=ast.Name(id="heading"), iter=ast.Tuple(elts=elts)):
            yield from _texts(elts)


def _texts(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """Texts, also those that a generator repeats (`f">tier {n}"`), with … for what is filled in."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=values) if any(isinstance(part, ast.Constant) for part in values):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in values)
            case ast.Starred(value=ast.GeneratorExp(elt=elt)):
                yield from _texts([elt])


def of_words() -> set[str]:
    """Words that stand in the cells of tables and in legends: phases, causes, events, quantities of the calibration."""
    words = [
        *map(vocabulary.phase, vocabulary.PHASES),
        *(*vocabulary.CAUSES.values(), vocabulary.NO_CAUSE),
        *(*vocabulary.DISTURBANCES.values(), vocabulary.disturbances([])),
        *(*vocabulary.BOUNDS.values(), *vocabulary.WAITED_FOR.values()),
        *(*vocabulary.EVENTS.values(), *vocabulary.BOARD_MARKS.values(), *vocabulary.RULES.values()),
        *(quantity for quantity, _ in vocabulary.MEASURED.values()),
    ]
    return set(words)


def of_the_report() -> set[str]:
    """Marks, tiles, headings, charts and columns of `report.html`; … stands for figures and names."""
    summary = summarise(Synthetic(facts=True).records)
    tiles = {label for each in (summary, changed(summary, test_accuracy=0.5)) for label, _ in tables.tiles(each)}
    template = (ROOT / "orchestrator" / "report" / "report.html.j2").read_text(encoding="utf-8")
    heads = {text for head in re.findall(r"table\(\[(.*?)\]", template) for text in re.findall(r'"([^"]+)"', head)}
    parts = re.findall(r"<(?:th|h2)>([^<{]+)</", template)
    rows = {*tables.ROUND_COLUMNS, *tables.BOARD_COLUMNS, *board.BOARD_COLUMNS}
    open_tiles = {re.sub(r"\d[\d.]*%", "…%", tile) for tile in tiles}
    return open_tiles | heads | {*parts} | rows | _titles() | set(_marks(summary))


def _titles() -> set[str]:
    """Titles of charts in `charts.py`: the first argument of `chart`, and what is called `title`."""
    found: set[str] = {title for title, _ in charts.OVER.values()}
    for node in ast.walk(ast.parse(Path(charts.__file__).read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="chart" | "_per_round"), args=[ast.Constant(value=str(title)), *_]):
                found.add(title)
            case ast.Assign(targets=[ast.Name(id="title")], value=ast.Constant(value=str(title))):
                found.add(title)
            case ast.keyword(arg="title", value=ast.Constant(value=str(title))):
                found.add(title)
            case ast.Dict(keys=keys, values=values):
                titles = (
                    v for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant) and k.value == "title"
                )
                found.update(v.value for v in titles if isinstance(v, ast.Constant) and isinstance(v.value, str))
    return found


def _marks(summary: Summary) -> Iterator[str]:
    slow = HostIndex("core", 0.6, 0.01, 0.0)
    worlds = [
        changed(summary, timeline_residual_max=0.0, calibrated=True),
        changed(summary, timeline_residual_max=0.05, calibrated=False, speed="core", host_index=slow),
        changed(summary, speed="host", host_index=msgspec.structs.replace(slow, index=1.0), unlimited=["a"]),
        changed(summary, enforcement="unlimited", batches_in_quota_share=0.5, grain="pacing"),
        changed(summary, enforcement="simulated", costs="flops"),
    ]
    for world in worlds:
        for text, _, _ in page.badges(world):
            yield re.sub(r"(: | (?=\d)).*", r"\1…", text)


def of_the_live_page() -> set[str]:
    """Titles of charts, figures on top, and columns of the fleet."""
    scripts = {path.name: path.read_text(encoding="utf-8") for path in STATIC.glob("*.js")}
    titles = {title for text in scripts.values() for title in re.findall(r'new (?:Chart|Rows)\("([^"]+)"', text)}
    top = scripts["run.js"].partition("drawFigures() {")[2].partition("];")[0]
    figures = {open_script(label) for label in re.findall(r'\[["`]([^"`]+)["`], ', top)}
    fleet = scripts["fleet.js"].partition("COLUMNS = [")[2].partition("];")[0]
    return titles | figures | {*re.findall(r'\["([^"]+)", "', fleet)}


def open_script(text: str) -> str:
    return re.sub(r"\$\{.*?\}", "…", text)


def of_the_summary() -> set[str]:
    """Keys of `summary.json`."""
    return set(summarised(Synthetic().records))


def explained(text: str) -> set[str]:
    """Names in the first cells of a page's tables, where a further cell says something: those in backticks, else the
    words of the cell, whole and between its commas."""
    found: set[str] = set()
    for line in text.splitlines():
        first, *rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
        if not line.startswith("|") or not any(rest) or set(first) <= set("-"):
            continue
        quoted = re.findall(r"`([^`]+)`", first)
        found.update(quoted or (first, *first.split(", ")))
    return found


# ---- notes ----


def printed_notes() -> list[str]:
    """Every note that `compare` can print, made by runs that deserve it."""
    plain = summarise(Synthetic(facts=True).records)
    slow, quick = HostIndex("core", 0.6, 0.01, 0.0), HostIndex("core", 1.0, 0.01, -0.1)
    doubtful = [
        changed(plain, enforcement="software", calibrated=False),
        changed(plain, enforcement="simulated", costs="flops"),
        changed(plain, late_rounds=2, speed="core", early_s={"weak": 0.1}, reference_s={"recorded": 1.0, "index": 1.0}),
        changed(plain, speed="host", host_index=slow, grain="quota", batches_in_quota_share=0.5),
        changed(plain, timeline_residual_max=0.05, unlimited=["weak"]),
        changed(plain, disturbed_rounds=1, disturbed=[["rival"], *[[]] * (len(plain.rounds) - 1)]),
        changed(
            plain, server_note=vocabulary.server_note(2.0, None), threads_note=vocabulary.threads_note(2.0, {"x": 4.0})
        ),
        changed(
            plain, server_note=vocabulary.server_note(2.0, 2.0), threads_note=vocabulary.threads_note(1.0, {"x": 4.0})
        ),
    ]
    real = {name: f"pi-{name}" for name in plain.profiles}
    together = [
        [changed(plain, dilation=2.0), changed(plain, dilation=3.0)],
        [changed(plain, speed="host", host_index=each, run=str(each.index)) for each in (slow, quick)],
        [plain, summarise(Synthetic(method="fedavg").records)],
        [changed(plain, real_boards=real), changed(plain, look_alikes=real, run="second")],
    ]
    return [note for runs in (*([each] for each in doubtful), *together) for note in comparison.compare(runs).notes]


def literal_pieces(function: str) -> list[str]:
    """Pieces of at least three words of the texts in a function of `comparison.py`."""
    tree = ast.parse(Path(comparison.__file__).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    texts = (node.value for node in ast.walk(found) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [text for text in texts if len(text.split()) >= 3 and text != ast.get_docstring(found)]


def documented_notes(text: str) -> list[re.Pattern[str]]:
    """The notes that a page lists under "Notes", as patterns: … is anything."""
    part = text.partition("\n## Notes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
    return [re.compile(".*".join(map(re.escape, row.split("…")))) for row in rows]
