"""Boards that limit themselves: what is asked for is held, read back, calibrated, and undone, also after a crash."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from edgebed.errors import CapacityError, LimitError
from edgebed.limits.spec import Limits
from edgebed.limits.throttle import shape_commands
from orchestrator.boards.members import with_facts
from orchestrator.boards.registry import Board, Store
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.calibration.calibrate import calibrate
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.types import LimitsSet
from orchestrator.runs.session import standing_fleet
from tests.artificial_board import ArtificialBoard, artificial_board, wait_for

pytestmark = [pytest.mark.root, pytest.mark.mosquitto, pytest.mark.alone]

PROFILE = "{cpus: 0.3, uplink_mbit_s: 12, downlink_mbit_s: 25, memory_mib: 1024}"
LIMITS = Limits(0.3, 12_000_000, 25_000_000, 1024)


def fleet_file(folder: Path, profile: str = PROFILE, beside: str = "") -> Path:
    (folder / "like-pi.yaml").write_text(profile)
    path = folder / "fleet.yaml"
    path.write_text(f"name: limited\ndevices: [{{board: pi, profile: like-pi, limit: true}}{beside}]\n")
    return path


async def test_a_board_holds_its_limits_divided_by_d_calibrates_and_undoes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a device of this host, in a fleet with D = 2."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    spec = load_fleet(fleet_file(tmp_path, beside=", {profile: like-pi, name: cpu}"))
    with artificial_board(tmp_path, "pi", LIMITS, limited=False) as board:
        before = board.qdiscs()
        async with standing_fleet(with_facts(spec), dilation=2.0) as controller:
            assert str(controller.enforcement) == "kernel"
            held = await controller.backend.held("pi")
            assert (held.cpus, held.uplink_bit_s, held.downlink_bit_s) == (0.15, 6_000_000, 12_500_000)
            assert held.period_us == 200_000
            set_ = {row.device: row for row in controller.facts() if isinstance(row, LimitsSet)}
            assert (set_["pi"].cpus, set_["pi"].held_cpus) == (set_["cpu"].cpus, set_["cpu"].held_cpus) == (0.15, 0.15)
            assert "tbf" in board.qdiscs()
            agent = controller.membership.devices["pi"].incarnation
            again = await controller.backend.limit("pi", Limits(0.15, 3_000_000, 12_500_000, 1024))
            assert again.uplink_bit_s == 3_000_000
            await controller.backend.limit("pi", controller.limits["pi"])
            result = await calibrate(
                controller.backend, controller.limits, controller.membership, short=True, on_row=lambda row: None
            )
            assert controller.membership.devices["pi"].incarnation == agent
            assert result.passed, [row for row in result.rows if row.judged and not row.passed]
            asked = {(row.device, row.requested) for row in result.rows if row.judged and row.unit == "CPUs"}
            assert asked == {("pi", 0.15), ("cpu", 0.15)}
        wait_for(lambda: board.qdiscs() == before)
        leaves_nothing_after_a_crash(board, before, tmp_path / "pi" / "limits.json")


def leaves_nothing_after_a_crash(board: ArtificialBoard, before: str, note: Path) -> None:
    """A board that was killed with its limits on removes them when it starts again."""
    for command in shape_commands("eth0", LIMITS.uplink_bit_s):
        board.inside(*command)
    note.write_text('{"interface": "eth0"}')
    board.end(signal.SIGKILL)
    board.start()
    assert board.qdiscs() == before
    assert not note.exists()


async def test_a_queueing_discipline_of_somebody_else_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with artificial_board(tmp_path, "pi", LIMITS, limited=False) as board:
        board.inside("tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "7:", "bfifo")
        before = board.qdiscs()
        with pytest.raises(LimitError, match="the board pi cannot be limited: eth0 has a queueing discipline") as error:
            async with standing_fleet(with_facts(load_fleet(fleet_file(tmp_path))), dilation="off"):
                pass
        assert "tc qdisc del dev eth0 root" in str(error.value)
        assert board.qdiscs() == before


async def test_a_profile_that_is_larger_than_the_board_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = ServiceFolder(tmp_path / "edgebed" / "boards")
    place.folder.mkdir(parents=True)
    with Store(place).change() as registry:
        registry.boards.append(Board("b" + "0" * 31, "pi", "", "", 0.0, [], 9e9, 0.0, facts={"cores": "2"}))
    with pytest.raises(CapacityError, match="has 3 cores, the board pi 2"):
        with_facts(load_fleet(fleet_file(tmp_path, PROFILE.replace("0.3", "3"))))
