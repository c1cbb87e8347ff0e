"""How benchmarks print what they found: one line per figure, with its limit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence


def figure(name: str, value: float, *, least: float | None = None, most: float | None = None, note: str = "") -> None:
    """One line: name, value, limit, verdict, note."""
    limit = f"≥ {least:g}" if least is not None else f"≤ {most:g}" if most is not None else ""
    good = (least is None or value >= least) and (most is None or value <= most)
    verdict = ("ok" if good else "MISSED") if limit else ""
    print(f"  {name:<62} {value:>9.3f}  {limit:<8} {verdict:<7} {note}", flush=True)


def skip(why: str) -> None:
    print(f"  not measured: {why}", flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that is not below `share` of all (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def progress(text: str) -> Callable[[], None]:
    """Say what takes a while, on stderr; call the result when it is over."""
    if sys.stderr.isatty():
        print(f"  … {text}", end="\r", file=sys.stderr, flush=True)
    return lambda: print(" " * 79, end="\r", file=sys.stderr, flush=True) if sys.stderr.isatty() else None
