"""Where an agent finds the counters of its own cgroup, and what it reads there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.telemetry import RECENT_NS, RunDelay, Throttling, parse_cpu_stat, resident_mib

V1 = b"nr_periods 9\nnr_throttled 4\nthrottled_time 7000\n"
V2 = b"usage_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 7\n"


def host(root: Path, membership: str, **files: bytes) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/") / "cpu.stat"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    return root


@pytest.mark.parametrize("text", [V1, V2])
def test_both_versions_are_read(text: bytes) -> None:
    assert parse_cpu_stat(text) == (7000, 4)


def test_its_own_group_comes_before_the_root(tmp_path: Path) -> None:
    zero = V1.replace(b"4", b"0").replace(b"7000", b"0")
    root = host(tmp_path, "4:cpu,cpuacct:/edgebed/d1\n", cpu=zero, cpu__edgebed__d1=V1)
    assert Throttling(root).read() == (7000, 4)


def test_in_a_container_the_top_of_the_mount_is_its_own(tmp_path: Path) -> None:
    assert Throttling(host(tmp_path, "4:cpu:/docker/abc\n", cpu=V1)).read() == (7000, 4)


def test_version_2(tmp_path: Path) -> None:
    assert Throttling(host(tmp_path, "0::/edgebed/d1\n", edgebed__d1=V2)).read() == (7000, 4)


def test_nothing_to_see(tmp_path: Path) -> None:
    nothing = Throttling(host(tmp_path, "0::/\n"))
    assert not nothing.visible
    assert nothing.read() == (0, 0)


def test_memory_is_what_is_resident(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_bytes(b"90000 2560 100 1 0 9 0\n")
    assert resident_mib(statm) == pytest.approx(2560 * os.sysconf("SC_PAGE_SIZE") / 2**20, abs=0.1)
    assert resident_mib(tmp_path / "none") == 0.0
    assert resident_mib() > 5


def test_counters_read_a_moment_ago_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr("edge_agent.telemetry.time.monotonic_ns", lambda: now)
    counters = Throttling(host(tmp_path, "0::/edgebed/d1\n", edgebed__d1=V2))
    assert counters.recent() == (7000, 4)
    (tmp_path / "sys/fs/cgroup/edgebed/d1/cpu.stat").write_bytes(V2.replace(b"usec 7", b"usec 9"))
    assert counters.recent() == (7000, 4)
    now += RECENT_NS + 1
    assert counters.recent() == (9000, 4)


def test_the_delay_of_threads_counts_from_the_start(tmp_path: Path) -> None:
    def thread(number: int, delay_ns: int) -> None:
        (tmp_path / str(number)).mkdir(exist_ok=True)
        (tmp_path / str(number) / "schedstat").write_text(f"77 {delay_ns} 5\n")

    thread(1, 1_000_000_000)
    thread(2, 500)
    delay = RunDelay(str(tmp_path))
    thread(1, 1_250_000_000)
    thread(3, 1_000_000)
    (tmp_path / "2" / "schedstat").unlink()
    assert delay.seconds() == pytest.approx(0.251)


def test_no_delay_is_told_where_the_kernel_keeps_none(tmp_path: Path) -> None:
    assert RunDelay(str(tmp_path / "none")).seconds() is None


def test_the_kernel_counts_the_delay_of_this_process() -> None:
    delay = RunDelay().seconds()
    assert delay is not None
    assert delay >= 0
