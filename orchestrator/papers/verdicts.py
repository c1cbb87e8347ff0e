"""Whether a paper's claim holds in our figures, by rules that stand on the page of results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from orchestrator.papers.tables import Claim
from orchestrator.records.compare.ratios import interval, with_range
from orchestrator.records.words.formatting import NONE, fixed

Word = Literal["holds", "does not hold", "cannot be told"]

RULES = """\
A claim compares a row of a table with another one: their ratio in each column, the geometric mean over the seeds with
its 95 % interval (Student's t on the logarithms, pairs of the same seed). The limits are those of the claim, such as
"below 1".

- **Holds** in a column: the whole interval lies within the limits.
- **Does not hold** in a column: the whole interval lies outside of them.
- **Cannot be told**: the interval contains a limit, fewer than two seeds were run, a cell of a seed that the table or
  the other row has was not run, or a run did not reach the target.
- A claim holds where it holds in all of its columns. It does not hold where it does not in one of them. Otherwise it
  cannot be told. The intervals are not widened for the number of claims.

The interval of three seeds reaches 4.3 standard errors to each side, that of two 12.7, of ten 2.3. Not every ratio is
evidence of its own. Columns that differ only in the target share their runs, and a few tables have runs in common. A
cell that was [timed again](reproduce.md#learn-once-time-many) has the accuracies of another one: both need equally many
rounds by construction, and the interval between them is that of the clock alone. Rounds are whole numbers: [1.40, 1.40]
says that all seeds gave the same ratio, not that it is known exactly. A time to a target lies on the straight line
between the last evaluation below the target and the first at or above it. Where few rounds are needed, this can decide
a verdict."""


class Pair(msgspec.Struct, frozen=True):
    """A row ÷ another one in one column. In `reached` of the `runs` seeds that were run with both rows, both have a
    value; `missing`: seeds that were not run, with the row where only one lacks them; () where nothing was run."""

    row: str
    column: str
    ratio: float | None
    low: float | None
    high: float | None
    reached: int
    runs: int
    missing: tuple[str, ...]
    paper: float | None
    word: Word


class Line(msgspec.Struct, frozen=True):
    """A line of a forest plot: our ratio with its interval, where it has one, and the paper's."""

    label: str
    ratio: float
    low: float | None
    high: float | None
    paper: float | None


class Verdict(msgspec.Struct, frozen=True):
    claim: Claim
    pairs: tuple[Pair, ...]
    word: Word


def judge(
    claim: Claim,
    baseline: str,
    columns: Sequence[str],
    values: Mapping[tuple[str, str, int], float | None],
    printed: Mapping[str, Mapping[str, float | None]],
    seeds: Sequence[int] = (),
) -> Verdict | None:
    """The verdict on a claim; None where no run of its rows and columns is there.

    Args:
        columns: those of the scale.
        values: of the claim's quantity, by row, column and seed; None where a run did not reach the target.
        printed: the paper's figures, by row and column.
        seeds: of the table; all must have been run.
    """
    than = claim.than or baseline
    own = [column for column in columns if not claim.columns or column in claim.columns]
    pairs = [_pair(claim, row, than, column, values, printed, seeds) for row in claim.rows for column in own]
    begun = any(row in claim.rows and column in own for row, column, _ in values)
    return Verdict(claim, tuple(pairs), _together([pair.word for pair in pairs])) if begun else None


def _pair(
    claim: Claim,
    row: str,
    than: str,
    column: str,
    values: Mapping[tuple[str, str, int], float | None],
    printed: Mapping[str, Mapping[str, float | None]],
    planned: Sequence[int],
) -> Pair:
    run = {each: {seed for (r, c, seed) in values if (r, c) == (each, column)} for each in (row, than)}
    seeds = sorted(run[row] & run[than])
    missing = _missing(run, {*run[row], *run[than], *planned}) if run[row] or run[than] else []
    both = [(values[row, column, seed], values[than, column, seed]) for seed in seeds]
    ratios = [ours / base for ours, base in both if ours and base]
    ratio, low, high = interval(ratios)
    paper, base = printed.get(row, {}).get(column), printed.get(than, {}).get(column)
    whole = seeds and not missing and len(ratios) == len(seeds)
    word = _word(claim, low, high) if whole else "cannot be told"
    printed_ratio = paper / base if paper and base else None
    return Pair(row, column, ratio, low, high, len(ratios), len(seeds), tuple(missing), printed_ratio, word)


def _missing(run: Mapping[str, set[int]], wanted: set[int]) -> list[str]:
    """The seeds that no row has, and those that one of them lacks."""
    none = wanted.difference(*run.values())
    lacking = {"": none, **{f"{row} with ": wanted - own - none for row, own in run.items()}}
    return [f"{which}seed {', '.join(map(str, sorted(some)))}" for which, some in lacking.items() if some]


def _word(claim: Claim, low: float | None, high: float | None) -> Word:
    if low is None or high is None:
        return "cannot be told"
    if claim.above < low and high < claim.below:
        return "holds"
    return "does not hold" if high <= claim.above or low >= claim.below else "cannot be told"


def _together(words: Sequence[Word]) -> Word:
    if "does not hold" in words:
        return "does not hold"
    return "holds" if set(words) == {"holds"} else "cannot be told"


def limits(claim: Claim, than: str) -> str:
    """The limits in words: `fedpmt ÷ fedavg below 1`."""
    bounds = [f"above {claim.above:g}"] if claim.above > 0 else []
    bounds += [f"below {claim.below:g}"] if claim.below < math.inf else []
    return f"{', '.join(claim.rows)} ÷ {than} {' and '.join(bounds)}"


def ours_of(pair: Pair) -> str:
    """What is known of it; of cells that were not run nothing is."""
    lacking = f"not run: {'; '.join(pair.missing)}" if pair.missing else "not run" if not pair.runs else ""
    if not pair.runs:
        return lacking
    if pair.ratio is None:
        text = f"reached by both in 0 of {pair.runs} seeds"
    else:
        decimals = _decimals((pair.high or 0) - (pair.low or 0))
        text = with_range(fixed(pair.ratio, decimals), pair.low, pair.high, decimals)
        text += "" if pair.reached == pair.runs else f", {pair.reached} of {pair.runs} seeds"
    return f"{text} ({lacking})" if lacking else text


def _decimals(width: float) -> int:
    """Of an interval of this width: the narrower the more, so that its ends do not read as a limit beside them."""
    return 2 if width >= 0.05 or width < 5e-5 else 3 if width >= 0.01 else 4


def paper_of(pair: Pair) -> str:
    return NONE if pair.paper is None else fixed(pair.paper, 2)
