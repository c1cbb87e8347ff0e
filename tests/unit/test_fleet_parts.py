"""Owners, subnets and cgroup paths: the small parts of the backends."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import FleetError, LimitError, UsageError, WireError
from edgebed.limits import cgroups
from edgebed.limits.cpu_quota import CpuQuota
from edgebed.wire import fork_protocol
from orchestrator.boards.authority import Authority
from orchestrator.fleet import leftovers, ownership
from orchestrator.fleet.host.cores import quota_cpus
from orchestrator.fleet.host.cpus import Admitted
from orchestrator.fleet.local import backend as local
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.fleet.named import Opening, backend_class
from orchestrator.fleet.network import links, netns
from orchestrator.fleet.network.subnets import free_subnets, parse_routes
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec

POOL = IPv4Network("10.84.0.0/24")


def test_this_process_is_alive_and_survives_being_written_down() -> None:
    me = ownership.this_process()
    assert ownership.parse_owner(str(me)) == me
    assert not ownership.is_dead(me)


def test_a_process_that_ended_is_dead_and_its_number_used_again_too() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = msgspec.structs.replace(ownership.this_process(), pid=child.pid)
        started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        assert not ownership.is_dead(msgspec.structs.replace(living, started=started))
        assert ownership.is_dead(msgspec.structs.replace(living, started=started - 1))
    assert ownership.is_dead(msgspec.structs.replace(living, started=started))


def test_who_cannot_be_judged_is_not_dead() -> None:
    me = ownership.this_process()
    assert not ownership.is_dead(msgspec.structs.replace(me, pid_namespace="1", pid=1, started=0))
    assert not ownership.is_dead(ownership.parse_owner("no owner"))


def test_another_boot_is_dead_on_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines may use one engine: what the other one made has another boot id and is none of ours."""
    monkeypatch.setattr(ownership, "MACHINE_ID", tmp_path / "machine-id")
    earlier = msgspec.structs.replace(ownership.this_process(), boot="another boot")
    assert earlier.machine == ""
    assert not ownership.is_dead(earlier)  # a machine without an id
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    earlier = msgspec.structs.replace(ownership.this_process(), boot="another boot")
    assert ownership.is_dead(earlier)
    assert not ownership.is_dead(msgspec.structs.replace(earlier, machine="another machine"))


def stand_in_proc(folder: Path, monkeypatch: pytest.MonkeyPatch, boot: str, namespace: str) -> None:
    """A /proc without processes, of this boot, as seen from this PID namespace."""
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
    monkeypatch.setattr(ownership, "PROC", folder)


def test_an_owner_in_another_pid_namespace_is_dead_when_nobody_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_proc(tmp_path, monkeypatch, "b", ownership.INITIAL_NAMESPACE)
    monkeypatch.setattr(ownership.os, "geteuid", lambda: 0)
    inside = ownership.Owner("m", "b", "7", 1, 1)
    for pid, namespace in ((1, ownership.INITIAL_NAMESPACE), (9, "7")):
        (tmp_path / str(pid) / "ns").mkdir(parents=True)
        (tmp_path / str(pid) / "ns" / "pid").symlink_to(f"pid:[{namespace}]")
    assert not ownership.is_dead(inside)
    (tmp_path / "9" / "ns" / "pid").unlink()  # it has just ended
    assert ownership.is_dead(inside)
    monkeypatch.setattr(ownership.os, "geteuid", lambda: 1000)  # who does not see all processes cannot say so
    assert not ownership.is_dead(inside)


def test_a_process_that_proc_hides_is_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    me = ownership.this_process()
    stand_in_proc(tmp_path, monkeypatch, me.boot, me.pid_namespace)
    assert ownership.is_dead(me)
    monkeypatch.setattr(ownership.os, "kill", refuse)  # another user's, and /proc is mounted with hidepid
    assert not ownership.is_dead(me)


@given(st.text(max_size=40))
def test_no_label_breaks_the_parser(text: str) -> None:
    parsed = ownership.parse_owner(text)
    assert parsed is None or ownership.parse_owner(str(parsed)) == parsed


@given(st.lists(st.integers(0, 63), max_size=40))
def test_free_subnets_overlap_nothing_taken(taken: list[int]) -> None:
    used = [list(POOL.subnets(new_prefix=30))[i] for i in taken]
    free = list(itertools.islice(free_subnets(POOL, 30, used), 64 - len(set(taken))))
    assert len(free) == 64 - len(set(taken))
    assert not any(f.overlaps(u) for f in free for u in used)


def test_a_full_pool_is_an_error_with_a_hint() -> None:
    with pytest.raises(FleetError, match="no subnet"):
        list(free_subnets(POOL, 30, [IPv4Network("10.0.0.0/8")]))


def test_routes_of_the_host() -> None:
    output = json.dumps([{"dst": "default"}, {"dst": "172.17.0.0/16"}, {"dst": "10.84.0.1"}])
    assert parse_routes(output) == [IPv4Network("172.17.0.0/16"), IPv4Network("10.84.0.1/32")]


def test_interface_names_fit_the_kernel() -> None:
    names = [netns.wire_names("f" * 40, i)[1] for i in (0, 999)]
    assert all(len(name) <= 15 for name in names)
    assert netns.wire_names("f1", 0) != netns.wire_names("f2", 0)


V1_TEXT = "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n0::/\n"


def test_membership_of_both_versions() -> None:
    v1 = cgroups.parse_membership(V1_TEXT, 1, Path("/cg"))
    assert v1["cpu"] == Path("/cg/cpu/docker/x")
    assert v1["memory"] == Path("/cg/memory/docker/x")
    v2 = cgroups.parse_membership("0::/system.slice/docker-x.scope\n", 2, Path("/cg"))
    assert v2["cpu"] == Path("/cg/system.slice/docker-x.scope")
    with pytest.raises(LimitError, match="memory"):
        cgroups.parse_membership("3:cpu,cpuacct:/\n", 1, Path("/cg"))


def test_version_two_on_a_copy_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    group = cgroups.Cgroup.named("f1-0", tmp_path)
    group.make()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"
    group.set(Limits(0.25, 1, 1, 64))
    folder = tmp_path / "edgebed" / "f1-0"
    assert not (folder / "memory.swap.max").exists()  # a kernel that does not account for swap
    (folder / "memory.swap.max").write_text("max")
    group.set(Limits(0.25, 1, 1, 64))
    assert (folder / "memory.swap.max").read_text() == "0"
    (folder / "cpu.stat").write_text("usage_usec 5\n")
    (folder / "memory.current").write_text("0")
    assert group.read().quota == CpuQuota(25_000, 100_000)
    assert group.read().memory_mib == 64
    group.lift()
    assert group.read().quota is None
    assert (folder / "memory.swap.max").read_text() == "max"
    assert group.procs_files() == [str(folder / "cgroup.procs")]


def test_no_cgroups_is_said(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="no cgroups"):
        cgroups.version_of(tmp_path)


@given(st.binary(max_size=80))
def test_lines_of_the_fork_server_are_typed(line: bytes) -> None:
    message = fork_protocol.Fork("d", ("--x",), "mqtt://h", "/log", "/s", 7, "/root", "/run/netns/n", ("/a",))
    assert fork_protocol.decode(fork_protocol.encode(message)) == message
    try:
        fork_protocol.decode(line)
    except WireError as error:
        assert "fork server" in str(error)  # noqa: PT017


def spec(latency_ms: float = 0.0) -> FleetSpec:
    limits = Limits(0.1, 10**6, 10**6, 256, latency_ms)
    return FleetSpec("f", "local", 0.5, (DeviceSpec("d", ProfileSpec("p", limits)),), Path("f.yaml"))


def opening(spec: FleetSpec, notify: Callable[[str], None]) -> Opening:
    admitted: Admitted = None  # type: ignore[assignment]  # a backend of this host alone does not look at it
    return Opening(spec, "f1", admitted, Path(), Authority, notify)


def test_backends_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="kubernetes"):
        backend_class("kubernetes")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said: list[str] = []
    assert backend_class("local").open(opening(spec(), said.append)).enforcement == "software"
    assert "not root" in said[0]
    assert backend_class("software").open(opening(spec(), said.append)).enforcement == "software"
    assert "software was asked for" in said[1]
    with pytest.raises(FleetError, match="cannot add latency"):
        backend_class("local").open(opening(spec(latency_ms=5), said.append))


def a_cgroup(folder: Path, processes: str) -> cgroups.Cgroup:
    """Of version 2, as files; nothing moves when a process is written to another one."""
    (folder / cgroups.CHILD).mkdir(parents=True)
    (folder / "cgroup.procs").write_text(processes)
    return cgroups.Cgroup({"cpu": folder, "memory": folder}, 2)


def test_an_empty_cgroup_hands_its_controllers_to_the_child(tmp_path: Path) -> None:
    child = a_cgroup(tmp_path, "").take_in()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert set(child.paths.values()) == {tmp_path / cgroups.CHILD}


def test_processes_that_do_not_move_are_an_error_and_no_controller_is_handed_down(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="cannot be moved"):
        a_cgroup(tmp_path, "4711\n").take_in()
    assert (tmp_path / cgroups.CHILD / "cgroup.procs").read_text() == "4711"
    assert not (tmp_path / "cgroup.subtree_control").exists()


def test_a_cgroup_of_no_process_is_an_error() -> None:
    with pytest.raises(LimitError, match="has ended"):
        cgroups.Cgroup.of_process(0)


def test_the_quota_in_force_is_read_from_what_the_helper_prints() -> None:
    assert quota_cpus(links.parse_files("cpu.max 3000 100000\n")) == 0.03
    assert quota_cpus(links.parse_files("cpu.cfs_quota_us -1\ncpu.cfs_period_us 100000\n")) is None
    assert links.parse_files("") == {}


async def test_a_fleet_does_not_wait_for_ever_for_another_one_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "STATE", tmp_path)
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as an orchestrator that is stopped holds it
        closed = LocalBackend(spec(), "f00000001", kernel=True)
        waiting = asyncio.create_task(closed.prepare())
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await closed.close()
            with pytest.raises(FleetError, match="being closed"):
                await waiting
        monkeypatch.setattr(local, "LOCK_S", 0.05)
        with pytest.raises(FleetError, match=r"another process has held .*lock"):
            await LocalBackend(spec(), "f00000002", kernel=True).prepare()
