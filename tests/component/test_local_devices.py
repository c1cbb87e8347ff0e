"""Devices of a local fleet: what holds their limits, what their agents may do, and how they come back. All tests share
one fleet."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from edgebed.limits.cgroups import Cgroup
from edgebed.limits.shell import run
from edgebed.wire.fork_protocol import Fork, encode
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.fleet.spec.profile import Limits
from orchestrator.runs.session import standing_fleet
from tests.component._faults import pid_of, process_status, small_fleet

pytestmark = [pytest.mark.root, pytest.mark.mosquitto, pytest.mark.asyncio(loop_scope="module")]

CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def controller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FleetController]:
    spec = small_fleet(tmp_path_factory.mktemp("fleet"), 0.3, 0.3)
    async with standing_fleet(spec, backend="local", dilation="off") as controller:
        yield controller


async def test_limits_change_in_place_and_read_back(controller: FleetController) -> None:
    held = await controller.backend.limit("d0", Limits(0.5, 5_000_000, 6_000_000, 900))
    assert (held.cpus, held.uplink_bit_s, held.downlink_bit_s, held.memory_mib) == (0.5, 5_000_000, 6_000_000, 900)
    assert held.alive
    assert held.uplink_bytes > 0
    memory = Cgroup.of_process(pid_of(controller, "d0")).paths["memory"]
    for mib in (1200, 800):  # up and down: version 1 takes the two limits in one order only
        await controller.backend.limit("d0", Limits(0.5, 5_000_000, 6_000_000, mib))
        no_swap = {"memory.memsw.limit_in_bytes": mib * 2**20, "memory.swap.max": 0}
        found = {name: int((memory / name).read_text()) for name in no_swap if (memory / name).exists()}
        assert found == {name: no_swap[name] for name in found}


async def test_a_latency_that_is_no_longer_wanted_goes_and_the_rate_stays(controller: FleetController) -> None:
    inside = ["nsenter", "--target", str(pid_of(controller, "d0")), "--net", "tc"]
    delay = "qdisc replace dev eth0 parent 1:1 handle 10: pfifo limit 9"  # stands in for netem, which few kernels have
    run([*inside, *delay.split()])
    await controller.backend.limit("d0", Limits(0.3, 5_000_000, 6_000_000, 900))
    qdiscs = json.loads(run([*inside, "-j", "qdisc", "show", "dev", "eth0"]))
    assert [(q["kind"], q["handle"]) for q in qdiscs] == [("tbf", "1:"), ("bfifo", "20:")]


async def test_the_agent_may_not_touch_its_limits_nor_leave_its_network(controller: FleetController) -> None:
    pid = pid_of(controller, "d0")
    fields = process_status(pid)
    assert {fields[name] for name in CAPABILITIES} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    inside = ["nsenter", "--target", str(pid), "--net"]
    routes = json.loads(run([*inside, "ip", "-j", "route"]))
    assert [route["dev"] for route in routes] == ["eth0"]
    assert not any(route["dst"] == "default" for route in routes)
    links = {link["ifname"] for link in json.loads(run([*inside, "ip", "-j", "link"]))}
    assert {name for name in links if not name.startswith(("ifb", "sit", "tunl"))} == {"lo", "eth0"}
    assert json.loads(run([*inside, "ip", "-j", "-6", "addr", "show", "dev", "eth0"])) in ([], [{}])


ATTACKS = """
import ctypes, os, signal, sys
from pathlib import Path

def tried(what, attempt):
    try:
        attempt()
        print(what, "done", flush=True)
    except (OSError, AttributeError) as error:
        print(what, "refused", flush=True)

def ptrace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, 0, 0) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0)
    libc.ptrace(17, pid, 0, 0)

def attack(victim, files):
    for file in files:
        tried(f"read {file}", lambda: open(file, "rb").read(1))
    tried("read memory", lambda: open(f"/proc/{victim}/mem", "rb").close())
    tried("ptrace", lambda: ptrace(victim))
    tried("kill", lambda: os.kill(victim, signal.SIGCONT))
    tried("become root", lambda: os.setuid(0))
    tried("raise its quota", lambda: open(files[0], "ab").close())
    print("processes", sum(name.isdigit() for name in os.listdir("/proc")), flush=True)
"""

PROBE = (
    ATTACKS
    + """
import json, socket
from edge_agent.fork_server import ForkServer
from edgebed.wire.fork_protocol import Fork, encode
victim, files, fork = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
if not fork:
    attack(victim, files)
    sys.exit()
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    def become(request, place):
        attack(victim, files)
        tried("read its own shard:", lambda: open(place[1], "rb").read(1))
        tried("load a module:", lambda: __import__("colorsys"))

    os.umask(0o077)  # as careful people have it
    ForkServer(theirs, become).run()
    os._exit(0)
theirs.close()
ours.sendall(fork.encode() + b"\\n")
said = b""
while b'"exited"' not in said:
    said += ours.recv(4096)
"""
)


def attack(victim: int, files: list[str], fork: Fork | None = None) -> list[str]:
    """What a program can do to `victim` and to `files`, run as we are, or started in an agent's place."""
    request = encode(fork).decode().strip() if fork else ""
    arguments = [sys.executable, "-c", PROBE, str(victim), json.dumps(files), request]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    return (Path(fork.log).read_text() if fork else done.stdout).splitlines()


async def test_an_agent_that_was_taken_over_reaches_nothing_of_the_host_or_of_another_agent(
    controller: FleetController, tmp_path: Path
) -> None:
    backend = controller.backend
    assert isinstance(backend, LocalBackend)
    d0, d1 = (process_status(pid_of(controller, name)) for name in ("d0", "d1"))
    for fields in (d0, d1):
        assert {fields[name] for name in CAPABILITIES} == {"0" * 16}
        assert (fields["NoNewPrivs"], fields["Groups"]) == ("1", "")
        assert [len(fields["NSpid"].split()), fields["NSpid"].split()[-1]] == [2, "1"]
        assert len(set(fields["Uid"].split() + fields["Gid"].split())) == 1
        with pytest.raises(KeyError):
            pwd.getpwuid(int(fields["Uid"].split()[0]))
    assert d0["Uid"] != d1["Uid"]
    presence = controller.membership.devices["d0"].presence
    assert presence is not None
    assert presence.host["pid"] == str(pid_of(controller, "d0"))  # what the records name
    shard = backend.forks["d0"].shard
    status = os.stat(shard)
    assert (status.st_mode & 0o777, str(status.st_uid)) == (0o400, d0["Uid"].split()[0])

    victim = pid_of(controller, "d0")
    quota = str(Cgroup.of_process(victim).paths["cpu"] / "cgroup.procs")
    files = [quota, "/etc/shadow", backend.forks["d0"].log, shard, f"/proc/{victim}/environ"]
    whole = await asyncio.to_thread(attack, victim, files)
    assert [line for line in whole if line.endswith("refused")] == []  # the attacks work, for who may
    place = msgspec.structs.replace(backend.forks["d1"], log=str(tmp_path / "probe.log"))
    held = await asyncio.to_thread(attack, victim, files, place)
    good = ["read its own shard: done", "load a module: done"]
    assert [line for line in held if line.endswith("done")] == [f"read {quota} done", *good]  # /sys is read-only
    assert "processes 1" in held

    # A container whose root may not mount: then the user of its own is what there is.
    bare = msgspec.structs.replace(place, root="", log=str(tmp_path / "bare.log"))
    held = await asyncio.to_thread(attack, victim, files, bare)
    assert {line for line in held if line.endswith("done")} - {good[1]} == {f"read {quota} done", good[0]}


async def test_a_killed_agent_is_reported_and_comes_back_limited(controller: FleetController) -> None:
    backend = controller.backend
    told: asyncio.Queue[str] = asyncio.Queue()
    backend.on_exit(lambda device, why: told.put_nowait(f"{device}: {why}"))
    os.kill(pid_of(controller, "d0"), signal.SIGKILL)
    async with asyncio.timeout(30):
        assert "d0: its process was killed (SIGKILL" in await told.get()
        await backend.restart("d0")
    assert (await backend.held("d0")).alive
    assert (await backend.held("d0")).cpus is None  # it starts without limits
    held = await backend.limit("d0", controller.limits["d0"])
    assert held.cpus == pytest.approx(0.3)
