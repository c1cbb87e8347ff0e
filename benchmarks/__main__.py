"""Run benchmarks: `python -m benchmarks [NAME ...]`; without names, all. Each prints figures and their limits."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

from benchmarks._paths import ROOT
from orchestrator.files.timed_host import timed


def names() -> list[str]:
    return [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_")]


def main(wanted: list[str]) -> None:
    if {"-h", "--help"} & set(wanted):
        print(__doc__, "benchmarks/README.md says what each prints.", *names(), sep="\n  ")
        return
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}")
    with timed(print):  # computations on this host pause
        failed = [name for name in wanted or names() if run(name) != 0]
    if failed:
        sys.exit(f"these did not run to their end: {', '.join(failed)}")


def run(name: str) -> int:
    """One benchmark in a process of its own, so that memory and threads of others do not count; its exit code."""
    code = f"import benchmarks.{name} as it; print('\\n{name}:', it.__doc__.splitlines()[0]); it.main()"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    main(sys.argv[1:])
