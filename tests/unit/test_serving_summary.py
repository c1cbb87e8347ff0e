"""The figures of a serving run from records made by hand."""

from __future__ import annotations

import pytest

from edgebed.errors import UsageError
from edgebed.wire.messages import Assignment
from orchestrator.records.host_records import Hop, RequestsLost, Served
from orchestrator.records.run_index import sort
from orchestrator.records.serving_summary import most_waiting, summarise_serving
from orchestrator.records.types import (
    DeviceInfo,
    Record,
    ReplyDelivered,
    RoundStarted,
    RunFinished,
    RunStarted,
    UploadReceived,
)

MS = 1_000_000
approx = pytest.approx


def started(dilation: float) -> RunStarted:
    devices = tuple(DeviceInfo(name, "p", 1.0, 8_000_000, 4_000_000, 1, 1, ()) for name in ("leaf", "root"))
    return RunStarted(0, "", "r", "e", "serve", 0, "local", "kernel", dilation, True, 0, 1.0, {}, devices)


def plan() -> RoundStarted:
    notes: dict[str, object] = {
        "source": "trained",
        "requests": 4,
        "parents": {"leaf": "root", "root": None},
        "exits": {"leaf": 1, "root": 2},
        "cuts": [1, 4],
        "shares": [0.5, 0.5],
        "thresholds": [0.9, 0.0],
        "arrivals": {"leaf": 5.0},
        "expected_accuracy": 0.75,
        "expected_shares": [0.6, 0.4],
    }
    assignment = Assignment("leaf", {}, 2, (1, 1, 1), 1, "serve")
    return RoundStarted(0, 0, 0.0, 0.0, ("leaf", "root"), {"leaf": assignment}, {}, {"serving": notes})


def records(dilation: float = 1.0) -> list[Record]:
    """Two answered by the leaf after 2 and 4 ms, one by the root after 100 ms, one lost."""
    passed = (
        Hop("leaf", 20 * MS, 20 * MS, 21 * MS, 22 * MS, 0, 1000),
        Hop("root", 60 * MS, 90 * MS, 100 * MS, 120 * MS, 900),
    )
    return [
        started(dilation),
        plan(),
        Served(1, 0, 1, True, (Hop("leaf", 0, 0, 1 * MS, 2 * MS),)),
        Served(2, 1, 1, False, (Hop("leaf", 1 * MS, 1 * MS, 2 * MS, 5 * MS),)),
        UploadReceived(60 * MS, 50 * MS, 0, "leaf", 0, 1000),
        ReplyDelivered(90 * MS, 60 * MS, 0, "root", 0, 900),
        Served(3, 2, 2, True, passed),
        RequestsLost(130 * MS, "root", (3,), "it burnt"),
        RunFinished(130 * MS, "1 requests lost"),
    ]


def summary(dilation: float = 1.0) -> dict[str, object]:
    made = records(dilation)
    return summarise_serving(sort(made), made)


def test_figures_by_hand() -> None:
    got = summary()
    assert (got["answered"], got["lost"]) == (3, 1)
    assert got["lost_at"] == {"root": {"requests": 1, "why": "it burnt"}}
    assert got["accuracy"] == approx(2 / 3)
    assert got["latency_s_p50"] == approx(0.004)
    assert got["latency_s_p99"] == approx(0.1)
    assert got["seconds"] == approx(0.12)
    assert got["throughput_per_s"] == approx(25.0)
    assert got["bytes"] == 1900
    first, second = got["exits"]  # type: ignore[misc]
    assert (first["share"], first["share_wanted"], first["share_expected"]) == (approx(2 / 3), 0.5, 0.6)
    assert (first["accuracy"], first["bytes_per_request"]) == (0.5, 0)
    assert (second["latency_s_p50"], second["bytes_per_request"]) == (approx(0.1), 1900)


def test_nodes_and_links_by_hand() -> None:
    leaf, root = summary()["nodes"]  # type: ignore[misc]
    assert (leaf["took"], leaf["answered"], leaf["forwarded"]) == (3, 2, 1)
    assert (root["wait_s_p50"], root["work_s_p50"]) == (approx(0.04), approx(0.02))
    assert leaf["most_waiting"] == 1
    links = {(link["node"], link["direction"]): link for link in summary()["links"]}  # type: ignore[attr-defined]
    assert links["leaf", "up"]["bytes"] == 1000
    assert links["leaf", "up"]["largest_least_s"] == approx(0.001)
    assert links["root", "down"]["largest_least_s"] == approx(0.0018)


def test_times_are_divided_by_the_dilation() -> None:
    got = summary(2.0)
    assert got["latency_s_p99"] == approx(0.05)
    assert got["throughput_per_s"] == approx(50.0)


def test_most_waiting_counts_those_that_had_not_begun() -> None:
    hops = [Hop("n", 0, 0, 5, 6), Hop("n", 1, 1, 7, 8), Hop("n", 2, 2, 9, 9), Hop("n", 8, 8, 20, 21)]
    assert most_waiting(hops) == 3
    assert most_waiting([]) == 0


def test_a_run_that_served_nothing_is_refused() -> None:
    made: list[Record] = [started(1.0)]
    with pytest.raises(UsageError, match="served nothing"):
        summarise_serving(sort(made), made)
