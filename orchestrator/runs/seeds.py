"""The seeds of an experiment: each has a fleet of its own, and all are resumed together."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator.runs.request import ExperimentRequest

R = TypeVar("R", bound=ExperimentRequest)


def by_seed(request: R) -> Iterator[R]:
    """What each seed has to do, in their order; the keys of `begun` and `finished` are places of its methods. All seeds
    share one series."""
    experiment = request.experiment
    series, count = request.series or uuid.uuid4().hex[:12], len(experiment.methods)
    for number, seed in enumerate(experiment.all_seeds):
        yield msgspec.structs.replace(
            request,
            experiment=experiment.with_seed(seed),
            series=series,
            begun=_own(request.begun, number * count, count),
            finished=_own(request.finished, number * count, count),
        )


def done(request: ExperimentRequest) -> list[Path] | None:
    """The runs of a seed, as `by_seed` gives it, of which nothing is left to do."""
    places = range(len(request.experiment.methods))
    return [request.finished[place] for place in places] if len(request.finished) == len(places) else None


def _own(folders: Mapping[int, Path], first: int, count: int) -> dict[int, Path]:
    return {place - first: folder for place, folder in folders.items() if first <= place < first + count}
