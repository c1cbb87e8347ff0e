"""How many cores are usable: affinity, and quotas of both cgroup versions wherever they stand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.fleet.host import cores as host


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def put(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)


def cores(mount: Path, membership: str) -> float:
    file = mount.parent / "membership"
    file.write_text(membership)
    return host.usable_cores(mount, file)


def test_affinity_counts_where_no_quota_does(tmp_path: Path) -> None:
    put(tmp_path / "cg", cgroup__controllers="cpu memory\n")
    assert cores(tmp_path / "cg", "0::/user.slice\n") == 8
    assert host.usable_cores(tmp_path / "nothing", tmp_path / "nothing") == 8


@pytest.mark.parametrize("limited", ["a", "a/b"])
def test_version_two_counts_its_own_quota_and_those_above(tmp_path: Path, limited: str) -> None:
    mount = tmp_path / "cg"
    put(mount, cgroup__controllers="cpu memory\n")
    put(mount / "a", cpu__max="max 100000\n")
    put(mount / "a" / "b", cpu__max="700000 100000\n")
    put(mount / limited, cpu__max="150000 100000\n")
    assert cores(mount, "0::/a/b\n") == 1.5


def test_version_one_inside_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    put(mount / "cpu", cpu__cfs_quota_us="250000\n", cpu__cfs_period_us="100000\n")
    assert cores(mount, "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n") == 2.5


def test_a_generous_quota_adds_no_cores(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    put(mount / "cpu" / "s", cpu__cfs_quota_us="9900000\n", cpu__cfs_period_us="100000\n")
    assert cores(mount, "3:cpu:/s\n") == 8


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.cfs_quota_us": "300000\n", "cpu.cfs_period_us": "100000\n"}, 3.0),
        ({"cpu.cfs_quota_us": "300000\n"}, None),
        ({"cpu.max": "1 0"}, None),
        ({}, None),
    ],
)
def test_quotas_of_both_versions(files: dict[str, str], quota: float | None) -> None:
    assert host.quota_cpus(files) == quota


@given(st.text(max_size=60), st.booleans())
def test_no_membership_leads_out_of_the_mount(text: str, unified: bool) -> None:
    folder = host.cpu_folder(text, unified)
    assert not folder.startswith("/")
    assert ".." not in folder.split("/")


def test_a_thread_that_cannot_run_is_a_host_that_stands_still() -> None:
    with host.HostWatch() as watch:
        sum(range(20_000_000))  # one long call that lets no other thread run
    lost = watch.lost()
    assert 0.05 < lost.stalled_s <= lost.wall_s
    assert lost.serious


class CpuTimes(NamedTuple):
    user: float
    steal: float


def test_what_a_hypervisor_takes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([CpuTimes(user=90.0, steal=10.0), CpuTimes(user=91.8, steal=10.2)])
    monkeypatch.setattr(host.psutil, "cpu_times", lambda: next(times))
    with host.HostWatch() as watch:
        pass
    assert watch.lost().stolen == pytest.approx(0.1)
    assert watch.lost().serious
    assert "10% of its CPU time was stolen" in str(watch.lost())
    assert not host.Disturbance(1.0, 0.01, 0.01).serious
