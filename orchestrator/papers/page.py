"""The page docs/results.md and its pictures, from the cells under `results/` and the list of the papers' tables.

No figure stands on the page that no fresh cell supports: `differences` compares a page with what the cells give.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from edgebed.errors import counted
from orchestrator.files.output import keep
from orchestrator.files.shipped import shipped
from orchestrator.files.yaml_file import convert, load_yaml
from orchestrator.papers.cells import FOLDER, Cell, Damaged, kept, outcome, place_of, read_cell, saved_by
from orchestrator.papers.counted import counted as operation_counts
from orchestrator.papers.entries import Selection, Values, about, printed, tables_of, values_of, wanted_jobs
from orchestrator.papers.eq1 import check_eq1
from orchestrator.papers.tables import (
    SCALES,
    Claim,
    Reproduction,
    Scale,
    ScaleName,
    claims_of,
    load_reproduction,
    scaled,
    slug,
)
from orchestrator.papers.verdicts import RULES, Line, Pair, Verdict, judge, limits, ours_of, paper_of
from orchestrator.records.compare.ratios import Entry, with_range
from orchestrator.records.words.formatting import NONE, fixed, number, size

PAGE, PICTURES = "results.md", "results"
EXACT = {"fedpmt-table2", "s2fl-eq1"}
"""Tables that are arithmetic."""

HEAD = """\
# Results beside the papers'

This page is made from the files under `results/` by `edgebed reproduce --page`, and holds no other figures. Each of
those files is a *cell*: one run of a row and column of a paper's table with one seed, simulated with counted costs
([reproduce](reproduce.md)). Measurements on throttled devices are in [evidence](evidence/limits.md).

Scales: `digits` is a small network on easy data, mostly the digits of scikit-learn, so its verdicts are not about the
paper's data. `real` is MNIST or CIFAR-10 (JPEG), with the paper's network or a smaller relative; `full` is the paper's
own. The section of a table says what is the same as in the paper.
"""


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table or figure of a paper. `files`: of ours; `instead`: why there is no result, or where it is; `hours`: of
    a seed on one core, estimated."""

    paper: str
    name: str
    what: str
    files: list[str] = []
    instead: str = ""
    hours: str = ""


class Part(msgspec.Struct, frozen=True):
    """The cells of a table at a scale that count, out of `wanted`, and what follows from them."""

    name: str
    table: Reproduction
    scale: ScaleName
    at: Scale
    about: str
    cells: list[Cell]
    wanted: int
    values: Values
    tables: dict[str, list[Entry]]

    @property
    def command(self) -> str:
        return f"edgebed reproduce {self.name} --scale {self.scale}"


class Picture(msgspec.Struct, frozen=True):
    """A forest plot: its file, its title, and its lines by panel."""

    file: str
    title: str
    panels: dict[str, list[Line]]

    @property
    def mark(self) -> str:
        """Identifies its figures."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class Made(msgspec.Struct, frozen=True):
    """A page. `refused`: files that do not count, and why."""

    text: str
    parts: list[Part]
    pictures: list[Picture]
    refused: list[str]


def make(results: Path, tables: Sequence[Path]) -> Made:
    """The page of all cells under `results`. `tables`: the files of the tables."""
    parts: list[Part] = []
    refused = [f"{path}: there is no such table or scale" for path in _strange(results, tables)]
    others: list[str] = []
    for path in tables:
        table = load_reproduction(path)
        others += _exact_lines(path, table)
        for scale in SCALES if table.rows else ():
            part = _part(results, path, table, scale, refused)
            parts += [part] if part is not None else []
    of_papers = _pictures_of_papers(parts)
    pictures = [*of_papers, *(_picture(part) for part in parts)]
    return Made("\n".join(_text(parts, others, of_papers)), parts, pictures, refused)


def write(made: Made, docs: Path) -> list[Path]:
    """Write the page and its pictures; returns their paths. Pictures without cells are removed."""
    from orchestrator.papers.forest import forest  # matplotlib takes a second, and every command imports this file

    folder = docs / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(folder.glob("*.svg")) - {folder / each.file for each in made.pictures}:
        old.unlink()
    for each in made.pictures:
        keep(folder / each.file, forest(each.title, each.panels, each.mark))
    keep(docs / PAGE, made.text.encode())
    return [docs / PAGE, *(folder / each.file for each in made.pictures)]


def differences(made: Made, docs: Path) -> list[str]:
    """Lines of the page that the cells do not give, or that it lacks; and pictures of other figures."""
    page = docs / PAGE
    there = page.read_text().splitlines() if page.exists() else []
    found = [
        f"{page}: {line[0]} {line[2:]}"
        for line in difflib.ndiff(there, made.text.splitlines())
        if line[0] in "+-" and line[2:].strip()
    ]
    for each in made.pictures:
        picture = docs / PICTURES / each.file
        if not picture.exists() or each.mark not in picture.read_text():
            found.append(f"{picture}: is not the picture of these cells")
    return found


# ---- pictures ----


def _picture(part: Part) -> Picture:
    """All ratios of a table; those of the baseline are 1, and left out."""
    several = len(part.at.columns) > 1
    panels = {
        f"{name} ÷ {part.table.baseline}": [
            Line(
                f"{each.row}, {each.column}" if several else each.row, each.ratio, each.low, each.high, each.paper_ratio
            )
            for each in entries
            if each.ratio is not None and each.row != part.table.baseline
        ]
        for name, entries in part.tables.items()
    }
    return Picture(f"{part.name}-{part.scale}.svg", part.table.title, panels)


def _pictures_of_papers(parts: Sequence[Part]) -> list[Picture]:
    """For each paper the ratios of all its claims."""
    papers = {name: each.paper for each in listed() for name in each.files}
    lines: dict[str, list[Line]] = {}
    for part, verdict in _judged(parts):
        if part.name in papers:
            own = [_line(part, verdict.claim, pair) for pair in verdict.pairs]
            lines.setdefault(papers[part.name], []).extend(line for line in own if line is not None)
    return [
        Picture(
            f"{slug(paper)}.svg", f"{paper}: the claims with a rule", {"ratio of each claim": list(dict.fromkeys(own))}
        )
        for paper, own in lines.items()
        if own
    ]


def _line(part: Part, claim: Claim, pair: Pair) -> Line | None:
    what = f"{part.name} ({part.scale}), {claim.quantity}: {pair.row} ÷ {claim.than or part.table.baseline}"
    text = f"{what}, {pair.column}" if len(part.at.columns) > 1 else what
    return None if pair.ratio is None else Line(text, pair.ratio, pair.low, pair.high, pair.paper)


# ---- cells ----


def _strange(results: Path, tables: Sequence[Path]) -> list[Path]:
    known = {path.stem for path in tables}
    folders = [path for path in results.glob("*") if path.is_dir() and path.name not in {FOLDER, *known}]
    of_tables = [path for name in known for path in (results / name).glob("*")]
    return sorted(folders + [path for path in of_tables if path.is_dir() and path.name not in SCALES])


def _part(results: Path, path: Path, table: Reproduction, scale: ScaleName, refused: list[str]) -> Part | None:
    """The part of a table's page at a scale; None: no cell of it counts. Files that do not count are added to
    `refused`."""
    files, at = set((results / path.stem / scale).glob("*.json")), table.at(scale)
    if not files or at is None:
        refused += [f"{file}: the table has no such scale" for file in sorted(files)]
        return None
    seeds = {cell.seed for file in files if (cell := _readable(file)) and results / place_of(cell) == file}
    found = []
    wanted = wanted_jobs(table, path, Selection(scale, sorted(seeds | set(at.seeds))))
    for job in wanted:
        there = kept(results, path.stem, scale, job, path)
        files.discard(there.path)
        if there.cell is not None and not there.why:
            found.append((job, there.cell))
        elif there.path.exists():
            refused.append(there.told)
    refused += [f"{file}: the table has no such cell" for file in sorted(files)]
    if not found:
        return None
    at = scaled(table, scale)
    values = values_of(table, at, [(job, outcome(cell)) for job, cell in found])
    words = about(at, [job for job, _ in found], simulated=True)
    cells = [cell for _, cell in found]
    return Part(path.stem, table, scale, at, words, cells, len(wanted), values, tables_of(table, at, values))


def _readable(file: Path) -> Cell | None:
    try:
        return read_cell(file)
    except Damaged:
        return None


# ---- text ----


def _text(parts: Sequence[Part], others: Sequence[str], of_papers: Sequence[Picture]) -> Iterator[str]:
    yield HEAD
    yield f"## Rules for a verdict\n\n{RULES}\n"
    yield "## Claims\n"
    yield "`edgebed reproduce TABLE --scale SCALE` computes a line again (an exact one without `--scale`).\n"
    yield "| claim | verdict | paper | ours | scale | table |\n|---|---|---|---|---|---|"
    yield from others
    judged = sorted(_judged(parts), key=lambda each: SCALES.index(each[0].scale), reverse=True)
    yield from (_claim_line(part, verdict) for part, verdict in judged)
    if not judged and not others:
        yield "| no cell is there yet | | | | | |"
    yield from (f"\n![{each.title}]({PICTURES}/{each.file})" for each in of_papers)
    yield "\n## All tables and figures\n"
    yield "| paper | | what | state | core hours of a seed (estimated) |\n|---|---|---|---|---|"
    for each in listed():
        state = _state(each, parts)
        yield f"| {each.paper} | {each.name} | {each.what} | {state} | {each.hours or NONE} |"
    for part in parts:
        yield from _section(part)


def listed() -> list[Listed]:
    """All tables and figures of the papers."""
    path = shipped("profiles") / "paper-tables.yaml"
    return convert(load_yaml(path), dict[str, list[Listed]], path)["tables"]


def _judged(parts: Sequence[Part]) -> Iterator[tuple[Part, Verdict]]:
    for part in parts:
        for claim in claims_of(part.table):
            values, paper = part.values[claim.quantity], printed(part.table, claim.quantity)
            verdict = judge(claim, part.table.baseline, list(part.at.columns), values, paper, part.at.seeds)
            if verdict is not None:
                yield part, verdict


def _claim_line(part: Part, verdict: Verdict) -> str:
    claim = verdict.claim
    told = [(_name(pair, verdict), pair) for pair in verdict.pairs]
    ours = "<br>".join(f"{name}: {ours_of(pair)}" for name, pair in told)
    paper = "<br>".join(f"{name}: {paper_of(pair)}" for name, pair in told if pair.paper is not None) or NONE
    rule = f"{claim.quantity}: {limits(claim, claim.than or part.table.baseline)}"
    title = part.table.title.partition(":")[0]
    return f"| {title}: {claim.text} ({rule}) | **{verdict.word}** | {paper} | {ours} | {part.scale} | `{part.name}` |"


def _name(pair: Pair, verdict: Verdict) -> str:
    """What tells it from the other pairs of its verdict."""
    if len({each.row for each in verdict.pairs}) == 1:
        return pair.column
    return pair.row if len({each.column for each in verdict.pairs}) == 1 else f"{pair.row}, {pair.column}"


def _exact_lines(path: Path, table: Reproduction) -> list[str]:
    """The verdict on a table that is arithmetic."""
    match table.kind:
        case "operations":
            agree = [own == paper for pairs in operation_counts(table).values() for own, paper in pairs]
        case "eq1":
            agree = [check.agrees for check in check_eq1(table, path)]
        case _:
            return []
    word = "holds" if all(agree) else "does not hold"
    return [
        f"| {table.title}: as printed | **{word}** | {len(agree)} figures | {sum(agree)} agree | exact "
        f"| `{path.stem}` |"
    ]


def _state(each: Listed, parts: Sequence[Part]) -> str:
    """What is there of a table: cells, a place elsewhere, why there is none, or the command that would compute it."""
    own = [part for part in parts if part.name in each.files]
    states = [f"{part.scale}: {_count(part)}; {_words(part)}`{part.command}`" for part in own]
    if not states and (each.instead or EXACT & set(each.files)):
        return each.instead or "arithmetic, see the claims"
    left = [f"`edgebed reproduce {name}`" for name in each.files if name not in {part.name for part in own}]
    return "; ".join(states + ([f"not run: {', '.join(left)}"] if left else []))


def _words(part: Part) -> str:
    """How many of its claims hold, do not, and cannot be told."""
    words = Counter(verdict.word for _, verdict in _judged([part]))
    return f"claims: {', '.join(f'{word} {count}' for word, count in sorted(words.items()))}; " if words else ""


def _count(part: Part) -> str:
    seeds = sorted({cell.seed for cell in part.cells})
    hours = sum(cell.made.cpu_hours for cell in part.cells)
    cells = counted(part.wanted, "cell")
    count = f"{len(part.cells)} of {cells}" if len(part.cells) < part.wanted else cells
    text = f"{count}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}, {number(hours, 2)} CPU hours"
    saved = saved_by(part.cells)
    return f"{text}, {saved}" if saved else text


def _section(part: Part) -> Iterator[str]:
    made = [cell.made for cell in part.cells]
    dates, commits = _all(each.date for each in made), _all(each.commit or "unknown" for each in made)
    simd, costs = ", ".join(_all(each.torch_simd for each in made)), _all([made[0].costs])[0]
    disk = [each.disk_mib for each in made if each.disk_mib is not None]
    on_disk = f" and {max(disk)} MiB of disk" if disk else ""
    yield f"\n## {part.table.title} (scale {part.scale})\n"
    yield f"{part.about}\n"
    yield (
        f"{_count(part)}, at most {max(each.memory_mib for each in made)} MiB of memory{on_disk} each; computed "
        f"{dates[0]} to {dates[-1]} at commit {', '.join(commits)}, vector units {simd}, costs: {costs}. "
        f"`{part.command}`\n"
    )
    yield f"![Ratios with their intervals]({PICTURES}/{_picture(part).file})\n"
    yield '<details markdown="1"><summary>All figures</summary>\n'
    for name, entries in part.tables.items():
        yield from _entries(name, [entry for entry in entries if entry.runs], part.table.baseline)
    yield "</details>"


def _all(texts: Iterable[str]) -> list[str]:
    """Each once, in order. They come from files, perhaps of others: what a page may read as markup becomes spaces."""
    return sorted({re.sub(r"[^\w .,:;()+/=-]", " ", each) for each in texts})


def _entries(name: str, entries: Sequence[Entry], baseline: str) -> Iterator[str]:
    """The figures of rows and columns of which something was run."""
    columns = list(dict.fromkeys(entry.column for entry in entries))
    show = size if name.startswith("bytes") else number
    yield f"`{name}`: mean of the seeds that have it, and ÷ {baseline}; below it the paper's.\n"
    yield f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    for row in dict.fromkeys(entry.row for entry in entries):
        own = {entry.column: _both(entry, show) for entry in entries if entry.row == row}
        yield f"| {row} | {' | '.join(own.get(column, 'not run') for column in columns)} |"
    yield ""


def _both(entry: Entry, show: Callable[[float], str]) -> str:
    if entry.paper is None:
        return _ours(entry, show)
    ratio = "" if entry.paper_ratio in (None, 1) else f", {fixed(entry.paper_ratio or 0, 2)}"
    return f"{_ours(entry, show)}<br>{show(entry.paper)}{ratio}"


def _ours(entry: Entry, show: Callable[[float], str]) -> str:
    if entry.mean is None:
        return f"0 of {entry.runs}"
    text = show(entry.mean)
    if entry.ratio is not None and (entry.low is not None or entry.ratio != 1):
        text += f", {fixed(entry.ratio, 2)}"
    text = with_range(text, entry.low, entry.high)
    return text if entry.reached == entry.runs else f"{text} ({entry.reached} of {entry.runs})"
