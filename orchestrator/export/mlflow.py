"""A run of MLflow: figures of the rounds as metrics, what the run is as tags."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgebed.errors import UsageError
from orchestrator.export import load
from orchestrator.export.curves import Point, about, began_s
from orchestrator.records.summary import Summary

AT_ONCE = 1000  # metrics that MLflow takes in one request


class MLflow:
    """A new run of the MLflow experiment that has the name of ours.

    Args:
        target: a tracking URI as MLflow takes it (http://host:5000, sqlite:///mlflow.db), or a folder.

    Raises:
        UsageError: mlflow-skinny is not installed, or the target refuses.
    """

    def __init__(self, summary: Summary, target: str) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its seven take minutes
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else it takes no folder, from version 3.13 on
        mlflow, self._target = load("mlflow", "MLflow", "mlflow"), target
        self._metric, self._refusal = mlflow.entities.Metric, mlflow.exceptions.MlflowException
        self._client = mlflow.MlflowClient(target if "://" in target else Path(target).absolute().as_uri())
        found = self._asked("get_experiment_by_name", summary.experiment)
        place = found.experiment_id if found else self._asked("create_experiment", summary.experiment)
        run = self._asked("create_run", place, round(1000 * began_s(summary)), None, summary.run)
        self._run = run.info.run_id

    def write(self, points: Iterable[Point]) -> None:
        metrics = [self._metric(tag, value, round(1000 * wall_s), step) for tag, value, step, wall_s in points]
        for first in range(0, len(metrics), AT_ONCE):
            self._asked("log_batch", self._run, metrics[first : first + AT_ONCE])

    def close(self, summary: Summary) -> None:
        for name, value in about(summary).items():
            self._asked("set_tag", self._run, f"edgebed.{name}", value)
        ended = summary.ended.partition(":")[0]
        status = {"error": "FAILED", "interrupted": "KILLED", "not yet, or killed": "KILLED"}.get(ended, "FINISHED")
        self._asked("set_terminated", self._run, status, round(1000 * (began_s(summary) + summary.total_s)))

    def _asked(self, what: str, *given: Any) -> Any:
        try:
            return getattr(self._client, what)(*given)
        except (self._refusal, OSError, ImportError) as error:  # a database needs packages that mlflow-skinny has not
            raise UsageError(
                f"MLflow at {self._target} did not take the run: {error}",
                hint="give a tracking server (http://host:5000), a folder, or with the package mlflow a sqlite:///FILE",
            ) from None
