"""The page as a process of its own, beside a run (`edgebed run … --dashboard`).

It reads one line of JSON from standard input (not arguments: other users could read the token in them), prints its
address to standard output, and ends when standard input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from edgebed.errors import EdgebedError
from orchestrator.dashboard.run_list import Wanted
from orchestrator.dashboard.serve import PageAddress, serve


class Order(msgspec.Struct, frozen=True):
    library: str
    since: float
    experiment: str
    place: PageAddress


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    wanted = Wanted((), Path(order.library), order.since, order.experiment)
    try:
        serve(wanted, order.place, lambda line: print(line, flush=True), until_eof=True)
    except EdgebedError as error:
        sys.exit(f"{error}; {error.hint}")


if __name__ == "__main__":
    main()
