"""`--notify URL`: one message at the end, whatever the end is; a deaf receiver changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from edgebed.errors import FleetError, UsageError
from orchestrator.cli.notice import notice
from tests.synthetic import Synthetic
from tests.unit._runs import keep


class Receiver(HTTPServer):
    def __init__(self, status: int) -> None:
        self.status, self.heard = status, list[bytes]()
        super().__init__(("127.0.0.1", 0), Heard)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class Heard(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.heard.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(params=[200, 500])
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with Receiver(request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_end_is_told_once_with_its_runs(tmp_path: Path, receiver: Receiver) -> None:
    said: list[str] = []
    with notice(receiver.url, "demo", said.append) as folders:
        folders += [keep(tmp_path / "one", Synthetic().records), tmp_path / "broken"]
    (heard,) = map(json.loads, receiver.heard)
    (run,) = heard.pop("runs")
    assert heard == {"experiment": "demo", "ended": "finished", "why": ""}
    assert run["method"] == "dtfl"
    assert run["time_to_target_s"] == pytest.approx(6, abs=1)
    assert bool(said) is (receiver.status == 500)


@pytest.mark.parametrize(
    ("error", "ended"), [(FleetError("no device"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_failure_is_told_and_stays_a_failure(receiver: Receiver, error: BaseException, ended: str) -> None:
    with pytest.raises(type(error)), notice(receiver.url, "demo", lambda line: None):
        raise error
    (heard,) = map(json.loads, receiver.heard)
    assert heard["ended"] == ended
    assert heard["why"] == ("no device" if ended == "failed" else "")


def test_nobody_there_is_told_and_a_wrong_address_is_refused_before_the_run() -> None:
    said: list[str] = []
    with notice("http://127.0.0.1:9/x?secret=1", "demo", said.append):
        pass
    assert "was not taken" in said[0]
    assert "secret" not in said[0]
    for wrong in ("ftp://host/x", "host", "file:///etc/passwd"):
        with pytest.raises(UsageError, match="is not an HTTP address"), notice(wrong, "demo", said.append):
            pytest.fail("the run began")
    with notice(None, "demo", said.append):
        pass
    assert len(said) == 1
