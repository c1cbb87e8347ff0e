"""The page as a process of its own, beside a run (`edgebed run … --dashboard`).

Its order is one line of JSON on standard input: no argument, for it may hold a token. It says its address on standard
output and ends when standard input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from edgebed.errors import EdgebedError
from orchestrator.dashboard.run_list import Wanted
from orchestrator.dashboard.serve import Place, serve


class Order(msgspec.Struct, frozen=True):
    library: str
    since: float
    experiment: str
    place: Place


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    wanted = Wanted((), Path(order.library), order.since, order.experiment)
    try:
        serve(wanted, order.place, lambda line: print(line, flush=True), until_eof=True)
    except EdgebedError as error:
        sys.exit(f"{error}; {error.hint}")


if __name__ == "__main__":
    main()
