"""A finished or unfinished run, read from its folder, as tables."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.analysis import tables
from orchestrator.files.yaml_file import load_yaml
from orchestrator.records.account import explained_summary, whole
from orchestrator.records.live.run_state import RunState
from orchestrator.records.reader import read
from orchestrator.records.run_index import RunFacts
from orchestrator.records.summary import Summary


class Run:
    """One run of one method, read from its folder. Files are read when a table is first asked for, and once.

    Seconds in all tables are divided by the dilation. docs/python.md lists the columns.

    Attributes:
        path: the folder of the run, absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def __repr__(self) -> str:
        return f"Run({self.name!r})"

    @property
    def name(self) -> str:
        """The run's id: the name of its folder."""
        return self.path.name

    @property
    def method(self) -> str:
        """The method that was run, such as `dtfl`."""
        return self._facts.started.method

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self._facts.started.seed

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """The experiment as it ran: one method, absolute paths, the dilation as a number. `edgebed.run` and
        `edgebed.simulate` take it as it is.

        Raises:
            UsageError: the folder has no readable experiment.yaml.
        """
        return dict(load_yaml(self.path / "experiment.yaml"))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` says: docs/records.md lists the names and units. Made from the records."""
        return self._summary.as_dict()

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per finished round, in the order in which rounds ended: duration, accuracy, bytes, straggler."""
        return tables.rounds_table(self._facts, self._summary)

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per evaluated round: `round`, `elapsed_s`, `total_bytes`, `accuracy`, `loss`."""
        return tables.curve_table(self.rounds)

    @cached_property
    def phases(self) -> pd.DataFrame:
        """One row per named interval of a device's time: `round`, `device`, `phase`, `start_s`, `duration_s`."""
        return tables.phases_table(self._facts)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """One row per device: its limits as the fleet file states them, its samples, bytes, and shares of time."""
        return tables.devices_table(self._facts, self._summary)

    @cached_property
    def assignments(self) -> pd.DataFrame:
        """One row per device and round in which it had work: limits, cut, predicted and measured seconds, bytes."""
        return tables.assignments_table(self._facts, self._summary)

    @cached_property
    def uploads(self) -> pd.DataFrame:
        """One row per transfer from a device that arrived whole: features of a batch, or the update of a round."""
        return tables.uploads_table(self._facts)

    @cached_property
    def readings(self) -> pd.DataFrame:
        """One row per reading of a board's sensors: frequency, cap, heat, power; none of other devices."""
        return tables.readings_table(self._facts)

    @cached_property
    def faults(self) -> pd.DataFrame:
        """One row per event that was not planned: work left out, a device that left or came back, other faults."""
        return tables.faults_table(self._facts)

    @cached_property
    def _state(self) -> RunState:
        return whole(read(self.path / "records.jsonl"))

    @cached_property
    def _summary(self) -> Summary:
        return explained_summary(self._state)

    @property
    def _facts(self) -> RunFacts:
        return self._state.run
