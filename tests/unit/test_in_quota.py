"""The share of work that fits into one period's quota, from reports to every summary."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edgebed.device.metrics import TaskMetrics
from edgebed.wire.messages import Report
from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.compare.comparison import compare
from orchestrator.records.timeline.in_quota import counted, sentence
from tests.summaries import summarised
from tests.synthetic import Synthetic


def report(pieces: int, fitted: int, cpu_s: float, quota_s: float = 0.010) -> Report:
    base = Report(1, 1, 0.5, 0.1, 0.1, None, 1, 0.1, 1, 0.1, 0.0)
    return msgspec.structs.replace(base, pieces=pieces, pieces_in_quota=fitted, cpu_s=cpu_s, quota_s=quota_s)


def test_shares_of_tasks_and_of_batches() -> None:
    count = counted([report(3, 1, 0.050), report(1, 1, 0.009)])
    assert (count.task_share, count.piece_share) == (0.5, 0.5)


def test_a_report_that_counted_nothing_gives_no_share() -> None:
    count = counted([report(0, 0, 0.0), report(2, 0, 0.1, quota_s=0.0)])
    assert (count.task_share, count.piece_share) == (None, None)


def test_a_device_counts_each_batch_with_the_cpu_time_of_all_its_threads() -> None:
    metrics = TaskMetrics()
    for cpu_s in (0.004, 0.010, 0.011):
        metrics.count_piece(cpu_s, quota_s=0.010)
    assert (metrics.pieces, metrics.pieces_in_quota) == (3, 2)
    assert metrics.cpu_s == pytest.approx(0.025)


def with_pieces(grain: str) -> list[t.Record]:
    """A run whose device `weak` did two of three batches within a quota, and no task."""
    counts: dict[str, Any] = {"pieces": 3, "pieces_in_quota": 2, "cpu_s": 0.05, "quota_s": 0.01}
    found: list[t.Record] = []
    for record in Synthetic().records:
        if isinstance(record, t.UpdateReceived) and record.device == "weak":
            record = msgspec.structs.replace(record, report=msgspec.structs.replace(record.report, **counts))
        if isinstance(record, t.RunStarted):
            record = msgspec.structs.replace(record, grain=grain, host={"kernel": "6.1.0", "hz": "250"})
        found.append(record)
    return found


def test_the_summary_has_the_shares_kernel_and_ticks() -> None:
    summary = summarised(with_pieces("quota"))
    assert summary["batches_in_quota"] == {"weak": pytest.approx(2 / 3), "middle": None, "strong": None}
    assert summary["tasks_in_quota"]["weak"] == 0.0
    assert (summary["tasks_in_quota_share"], summary["batches_in_quota_share"]) == (0.0, pytest.approx(2 / 3))
    assert (summary["grain"], summary["kernel"], summary["hz"]) == ("quota", "6.1.0", 250)


def test_a_comparison_says_where_a_quota_alone_made_batches_too_fast() -> None:
    notes = compare([summarise(with_pieces("quota"))]).notes
    assert any("66.7%" in note and "did not slow them" in note for note in notes)
    assert not any("did not slow" in note for note in compare([summarise(with_pieces("pacing"))]).notes)


def test_runs_of_different_grain_are_compared_with_care() -> None:
    notes = compare([summarise(with_pieces("quota")), summarise(with_pieces("pacing"))]).notes
    assert any("differ in grain" in note for note in notes)


def test_nothing_is_said_where_nothing_was_counted() -> None:
    assert sentence(summarise(Synthetic().records).batches_in_quota_share, "quota") == ""
