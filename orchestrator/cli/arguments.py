"""Arguments that several commands take alike."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.runs.find import complete_run

Runs = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs, their ids under EDGEBED_RUNS (./runs), or patterns of ids: 'mine*'.",
        autocompletion=complete_run,
    ),
]

Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the file: training.rounds=5. Repeatable.")
]
