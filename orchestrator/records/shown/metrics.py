"""Summaries of runs -> metrics in Prometheus' text format, as they stand now. Pure.

Every metric has the labels `run` and `method`; those of devices `device` too. Seconds are divided by the dilation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orchestrator.records.summary import DeviceFigures, RoundFigures, Summary

OF_A_RUN: tuple[tuple[str, Callable[[Summary], float | None], str], ...] = (
    ("elapsed_seconds", lambda run: run.total_s, "End of the time axis."),
    ("test_accuracy", lambda run: run.final_accuracy, "Accuracy at the last evaluation."),
    ("test_accuracy_best", lambda run: run.best_accuracy, "Best accuracy of any evaluation."),
    ("target_accuracy", lambda run: run.target_accuracy, "What the run is to reach."),
    ("time_to_target_seconds", lambda run: run.time_to_target_s, "Missing until the target is reached."),
    ("round_seconds_median", lambda run: run.round_s_median, "Median length of a round."),
    (
        "straggler_gap_seconds_median",
        lambda run: run.straggler_gap_s,
        "Slowest minus median device, median over rounds.",
    ),
    ("idle_share_mean", lambda run: run.idle_share_mean, "Mean share of rounds in which a device had nothing to do."),
    ("timeline_residual_worst", lambda run: run.timeline_residual_max, "Worst share of a round without a name."),
    ("dilation", lambda run: run.dilation, "By what every limit and every second is divided."),
    ("calibrated", lambda run: run.calibrated, "1 where the limits were shown to hold."),
)
OF_THE_LAST_ROUND: tuple[tuple[str, Callable[[RoundFigures], float | None], str], ...] = (
    ("round_seconds", lambda row: row.round_s, "Length of the last round."),
    ("straggler_gap_seconds", lambda row: row.straggler_gaps_s, "Slowest minus median device of the last round."),
    ("test_loss", lambda row: row.loss, "Loss at the last evaluation."),
)
OF_A_DEVICE: tuple[tuple[str, Callable[[DeviceFigures], float | None], str], ...] = (
    ("idle_share", lambda device: device.idle_share, "Share of the rounds in which the device had nothing to do."),
    (
        "throttled_share",
        lambda device: device.throttled_share,
        "Share of its own work for which its CPU quota stopped it.",
    ),
    (
        "tasks_in_quota_share",
        lambda device: device.tasks_in_quota,
        "Share of its tasks that used no more than one period of its CPU quota.",
    ),
    (
        "batches_in_quota_share",
        lambda device: device.batches_in_quota,
        "Share of its batches that used no more than one period of its quota.",
    ),
)


def exposition(summaries: Sequence[Summary]) -> str:
    """All metrics of some runs, as text for a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(summaries))
    return generate_latest(registry).decode()


RUN = ("experiment", "seed", "backend", "enforcement", "ended")
"""What is told of a run as labels."""

Row = tuple[Sequence[str], float | None]
"""Further labels of a run, and the value with them; None: it is left out."""


class _Collector:
    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._summaries = summaries

    def collect(self) -> Iterator[Metric]:
        yield self._metric(GaugeMetricFamily, "run_info", "What runs; always 1.", RUN, _info)
        for name, of_run, about in OF_A_RUN:
            yield self._metric(GaugeMetricFamily, name, about, (), partial(_of_run, of_run))
        for name, of_round, about in OF_THE_LAST_ROUND:
            yield self._metric(GaugeMetricFamily, name, about, (), partial(_of_the_last, of_round))
        for name, of_device, about in OF_A_DEVICE:
            labels = ("device", "profile")
            yield self._metric(GaugeMetricFamily, f"device_{name}", about, labels, partial(_of_devices, of_device))
        for name, about, more, rows in COUNTERS:
            yield self._metric(CounterMetricFamily, name, about, more, rows)
        yield self._metric(GaugeMetricFamily, "device_cut", "Stages on the device, last round.", ("device",), _cuts)

    def _metric(
        self, kind: Any, name: str, about: str, labels: Sequence[str], rows: Callable[[Summary], Iterable[Row]]
    ) -> Metric:
        metric = kind(f"edgebed_{name}", about, labels=["run", "method", *labels])
        for run in self._summaries:
            for more, value in rows(run):
                if value is not None:
                    metric.add_metric([run.run, run.method, *more], float(value))
        found: Metric = metric
        return found


def _info(run: Summary) -> Iterator[Row]:
    yield [str(getattr(run, label)) for label in RUN], 1


def _of_run(of: Callable[[Summary], float | None], run: Summary) -> Iterator[Row]:
    yield (), of(run)


def _of_the_last(of: Callable[[RoundFigures], float | None], run: Summary) -> Iterator[Row]:
    known = [value for row in run.rounds if (value := of(row)) is not None]
    yield (), known[-1] if known else None


def _of_devices(of: Callable[[DeviceFigures], float | None], run: Summary) -> Iterator[Row]:
    for name, device in run.devices.items():
        yield (name, run.profiles.get(name, "")), of(device)


def _bytes(run: Summary) -> Iterator[Row]:
    for name, device in run.devices.items():
        yield (name, "up"), device.bytes_up
        yield (name, "down"), device.bytes_down


def _phases(run: Summary) -> Iterator[Row]:
    for name, device in run.devices.items():
        for phase, seconds in device.phase_s.items():
            yield (name, phase), seconds


def _stragglers(run: Summary) -> Iterator[Row]:
    counts = Counter((row.straggler, row.straggler_why or "none") for row in run.rounds if row.straggler is not None)
    yield from counts.items()


def _cuts(run: Summary) -> Iterator[Row]:
    for name, device in run.devices.items():
        yield (name,), device.cut[-1] if device.cut else None


COUNTERS: tuple[tuple[str, str, tuple[str, ...], Callable[[Summary], Iterable[Row]]], ...] = (
    ("rounds", "Rounds that have ended.", (), lambda run: [((), len(run.rounds))]),
    ("events", "Faults, devices gone, back, left out.", (), lambda run: [((), run.events)]),
    ("bytes", "Payload.", ("device", "direction"), _bytes),
    ("phase_seconds", "A device's time by name.", ("device", "phase"), _phases),
    ("straggler_rounds", "Rounds with this straggler.", ("device", "why"), _stragglers),
)
