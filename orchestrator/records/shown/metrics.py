"""Summaries of runs -> metrics in Prometheus' text format, as they stand now. Pure.

Every metric has the labels `run` and `method`; those of devices `device` too. Seconds are divided by the dilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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


class _Collector:
    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._summaries = summaries

    def collect(self) -> Iterator[Metric]:
        yield self._info()
        yield from (self._of_runs(*row) for row in OF_A_RUN)
        yield from (self._of_rounds(*row) for row in OF_THE_LAST_ROUND)
        yield from (self._of_devices(*row) for row in OF_A_DEVICE)
        yield from self._counters()
        yield self._cuts()

    def _info(self) -> Metric:
        labels = ("experiment", "seed", "backend", "enforcement", "ended")
        metric = GaugeMetricFamily("edgebed_run_info", "What runs; always 1.", labels=["run", "method", *labels])
        for s in self._summaries:
            metric.add_metric([*_names(s), *(str(getattr(s, label)) for label in labels)], 1)
        return metric

    def _of_runs(self, name: str, of: Callable[[Summary], float | None], about: str) -> Metric:
        metric = GaugeMetricFamily(f"edgebed_{name}", about, labels=["run", "method"])
        for s in self._summaries:
            if (value := of(s)) is not None:
                metric.add_metric(_names(s), float(value))
        return metric

    def _of_rounds(self, name: str, of: Callable[[RoundFigures], float | None], about: str) -> Metric:
        metric = GaugeMetricFamily(f"edgebed_{name}", about, labels=["run", "method"])
        for s in self._summaries:
            known = [value for row in s.rounds if (value := of(row)) is not None]
            if known:
                metric.add_metric(_names(s), known[-1])
        return metric

    def _of_devices(self, name: str, of: Callable[[DeviceFigures], float | None], about: str) -> Metric:
        metric = GaugeMetricFamily(f"edgebed_device_{name}", about, labels=["run", "method", "device", "profile"])
        for s in self._summaries:
            for device, figures in s.devices.items():
                if (value := of(figures)) is not None:
                    metric.add_metric([*_names(s), device, s.profiles.get(device, "")], value)
        return metric

    def _counters(self) -> Iterator[Metric]:
        rounds = CounterMetricFamily("edgebed_rounds", "Rounds that have ended.", labels=["run", "method"])
        events = CounterMetricFamily(
            "edgebed_events", "Faults, devices gone, back, left out.", labels=["run", "method"]
        )
        size = CounterMetricFamily("edgebed_bytes", "Payload.", labels=["run", "method", "device", "direction"])
        spent = CounterMetricFamily(
            "edgebed_phase_seconds", "A device's time by name.", labels=["run", "method", "device", "phase"]
        )
        slow = CounterMetricFamily(
            "edgebed_straggler_rounds", "Rounds with this straggler.", labels=["run", "method", "device", "why"]
        )
        for s in self._summaries:
            own = _names(s)
            rounds.add_metric(own, len(s.rounds))
            events.add_metric(own, s.events)
            for device, figures in s.devices.items():
                size.add_metric([*own, device, "up"], figures.bytes_up)
                size.add_metric([*own, device, "down"], figures.bytes_down)
                for phase, seconds in figures.phase_s.items():
                    spent.add_metric([*own, device, phase], seconds)
            for (device, why), count in _stragglers(s).items():
                slow.add_metric([*own, device, why], count)
        yield from (rounds, events, size, spent, slow)

    def _cuts(self) -> Metric:
        metric = GaugeMetricFamily(
            "edgebed_device_cut", "Stages on the device, last round.", labels=["run", "method", "device"]
        )
        for s in self._summaries:
            for device, figures in s.devices.items():
                if figures.cut and figures.cut[-1] is not None:
                    metric.add_metric([*_names(s), device], figures.cut[-1])
        return metric


def _names(summary: Summary) -> list[str]:
    return [summary.run, summary.method]


def _stragglers(summary: Summary) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for row in summary.rounds:
        if row.straggler is not None:
            key = row.straggler, row.straggler_why or "none"
            counts[key] = counts.get(key, 0) + 1
    return counts
