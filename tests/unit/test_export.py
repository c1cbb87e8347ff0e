"""Formats of other tools: each is read back by the tool's own reader."""

from __future__ import annotations

import asyncio
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
from mlflow import MlflowClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from edgebed.errors import UsageError
from orchestrator.cli import export
from orchestrator.export import load
from orchestrator.export.columns import tables, write_csv, write_parquet
from orchestrator.export.curves import points
from orchestrator.export.mlflow import AT_ONCE, MLflow
from orchestrator.export.spans import write_spans
from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.recorder import Recorder
from orchestrator.records.run_index import sort
from orchestrator.records.shown.metrics import exposition
from orchestrator.records.timeline.timeline import timelines
from tests.summaries import changed
from tests.synthetic import Synthetic
from tests.unit._runs import keep
from tests.waiting import until

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


def exported(runs: Path, *options: str) -> None:
    """`edgebed export one`, as typed."""
    app = typer.Typer()
    app.command("export")(export.command)
    app.command("other")(lambda: None)
    result = CliRunner(env={"EDGEBED_RUNS": str(runs)}).invoke(app, ["export", "one", *options])
    if result.exception is not None:
        raise result.exception


def board(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard_reads_accuracy_with_the_time_axis(tmp_path: Path) -> None:
    keep(tmp_path / "one", LOST)
    exported(tmp_path, "--tensorboard", str(tmp_path / "board"))
    found = board(tmp_path / "board")
    events = found.Scalars("accuracy/test")
    assert [e.value for e in events] == pytest.approx([row.accuracy for row in SUMMARY.rounds])
    assert [e.wall_time - events[0].wall_time for e in events] == pytest.approx(
        [row.elapsed_s - SUMMARY.rounds[0].elapsed_s for row in SUMMARY.rounds], abs=1e-3
    )
    assert len(found.Scalars("device_s/middle")) == 3  # it was lost in one of four rounds
    text = found.Tensors("run/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "dilation: 2.5" in text
    assert "calibrated: True" in text
    assert "speed: host" in text


def test_mlflow_reads_the_same_points_and_how_far_to_trust_them(tmp_path: Path) -> None:
    keep(tmp_path / "one", LOST)
    for _ in range(2):
        exported(tmp_path, "--mlflow", str(tmp_path / "tracked"))
    client = MlflowClient((tmp_path / "tracked").as_uri())
    experiment = client.get_experiment_by_name(SUMMARY.experiment)
    found, again = client.search_runs([experiment.experiment_id])
    assert found.info.run_id != again.info.run_id
    history = {
        (tag, each.step): (each.value, each.timestamp)
        for tag in found.data.metrics
        for each in client.get_metric_history(found.info.run_id, tag)
    }
    assert history == {(tag, step): (value, round(1000 * wall)) for tag, value, step, wall in points(SUMMARY)}
    tags = found.data.tags
    assert (tags["edgebed.calibrated"], tags["edgebed.dilation"], tags["edgebed.speed"]) == ("True", "2.5", "host")
    assert (found.info.run_name, found.info.status, tags["edgebed.ended"]) == (SUMMARY.run, "FINISHED", "rounds done")


def test_mlflow_gets_long_runs_in_requests_that_it_takes(tmp_path: Path) -> None:
    into = MLflow(SUMMARY, str(tmp_path))
    into.write([("round/seconds", 1.0, step, 1e9 + step) for step in range(2 * AT_ONCE + 1)])
    client = MlflowClient(tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name(SUMMARY.experiment).experiment_id])
    assert len(client.get_metric_history(run.info.run_id, "round/seconds")) == 2 * AT_ONCE + 1


@pytest.mark.parametrize(
    ("ended", "status"), [("interrupted", "KILLED"), ("error: no memory", "FAILED"), ("budget spent", "FINISHED")]
)
def test_mlflow_is_told_how_a_run_ended(tmp_path: Path, ended: str, status: str) -> None:
    MLflow(SUMMARY, str(tmp_path)).close(changed(SUMMARY, ended=ended))
    client = MlflowClient(tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name(SUMMARY.experiment).experiment_id])
    assert run.info.status == status


def test_a_tracking_server_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match=r"MLflow at http://127\.0\.0\.1:9 did not take the run") as caught:
        MLflow(SUMMARY, "http://127.0.0.1:9")
    assert "http://host:5000" in caught.value.hint


async def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "FOLLOW_S", 0.01)
    (tmp_path / "one").mkdir()
    recorder = Recorder(tmp_path / "one" / "records.jsonl")
    third = next(i for i, r in enumerate(LOST) if isinstance(r, t.RoundStarted) and r.round == 2)
    for record in LOST[:third]:
        recorder.record(record)
    following = asyncio.create_task(
        asyncio.to_thread(exported, tmp_path, "--tensorboard", str(tmp_path / "board"), "--follow")
    )

    def rounds() -> list[int]:
        found = board(tmp_path / "board") if (tmp_path / "board").is_dir() else None
        known = found is not None and "round/seconds" in found.Tags()["scalars"]
        return [each.step for each in found.Scalars("round/seconds")] if known else []

    await until(lambda: rounds() == [1])  # two have ended
    assert not following.done()
    for record in LOST[third:]:
        recorder.record(record)
    recorder.close()
    await following
    found = board(tmp_path / "board")
    live = {(tag, each.step): each.value for tag in found.Tags()["scalars"] for each in found.Scalars(tag)}
    assert live == pytest.approx({(tag, step): value for tag, value, step, _ in points(SUMMARY)})
    assert sum(len(found.Scalars(tag)) for tag in found.Tags()["scalars"]) == len(live), "each point once"


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
    with pytest.raises(UsageError) as caught:
        load("no_such_package", "MLflow", "mlflow")
    assert "[mlflow]" in caught.value.hint


def test_the_command_writes_what_was_asked(tmp_path: Path) -> None:
    keep(tmp_path / "one", LOST)
    exported(tmp_path, "--csv", str(tmp_path / "c"), "--prometheus", str(tmp_path / "p"))
    assert (tmp_path / "c" / "evaluated.csv").is_file()
    assert "edgebed_rounds_total" in (tmp_path / "p").read_text()
    with pytest.raises(UsageError, match="no format was named"):
        exported(tmp_path)
