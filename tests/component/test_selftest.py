"""`edgebed boards selftest`: one file of everything that a board showed, and what it holds where a part failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("cryptography")

from edgebed.errors import FleetError
from edgebed.limits.spec import Limits
from edgebed.wire.reading import BoardReading
from orchestrator.boards.registry import Board, Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.cli import build
from orchestrator.cli.boards_selftest import sensors, without_names
from orchestrator.records.host_records import BoardReadings
from orchestrator.runs import session
from tests.artificial_board import artificial_board

FREE = Limits(2.0, 10**9, 10**9, 4096)
PARTS = ["install", "orchestrator", "rounds", "torch", "sensors", "tls", "reference", "limits"]


@pytest.mark.root
@pytest.mark.mosquitto
def test_the_file_has_all_that_the_board_showed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = tmp_path / "pi.json"
    with artificial_board(tmp_path, "pi", FREE, limited=False):
        done = CliRunner().invoke(build("boards"), ["boards", "selftest", "pi", "--output", str(path)])
        assert done.exit_code == 0, done.output
        again = CliRunner().invoke(build("boards"), ["boards", "selftest", "pi", "--output", str(path)])
        assert "exists already" in str(again.exception)
    found: dict[str, Any] = json.loads(path.read_bytes())
    assert [part for part in found if part not in ("date", "edgebed")] == PARTS
    assert found["install"]["python"]
    assert found["torch"]["torch_build"]
    assert {method: len(each["round_s"]) for method, each in found["rounds"].items()} == {"fedavg": 3, "splitfed": 3}
    assert len(found["tls"]["mb_s"]) == 6
    assert all(0 < rate < 10_000 for rate in found["tls"]["mb_s"])
    assert found["sensors"]["readings"] > 0
    assert found["reference"]["work"]
    assert {row["quantity"] for row in found["limits"]["rows"]} >= {"uplink", "downlink"}
    assert "hostname" not in path.read_text()


def test_a_part_that_fails_stands_in_the_file_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = ServiceFolder.of_user()
    place.shards.mkdir(parents=True, exist_ok=True)
    facts = {"host": "kitchen-of-anna", "python": "3.11.2", "cores": "4", "memory_mib": "4096"}
    with Store(place).change() as registry:
        registry.boards.append(Board("b1", "pi", "", "k", 0.0, [], 4e9, 0.0, facts=facts))

    async def away(*_: object) -> None:
        hint = "ssh://anna@server; see /home/anna/log; kitchen-of-anna is at 192.168.1.10, fe80::1%eth0, annas.lan:7443"
        raise FleetError("the board pi is away", hint=hint)

    monkeypatch.setattr(session, "run_experiment", away)
    path = tmp_path / "pi.json"
    path.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(session, "standing_fleet", lambda *_, **__: Away())
        done = CliRunner().invoke(build("boards"), ["boards", "selftest", "pi", "--output", str(path), "--force"])
    assert done.exit_code == 1, done.output
    assert "FAILED rounds: the board pi is away" in done.stdout
    found = json.loads(path.read_bytes())
    assert found["rounds"] == {"error": "the board pi is away", "hint": "… see …/log; … is at …, …%eth0, …"}
    assert found["limits"]["error"] == "the board pi is away"
    assert [part for part, each in found.items() if "error" in each] == [
        "rounds",
        "torch",
        "tls",
        "reference",
        "limits",
    ]
    assert found["install"] == {key: text for key, text in facts.items() if key != "host"}
    assert "kitchen" not in path.read_text()
    assert "anna" not in path.read_text()


class Away:
    async def __aenter__(self) -> None:
        raise FleetError("the board pi is away")

    async def __aexit__(self, *_: object) -> None: ...


def test_sensors_are_counted_by_quantity() -> None:
    readings = (BoardReading(1, mhz=(600, 700)), BoardReading(2, mhz=(800, 900), celsius=41.5))
    records = [BoardReadings(3, "pi", "1", readings)]
    assert sensors(records) == {
        "readings": 2,
        "mhz": {"readings": 2, "last": (800, 900)},
        "celsius": {"readings": 1, "last": 41.5},
    }


def test_what_says_where_a_board_is_stays_out_of_the_file() -> None:
    clock = {"clock": "synchronised with ntp.anna.lan", "clock_error_s": "0.002"}
    engine = "HTTPConnectionPool(host='engine.anna.lan', port=2375): Failed; at 10.0.0.5 and 8c:85:90:aa:bb:cc; on pi4"
    kept = {"kernel": "6.1.0-18-amd64", "started": "2026-11-24T02:49:41.123+00:00", "runc": "1.1.5+ds1", "hz": 250}
    assert without_names({"torch": clock, "docker": [engine], **kept}, "pi4", "") == {
        "torch": {"clock": "synchronised with …", "clock_error_s": "0.002"},
        "docker": ["HTTPConnectionPool(…, port=2375): Failed; at … and …; on …"],
        **kept,
    }
