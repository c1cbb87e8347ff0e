"""Commands of a page with little work. Every command that is typed loads this file."""

from __future__ import annotations

from collections.abc import Sequence

SMALL = ("data.train_samples=60", "data.test_samples=30", "training.batch_size=8", "training.max_batches=1")


def quick(arguments: Sequence[str], rounds: int) -> list[str]:
    """The same command of `edgebed` with few samples and rounds, and with devices that limit themselves, as those of an
    ordinary user do. Their seconds are those of the host, because to hold a reference takes seconds at each start.
    Options that the page gives count more."""
    few = [part for key in (*SMALL, f"training.rounds={rounds}") for part in ("--set", key)]
    here = ["--backend", "software", "--speed", "host", "--set", "server=null"]
    match list(arguments):
        case ["run", *rest] if "--resume" not in rest and "--estimate" not in rest:
            return ["run", *here, *few, *rest]
        case ["simulate", *rest]:
            return ["simulate", *few, *rest]
        case ["fleet", "up", *rest]:
            return ["fleet", "up", "--backend", "software", *rest]
    return list(arguments)
