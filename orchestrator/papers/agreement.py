"""When two cells of one experiment agree, and the taking in of another machine's cells, which must."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isclose
from pathlib import Path

import msgspec

from edgebed.errors import UsageError
from orchestrator.files.output import keep
from orchestrator.papers.cells import FOLDER, Cell, Damaged, FirstRounds, place_of, read_cell, same_settings, write_cell
from orchestrator.papers.entries import FreeValues
from orchestrator.records.compare.quantities import RunFigures

NORM_TOLERANCE, ACCURACY_TOLERANCE, TIME_TOLERANCE, VALUE_TOLERANCE = 1e-4, 0.02, 0.01, 0.01
"""How far two cells of one experiment may differ where the CPUs have other vector units (`torch_simd`): the norms of
the first rounds' weights, the seconds of a round and values without a run relatively, accuracies absolutely. Chosen,
not derived. With one `torch_simd` they must be equal to the bit."""


def differences(one: Cell, other: Cell) -> list[str]:
    """In what two cells of the same settings disagree; []: they agree."""
    if one.made.torch_simd == other.made.torch_simd and one.exact and other.exact:
        pairs = {"weights": (one.first_rounds.digests, other.first_rounds.digests), "figures": _pair(one, other)}
        return [f"{name} differ" for name, (a, b) in pairs.items() if a != b]
    if one.figures is None or other.figures is None:
        return _far_values(one.values, other.values)
    return differ_at_start(one, other.first_rounds, other.figures, exact=False) + _far(one.figures, other.figures)


def _pair(one: Cell, other: Cell) -> tuple[object, object]:
    return (one.figures, one.values, one.deadline_s), (other.figures, other.values, other.deadline_s)


def _far_values(one: FreeValues, other: FreeValues) -> list[str]:
    if [(name, *rows) for name, rows in one.items()] != [(name, *rows) for name, rows in other.items()]:
        return ["quantities or rows differ"]
    return [
        f"{name} of {row} {value:g} and {other[name][row]:g}"
        for name, rows in one.items()
        for row, value in rows.items()
        if not isclose(value, other[name][row], rel_tol=VALUE_TOLERANCE)
    ]


def _far(one: RunFigures, other: RunFigures) -> list[str]:
    best = [max(each.accuracies, default=0.0) for each in (one, other)]
    round_s = [each.elapsed_s[-1] / len(each.elapsed_s) for each in (one, other)]
    found = (
        []
        if abs(best[0] - best[1]) <= ACCURACY_TOLERANCE + 1e-9
        else [f"best accuracy {best[0]:.3f} and {best[1]:.3f}"]
    )
    if not isclose(*round_s, rel_tol=TIME_TOLERANCE):
        found.append(f"seconds of a round {round_s[0]:.3f} and {round_s[1]:.3f}")
    return found


def differ_at_start(cell: Cell, first: FirstRounds, figures: RunFigures, *, exact: bool) -> list[str]:
    """In what the first rounds, computed again, disagree with a cell of a run. `exact`: on a CPU with the same vector
    units."""
    assert cell.figures is not None
    count = len(first.digests)
    if exact:
        found = [] if first.digests == cell.first_rounds.digests else ["the weights of the first rounds differ"]
        pairs = (
            ("accuracies", figures.accuracy, cell.figures.accuracy),
            ("seconds", figures.elapsed_s, cell.figures.elapsed_s),
            ("bytes", figures.bytes, cell.figures.bytes),
        )
        return found + [
            f"{name} of the first rounds differ: {a[:count]}, not {b[:count]}"
            for name, a, b in pairs
            if a[:count] != b[:count]
        ]
    near = (
        ("the norms of the first rounds' weights", first.norms, cell.first_rounds.norms, NORM_TOLERANCE),
        ("seconds of the first rounds", figures.elapsed_s[:count], cell.figures.elapsed_s[:count], TIME_TOLERANCE),
        ("bytes of the first rounds", figures.bytes[:count], cell.figures.bytes[:count], TIME_TOLERANCE),
    )
    return [
        f"{name} differ: {a}, not {b}"
        for name, a, b, most in near
        if len(a) != len(b) or not all(isclose(*pair, rel_tol=most) for pair in zip(a, b, strict=True))
    ]


def gather(results: Path, folders: Sequence[Path]) -> list[Path]:
    """Take in the cells of other folders; returns the files written. One that is here already must agree.

    Raises:
        UsageError: a file is no cell, or contradicts one that is here; then nothing is taken in.
    """
    found = [read_cell(file) for folder in folders for file in _json_files(folder)]
    learned = [file for folder in folders for file in (folder / FOLDER).glob("*.json")]
    for file in learned:  # a link would publish another file of this host
        if file.is_symlink() or not file.is_file() or file.resolve() != file.parents[1].resolve() / FOLDER / file.name:
            raise Damaged(f"{file} is no file of that folder")
    new, wrong = dict[Path, Cell](), list[str]()
    for cell in found:
        name = place_of(cell)
        old = new.get(name) or (read_cell(results / name) if (results / name).exists() else None)
        if old is not None and msgspec.structs.replace(old, stale="", seal=cell.seal) == cell:
            continue  # a copy, which is as stale as the one that is here
        if old is None or (old.stale and not cell.stale):
            new[name] = cell
        elif not cell.stale:
            why = differences(old, cell) if same_settings(old.settings, cell.settings) else ["settings differ"]
            wrong += [f"{name}: {', '.join(why)}"] if why else []
    if wrong:
        raise UsageError(
            f"{len(wrong)} cells contradict those in {results}: {'; '.join(wrong[:5])}",
            hint="`edgebed reproduce TABLE --check` says which are right; remove the others",
        )
    for file in learned:
        if not (target := results / FOLDER / file.name).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            keep(target, file.read_bytes())
    return [write_cell(results, cell) for cell in new.values()]


def _json_files(folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="give the folder `results` of another machine")
    found = [path for path in folder.glob("*/*/*.json") if path.is_file() and path.parent.name != FOLDER]
    if not found and not (folder / FOLDER).is_dir():
        raise UsageError(f"there is no cell in {folder}", hint="give the folder `results` of another machine, itself")
    return sorted(found)  # as `place` has them; `glob` follows links
