"""How benchmarks print what they found, one line per figure with its limit, or why they found nothing; and where they
keep it."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


def figure(name: str, value: float, *, least: float | None = None, most: float | None = None, note: str = "") -> None:
    """One line: name, value, limit, verdict, note."""
    limit = f"≥ {least:g}" if least is not None else f"≤ {most:g}" if most is not None else ""
    good = (least is None or value >= least) and (most is None or value <= most)
    verdict = ("ok" if good else "MISSED") if limit else ""
    print(f"  {name:<62} {value:>9.3f}  {limit:<8} {verdict:<7} {note}", flush=True)


def skip(why: str) -> None:
    print(f"  not measured: {why}", flush=True)


def no_fleets(backend: str = "local") -> bool:
    """Whether no fleet of this backend can be started here, which is then printed."""
    if os.geteuid() == 0 or backend != "local":
        return False
    skip("needs root: network namespaces and cgroups")
    return True


@contextlib.contextmanager
def kept_folder(variable: str) -> Iterator[Path]:
    """The folder that an environment variable names, which stays; else one that is removed at the end."""
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(os.environ.get(variable) or passing).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that is not below `share` of all (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def progress(text: str) -> Callable[[], None]:
    """Say what takes a while, on stderr; call the result when it is over."""
    if sys.stderr.isatty():
        print(f"  … {text}", end="\r", file=sys.stderr, flush=True)
    return lambda: print(" " * 79, end="\r", file=sys.stderr, flush=True) if sys.stderr.isatty() else None
