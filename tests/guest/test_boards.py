"""A board that limits itself by cgroups of version 2, tbf, ifb and netem."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from edgebed.limits.cgroups import MOUNT
from edgebed.limits.spec import Limits
from orchestrator.boards.members import with_facts
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.runs import session
from tests.artificial_board import artificial_board
from tests.guest._devices import connect_s, quota_in_force

pytestmark = [pytest.mark.guest, pytest.mark.mosquitto]

PATIENCE_S = 600.0
FREE = Limits(1.0, 1, 1, 1)
PROFILE = "{cpus: 0.1234, uplink_mbit_s: 12, downlink_mbit_s: 25, memory_mib: 1024, latency_ms: 40}"


async def test_a_board_limits_itself_and_nothing_stays_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(session, "JOIN_TIMEOUT_S", PATIENCE_S)
    (tmp_path / "far.yaml").write_text(PROFILE)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("name: limited\ndevices: [{board: pi, profile: far, limit: true}]\n")
    with artificial_board(tmp_path, "pi", FREE, limited=False) as board:
        plain = board.qdiscs()
        async with session.standing_fleet(with_facts(load_fleet(fleet)), dilation="off") as controller:
            held = await controller.backend.held("pi")
            assert (held.uplink_bit_s, held.downlink_bit_s) == (12_000_000, 25_000_000)
            assert (held.uplink_latency_ms, held.downlink_latency_ms) == (40, 40)
            (agent,) = pids_in(MOUNT / "edgebed" / "board")
            assert quota_in_force(agent) == pytest.approx(0.1234, rel=0.01)
            where = board.place.where()
            assert where is not None
            assert 0.08 <= connect_s(agent, where.listen, where.mqtt_port) < 1
            board.end(signal.SIGKILL)
            assert "netem" in board.qdiscs()
        board.start()
        assert board.qdiscs() == plain
        assert not pids_in(MOUNT / "edgebed" / "board")


def pids_in(cgroup: Path) -> list[int]:
    procs = cgroup / "cgroup.procs"
    return [int(line) for line in procs.read_text().split()] if procs.exists() else []
