"""The page's server on a real port: what it streams as records grow, who may ask, and that it ends when told to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import prometheus_client.parser
import pytest

from edgebed.errors import UsageError
from orchestrator.dashboard.app import TICK_S
from orchestrator.dashboard.run_list import RunList, Wanted, make_card
from orchestrator.dashboard.serve import PageAddress
from orchestrator.dashboard.subprocess_server import page_beside
from orchestrator.records import types as t
from orchestrator.records.account import write_summary
from orchestrator.records.recorder import Recorder
from orchestrator.report import write_results
from tests.hangs import finish, run
from tests.synthetic import Synthetic

CLI = [sys.executable, "-c", "from orchestrator.cli import main; main()", "dashboard"]


def record(folder: Path, records: list[t.Record]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder / "records.jsonl")
    for one in records:
        recorder.record(one)
    recorder.close()


@contextlib.contextmanager
def page(library: Path) -> Iterator[str]:
    """A page of its own process; yields its address."""
    said: list[str] = []
    library.mkdir(exist_ok=True)
    with page_beside(library, "synthetic", PageAddress(), said.append):
        yield said[0].removeprefix("Live page: ")


def get(address: str, path: str = "", **options: Any) -> httpx.Response:
    """What the page at `address`, which has the token in it, answers to who knows the token."""
    base, _, token = address.partition("?token=")
    return httpx.get(base + path, **{**options, "headers": {**bearer(token), **options.get("headers", {})}})


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Stream:
    """Server-sent events, one by one."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def next(self, kind: str) -> Any:
        """The next event of a kind; others are passed over."""
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: ") and name == kind:
                return json.loads(line[6:])
        raise AssertionError(f"the stream ended without {kind}")


@contextlib.contextmanager
def events(address: str, run: str = "") -> Iterator[Stream]:
    base, _, token = address.partition("?token=")
    wanted = {"run": run} if run else {}
    with httpx.stream("GET", f"{base}events", params=wanted, headers=bearer(token), timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer.iter_lines())


def test_a_late_page_has_the_whole_history_and_then_what_is_new(tmp_path: Path) -> None:
    records = Synthetic(rounds=6).records
    cut = next(i for i, r in enumerate(records) if isinstance(r, t.RoundStarted) and r.round == 4)
    record(tmp_path / "runs" / "one", records[:cut])
    with page(tmp_path / "runs") as address, events(address, "one") as stream:
        assert [card["id"] for card in stream.next("runs")] == ["one"]
        state = stream.next("state")
        assert state["whole"]
        assert [row[0] for row in state["rows"]] == [1, 2, 3, 4]
        assert state["head"]["enforcement"] == "kernel"
        record(tmp_path / "runs" / "one", records[cut:])
        rows: dict[int, Any] = {}
        while 6 not in rows or rows[6][2] is None or not state["head"]["ended"]:
            state = stream.next("state")
            assert not state["whole"]
            assert state["rows_from"] >= 3, "only what is new is sent"
            rows |= {row[0]: row for row in state["rows"]}
        assert rows[5][8] == "weak"
        assert rows[5][10] == "cpu"


def test_a_run_that_begins_later_appears(tmp_path: Path) -> None:
    with page(tmp_path / "runs") as address, events(address) as stream:
        assert stream.next("runs") == []
        record(tmp_path / "runs" / "new", Synthetic().records)
        assert stream.next("runs")[0]["run"] == "synthetic-dtfl"


def test_changes_come_at_most_once_a_tick(tmp_path: Path) -> None:
    records = Synthetic(rounds=40).records
    record(tmp_path / "runs" / "one", records[:50])
    with page(tmp_path / "runs") as address:
        start, written, more = time.monotonic(), 50, 6
        with events(address, "one") as stream:
            stream.next("state")
            for _ in range(more):
                record(tmp_path / "runs" / "one", records[written : written + 40])
                written += 40
                stream.next("state")
        assert written < len(records)
        assert time.monotonic() - start > more * TICK_S - 0.01


def test_a_round_a_device_and_a_comparison(tmp_path: Path) -> None:
    record(tmp_path / "runs" / "one", Synthetic(rounds=3).records)
    record(tmp_path / "runs" / "two", Synthetic(rounds=3, method="fedavg").records)
    with page(tmp_path / "runs") as address:
        found = get(address, "api/runs/one/rounds/1").json()
        devices = [row["label"] for row in found["rows"] if not row.get("own")]
        assert [row["label"] for row in found["rows"] if row.get("slow")] == ["weak"]
        assert set(devices) == {"weak", "middle", "strong"}
        assert get(address, "api/runs/one/devices/weak").json()["rounds"] == [1, 2, 3]
        table = get(address, "api/compare", params={"runs": "one,two,none"}).json()
        assert [row["method"] for row in table["runs"]["texts"]] == ["dtfl", "fedavg"]
        assert len(table["methods"][0]["charts"]["time"]["seeds"][0]["points"]) == 3
        lanes = get(address, "api/runs/one/time").json()["lanes"]["rows"]
        assert [lane["label"] for lane in lanes] == devices
        for wrong in ("api/runs/one/rounds/99", "api/runs/none/rounds/1", "api/runs/one/devices/none", "../secret"):
            assert get(address, f"{wrong}").status_code == 404


def test_report_trace_and_figures_of_a_run_are_one_link_away(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    record(folder, Synthetic(rounds=2).records)
    record(tmp_path / "runs" / "two", Synthetic(rounds=2, finish=False).records)
    write_results(folder)
    with page(tmp_path / "runs") as address:
        report = get(address, "runs/one/report.html")
        assert report.text == (folder / "report.html").read_text(encoding="utf-8")
        policy = report.headers["content-security-policy"]
        assert policy.startswith("sandbox allow-scripts; default-src 'none'")
        assert "connect-src" not in policy
        assert get(address, "runs/one/trace.json").json()["traceEvents"]
        assert get(address, "runs/one/figures.pdf", timeout=120).content.startswith(b"%PDF")
        for wrong in ("one/records.jsonl", "one/..%2fsecret", "two/report.html", "two/figures.pdf", "none/report.html"):
            assert get(address, f"runs/{wrong}").status_code == 404, wrong


def test_prometheus_can_scrape_runs_that_go_on_and_runs_that_are_over(tmp_path: Path) -> None:
    records = Synthetic(rounds=6).records
    cut = next(i for i, r in enumerate(records) if isinstance(r, t.RoundStarted) and r.round == 4)
    record(tmp_path / "runs" / "one", records[:cut])

    def scraped(path: str = "metrics") -> dict[str, list[prometheus_client.samples.Sample]]:
        answer = get(address, path)
        assert answer.headers["content-type"].startswith("text/plain")
        return {f.name: f.samples for f in prometheus_client.parser.text_string_to_metric_families(answer.text)}

    with page(tmp_path / "runs") as address:
        found = scraped()
        assert [sample.value for sample in found["edgebed_rounds"]] == [4]
        assert {sample.labels["device"] for sample in found["edgebed_bytes"]} == {"weak", "middle", "strong"}
        assert {s.labels["phase"] for s in found["edgebed_phase_seconds"]} >= {"compute", "encode", "upload_tail"}
        record(tmp_path / "runs" / "one", records[cut:])
        write_summary(tmp_path / "runs" / "one")
        found = scraped("metrics?runs=one,none")
        assert [sample.value for sample in found["edgebed_rounds"]] == [6]
        assert {sample.labels["device"] for sample in found["edgebed_device_idle_share"]} == {
            "weak",
            "middle",
            "strong",
        }


def test_every_answer_forbids_requests_to_elsewhere(tmp_path: Path) -> None:
    with page(tmp_path / "runs") as address:
        for path in ("", "static/main.js", "api/compare", "nothing"):
            policy = get(address, path).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "connect-src 'self'" in policy


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.168.1.7", ""])
def test_a_foreign_name_is_refused_on_the_loopback(tmp_path: Path, host: str) -> None:
    with page(tmp_path / "runs") as address:
        assert get(address, headers={"host": host}).status_code in (400, 421)
        assert get(address, headers={"host": "localhost:1234"}).status_code == 200


@contextlib.contextmanager
def command(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`edgebed dashboard` as a person starts it; yields the address it prints."""
    env = os.environ | {"EDGEBED_RUNS": str(folder)}
    process = subprocess.Popen([*CLI, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Page: "), line or finish(process)
        yield line.removeprefix("Page: ").strip(), process
    finally:
        if process.poll() is None:
            process.kill()
        finish(process)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_is_made_and_needed_for_every_page(tmp_path: Path, host: str) -> None:
    record(tmp_path / "one", Synthetic().records)
    with command(tmp_path, "--host", host) as (address, _):
        port = httpx.URL(address).port
        token = httpx.URL(address).params["token"]
        here = f"http://127.0.0.1:{port}/"
        assert len(token) >= 20
        assert httpx.get(here).status_code == 401
        assert httpx.get(here, params={"token": token[:-1]}).status_code == 401
        for path in ("events", "api/compare?runs=one", "api/runs/one/rounds/1", "nothing"):
            assert httpx.get(here + path).status_code == 401
        assert httpx.get(f"{here}static/main.js").status_code == 401
        assert httpx.get(f"{here}metrics").status_code == 401
        assert httpx.get(f"{here}metrics", headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert httpx.get(here, headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert httpx.get(here, headers={"host": "evil.example", "authorization": f"Bearer {token}"}).status_code == 421
        with httpx.Client() as client:
            welcome = client.get(here, params={"token": token})
            assert welcome.status_code == 303
            assert "token" not in welcome.headers["location"]
            cookie = welcome.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert client.get(here).status_code == 200


def test_a_page_beside_an_experiment_shows_what_is_done_before_its_first_round(tmp_path: Path) -> None:
    said: list[str] = []
    with page_beside(tmp_path, "demo", PageAddress(), said.append) as tell:
        address = said[0].removeprefix("Live page: ")
        with events(address) as stream:
            assert stream.next("runs") == []
            tell("preparing 5 devices\nand more")
            tell("calibrating")
            steps = stream.next("steps")
            while len(steps) < 2:
                steps = stream.next("steps")
        assert [text for text, _ in steps] == ["preparing 5 devices", "calibrating"]
        assert all(0 <= age < 60 for _, age in steps)


def test_the_command_shows_the_runs_it_is_given_and_ends_with_open_pages(tmp_path: Path) -> None:
    for name in ("one", "two"):
        record(tmp_path / name, Synthetic().records)
    with command(tmp_path, "one") as (address, process), events(address) as stream:
        assert [card["id"] for card in stream.next("runs")] == ["one"]
        process.send_signal(signal.SIGINT)
        stream.next("bye")
        assert process.wait(60) in (0, 130, -signal.SIGINT)


def test_a_port_that_is_taken_is_told_with_its_hint(tmp_path: Path) -> None:
    record(tmp_path / "one", Synthetic().records)
    with command(tmp_path) as (address, _):
        port = str(httpx.URL(address).port)
        env = os.environ | {"EDGEBED_RUNS": str(tmp_path)}
        again = run([*CLI, "--port", port], env=env)
        assert again.returncode == 2
        assert "--port 0" in again.stderr


def test_a_token_for_the_page_beside_a_run_is_asked_for_and_is_no_argument(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "runs").mkdir()
    with page_beside(tmp_path / "runs", "synthetic", PageAddress(token="geheim"), said.append):
        address = said[0].removeprefix("Live page: ").partition("?")[0]
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, headers={"authorization": "Bearer geheim"}).status_code == 200
        arguments = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _is_page(path)]
        assert arguments
        assert not any(b"geheim" in each for each in arguments)


def _is_page(path: Path) -> bool:
    try:
        return b"orchestrator.dashboard" in path.read_bytes()
    except OSError:
        return False


def test_a_page_that_says_nothing_does_not_hold_up_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\necho trouble >&2\nexec cat >/dev/null\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr("orchestrator.dashboard.subprocess_server.START_S", 0.5)
    with pytest.raises(UsageError, match="trouble"), page_beside(tmp_path, "synthetic", PageAddress(), print):
        pass


def test_a_run_that_is_deleted_while_it_is_looked_at_is_left_out(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "records.jsonl"
    gone.parent.mkdir()
    gone.symlink_to(tmp_path / "nothing")
    record(tmp_path / "one", Synthetic().records)
    assert [card["id"] for card in RunList(Wanted(library=tmp_path)).cards()] == ["one"]
    assert make_card(gone) is None


def test_the_page_beside_a_run_ends_with_it(tmp_path: Path) -> None:
    with page(tmp_path / "runs") as address:
        assert get(address).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(address)


def test_the_server_needs_no_torch() -> None:
    """It is started beside a run, whose host is small: it must not load what only training needs."""
    code = "import sys, orchestrator.dashboard.__main__; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code]).returncode == 0


def test_the_records_are_only_read(tmp_path: Path) -> None:
    record(tmp_path / "runs" / "one", Synthetic().records)
    before = (tmp_path / "runs/one/records.jsonl").read_bytes()
    with page(tmp_path / "runs") as address, events(address, "one") as stream:
        stream.next("state")
    assert (tmp_path / "runs/one/records.jsonl").read_bytes() == before
    assert msgspec.json.decode(before.split(b"\n")[0])["type"] == "run_started"
