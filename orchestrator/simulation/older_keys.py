"""Reads what older versions wrote under `simulation`: `faults`, which events of a scenario have superseded, and `cost:
reference`, which is `timed` now. Both go after one more version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from orchestrator.experiment import Experiment
from orchestrator.files.yaml_file import write_yaml
from orchestrator.scenario.files import listed


def in_new_words(experiment: Experiment, path: Path, notify: Callable[[str], None]) -> Experiment:
    """The experiment in the words of this version. Tells what to write instead. `path`: of the experiment file."""
    if experiment.simulation.cost == "reference":
        notify(
            f"{path}: simulation.cost: reference is an old word, which the next version refuses; write timed, or name "
            "a reference: reference NAME"
        )
        simulation = msgspec.structs.replace(experiment.simulation, cost="timed")
        experiment = msgspec.structs.replace(experiment, simulation=simulation)
    return _with_events(experiment, path, notify)


def _with_events(experiment: Experiment, path: Path, notify: Callable[[str], None]) -> Experiment:
    """The experiment with the faults as events of its scenario, behind those that it has."""
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
