"""Formats of other tools: each is read back by the tool's own reader."""

from __future__ import annotations

import csv
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import prometheus_client.parser
import pyarrow.parquet
import pytest
import typer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from edgebed.errors import UsageError
from orchestrator.cli import export
from orchestrator.export import load
from orchestrator.export.columns import tables, write_csv, write_parquet
from orchestrator.export.spans import write_spans
from orchestrator.export.tensorboard import write_tensorboard
from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.run_index import sort
from orchestrator.records.shown.metrics import exposition
from orchestrator.records.timeline.timeline import timelines
from tests.summaries import changed
from tests.synthetic import Synthetic
from tests.unit._runs import keep

LOST = Synthetic(lost=(1, "middle"), dilation=2.5).records
SUMMARY = summarise(LOST)
GRAFANA = Path(__file__).parents[2] / "profiles" / "grafana" / "edgebed.json"


def test_csv_has_a_row_per_record_and_per_phase(tmp_path: Path) -> None:
    write_csv(LOST, tmp_path)
    phases = list(csv.DictReader((tmp_path / "device_phases.csv").open()))
    assert len(phases) == sum(len(r.phases) for r in LOST if isinstance(r, t.DevicePhases))
    assert {"at_ns", "device", "name", "start_ns", "cpu_ns"} <= set(phases[0])
    plans = list(csv.DictReader((tmp_path / "round_started.csv").open()))
    assert set(json.loads(plans[0]["assignments"])) == {"weak", "middle", "strong"}
    assert {path.stem for path in tmp_path.iterdir()} == set(tables(LOST))


def test_parquet_is_read_back_with_its_types(tmp_path: Path) -> None:
    write_parquet(LOST, tmp_path)
    table = pyarrow.parquet.read_table(tmp_path / "device_done.parquet")
    assert str(table.schema.field("seconds").type) == "double"
    assert table.num_rows == sum(isinstance(r, t.DeviceDone) for r in LOST)


def test_tensorboard_reads_accuracy_with_the_time_axis(tmp_path: Path) -> None:
    write_tensorboard(SUMMARY, tmp_path)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    events = found.Scalars("accuracy/test")
    assert [e.value for e in events] == pytest.approx([row.accuracy for row in SUMMARY.rounds])
    assert [e.wall_time - events[0].wall_time for e in events] == pytest.approx(
        [row.elapsed_s - SUMMARY.rounds[0].elapsed_s for row in SUMMARY.rounds], abs=1e-3
    )
    assert len(found.Scalars("device_s/middle")) == 3  # it was lost in one of four rounds


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in prometheus_client.parser.text_string_to_metric_families(text)}


def test_prometheus_reads_the_metrics() -> None:
    other = changed(SUMMARY, run='odd "name"\n', time_to_target_s=None)
    found = families(exposition([SUMMARY, other]))
    assert [s.value for s in found["edgebed_rounds"].samples] == [4, 4]
    assert {s.labels["run"] for s in found["edgebed_run_info"].samples} == {"synthetic-dtfl", 'odd "name"\n'}
    assert len(found["edgebed_time_to_target_seconds"].samples) == 1
    spent = {(s.labels["device"], s.labels["phase"]): s.value for s in found["edgebed_phase_seconds"].samples}
    assert spent["weak", "compute"] == pytest.approx(SUMMARY.devices["weak"].phase_s["compute"])


def test_a_run_before_its_first_round_has_metrics_too() -> None:
    assert families(exposition([summarise(Synthetic(rounds=0).records)]))["edgebed_rounds"].samples[0].value == 0


def test_grafana_asks_only_for_metrics_that_there_are() -> None:
    dashboard = json.loads(GRAFANA.read_text(encoding="utf-8"))
    text = exposition([changed(SUMMARY, time_to_target_s=1.0, throttled_share={"weak": 0.5})])
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(asked) >= 8
    names = {line.split("{")[0] for line in text.splitlines() if line and not line.startswith("#")}
    for expression in asked:
        assert any(name in expression for name in names), expression


def test_spans_are_nested_and_scaled(tmp_path: Path) -> None:
    count = write_spans(sort(LOST), str(tmp_path / "spans.jsonl"))
    spans = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert len(spans) == count
    rounds = {s["context"]["span_id"] for s in spans if s["name"].startswith("round ")}
    tasks = [s for s in spans if s["name"].startswith("task ")]
    assert len(rounds) == 4
    assert len(tasks) == 12
    assert {s["parent_id"] for s in tasks} == rounds
    compute = [s for s in spans if s["name"] == "compute"]
    expected = sum(x.name == "compute" for r in timelines(sort(LOST)) for d in r.devices.values() for x in d.segments)
    assert len(compute) == expected
    assert {s["parent_id"] for s in compute} <= {s["context"]["span_id"] for s in tasks}
    assert compute[0]["attributes"]["device"]
    assert compute[0]["start_time"].startswith("2026-01-02T03:04:05")


def test_spans_reach_a_collector_and_a_refusal_is_told(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200 if self.path == "/v1/traces" else 400)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        count = write_spans(sort(LOST), f"{address}/v1/traces")
        taken = 0
        for body in bodies:
            request = ExportTraceServiceRequest.FromString(body)
            taken += sum(len(scope.spans) for r in request.resource_spans for scope in r.scope_spans)
        assert taken == count
        with pytest.raises(UsageError, match="did not accept"):
            write_spans(sort(LOST), f"{address}/nowhere")
        server.shutdown()


def test_a_missing_package_is_told_with_its_hint() -> None:
    with pytest.raises(UsageError) as caught:
        load("no_such_package.inside", "Parquet")
    assert "[export]" in caught.value.hint


def test_the_command_writes_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    keep(tmp_path / "one", LOST)
    app = typer.Typer()
    app.command("export")(export.command)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(
        app, ["export", "one", "--csv", str(tmp_path / "c"), "--prometheus", str(tmp_path / "p")]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "c" / "evaluated.csv").is_file()
    assert "edgebed_rounds_total" in (tmp_path / "p").read_text()
    assert isinstance(CliRunner().invoke(app, ["export", "one"]).exception, UsageError)
