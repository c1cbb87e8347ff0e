"""What is read of a host at the start and the end of a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.fleet.host.load import HostLoad, devices_cpu_s
from orchestrator.fleet.host.speed import HostSpeed
from orchestrator.records.host_records import HostRound
from orchestrator.records.types import Record, RoundFinished, RoundStarted


def speed(*pieces: tuple[int, int]) -> HostSpeed:
    made = HostSpeed()
    for at_ns, cpu_ns in pieces:
        made.add(b"%d %d\n" % (at_ns, cpu_ns))
    return made


def test_the_speed_of_a_round_is_the_median_of_its_pieces() -> None:
    found = speed((5, 9_000_000), (10, 2_000_000), (15, 4_000_000), (20, 3_000_000), (21, 9_000_000))
    assert found.between(10, 20) == (3.0, 3)
    assert found.between(30, 40) == (None, 0)


def test_a_piece_that_is_cut_off_is_left_out() -> None:
    found = speed((10, 2_000_000))
    for cut in (b"9", b"9 4"):
        found.add(cut)
    assert found.between(0, 10) == (2.0, 1)


def test_every_finished_round_is_told_after_its_end() -> None:
    told: list[Record] = []
    record = HostLoad(HostSpeed(), {"gone": lambda: None, "unknown": lambda: 4194305}).recording(told.append)
    for number in (0, 1):
        record(RoundStarted(1, number, 0.0, 0.1, ()))
    for number in (1, 0, 7):
        record(RoundFinished(2, number, 1.0, (), "all done"))
    assert [type(each) for each in told[2:]] == [RoundFinished, HostRound, RoundFinished, HostRound, RoundFinished]
    rounds = [each for each in told if isinstance(each, HostRound)]
    assert [each.round for each in rounds] == [1, 0]
    for host in rounds:
        assert host.cores >= 1
        assert 0 <= host.busy_s <= host.cores * (host.at_ns - host.start_ns) / 1e9
        assert set(host.load_s) == {"orchestrator", "event loop"}
        assert (host.loop_ms, host.loops) == (None, 0)


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({"cpuacct/edgebed/cpuacct.usage": "2500000000\n"}, 2.5),
        (
            {"edgebed/cpu.stat": "usage_usec 500000\nuser_usec 1\n", "edgebed.slice/cpu.stat": "usage_usec 250000\n"},
            0.75,
        ),
        ({}, None),
    ],
    ids=["version 1", "version 2, with containers of systemd", "none"],
)
def test_cpu_time_of_all_devices(tmp_path: Path, files: dict[str, str], seconds: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert devices_cpu_s(tmp_path) == seconds
