"""Does a change leave everything that is computed as it was? Record before, record after, compare:

    python -m tests.equality record BEFORE --checkout OLD     # a checkout with a .venv of its own
    python -m tests.equality record AFTER                     # this checkout
    python -m tests.equality compare BEFORE AFTER             # exit code 1 where anything differs

A checkout is used through its command line and its run folders only, so names inside it may change. Recorded are the
experiments of `cases.py`: all methods simulated with two seeds, and a case each for batched training, changing
profiles, faults, a deadline, lanes, privacy, FedPMT's operations, uneven shares. All cost models count operations: no
second that the host takes decides anything. With `--real`, instead, FedAvg and DTFL on throttled devices (as root),
with the plans of their simulations. Compared to the bit: weights, progress, `summary.json`, all records in their order,
`trace.json` and what `edgebed compare --json` says; of real runs weights, plans, accuracy, bytes and who was merged.
The fields that cannot be equal are named, with the reason, in `normal.py`.

Both recordings must come from one machine: another CPU may round otherwise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.equality import cases
from tests.equality.comparing import compare
from tests.equality.recording import record
from tests.equality.structure import show

HERE = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the experiments and keep what they gave")
    recording.add_argument("into", type=Path)
    recording.add_argument("--checkout", type=Path, default=HERE, help="whose .venv/bin/edgebed runs")
    recording.add_argument("--only", default="", help="names of cases, with commas")
    recording.add_argument("--real", action="store_true", help="the real runs, not the simulated ones")
    comparing = commands.add_parser("compare", help="list what differs between two recordings")
    comparing.add_argument("a", type=Path)
    comparing.add_argument("b", type=Path)
    comparing.add_argument("--ignore", action="append", default=[], help="a place that may differ. Repeatable")
    measuring = commands.add_parser("structure", help="count modules, lines, functions, and modules in no contract")
    measuring.add_argument("--checkout", type=Path, default=HERE)
    arguments = parser.parse_args()
    if arguments.command == "structure":
        show(arguments.checkout)
        return 0
    if arguments.command == "compare":
        return 1 if compare(arguments.a, arguments.b, arguments.ignore) else 0
    record(arguments.into, arguments.checkout, _names(parser, arguments))
    return 0


def _names(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[str]:
    known = list(cases.REAL if arguments.real else cases.SIMULATED)
    wanted = [name for name in arguments.only.split(",") if name]
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are: {', '.join(known)}")
    return wanted or known


if __name__ == "__main__":
    sys.exit(main())
