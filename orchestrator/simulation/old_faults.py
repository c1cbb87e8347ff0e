"""Reads `simulation.faults`, the key of version 0.2 that events of a scenario have superseded. It goes after one more
version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from orchestrator.experiment import Experiment
from orchestrator.files.yaml_file import write_yaml
from orchestrator.scenario.files import listed


def with_events(experiment: Experiment, path: Path, notify: Callable[[str], None]) -> Experiment:
    """The experiment with the faults as events of its scenario, behind those that it has. Tells what to write instead.

    Args:
        path: of the experiment file.
    """
    simulation = experiment.simulation
    events = [fault.event() for fault in simulation.faults or ()]
    if not events:
        return experiment
    before = () if experiment.scenario is None else listed(experiment.scenario, path).events
    told = write_yaml(msgspec.to_builtins(events)).decode()
    notify(
        f"{path}: simulation.faults is an old key, which the next version refuses; messages speak of its entries as "
        f"scenario[{len(before)}] and on; write under `scenario`:\n{told}"
    )
    return msgspec.structs.replace(
        experiment,
        scenario=[*before, *events],
        simulation=msgspec.structs.replace(simulation, faults=msgspec.UNSET),
    )
