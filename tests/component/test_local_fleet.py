"""The local backend on the real kernel: limits held, faults found, deaths reported, nothing left over."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from edgebed.errors import LimitError
from edgebed.limits.cgroups import Cgroup
from edgebed.limits.shell import run
from edgebed.limits.throttle import shape_commands
from edgebed.wire.fork_protocol import Fork, encode
from orchestrator.cli import build
from orchestrator.fleet import leftovers, local, netns
from orchestrator.fleet.local import LocalFleet
from orchestrator.fleet.profile import Limits
from orchestrator.runs.session import standing_fleet
from tests.component._faults import (
    assert_each_fault_is_named,
    assert_short_work_is_not_too_fast,
    calibrate_by_command,
    calibrates,
    causes,
    pid_of,
    process_status,
    short_calibration,
    small_fleet,
    waits_for_threads,
    watch_end,
)

pytestmark = [pytest.mark.root, pytest.mark.mosquitto]


def traces(fleet_id: str) -> list[str]:
    """What of a fleet is still on this host."""
    found = [name for name in netns.existing() if fleet_id in name]
    found += [str(path) for path in leftovers.STATE.glob(fleet_id)]
    return found + [
        str(p) for c in ("cpu", "memory", "") for p in Path("/sys/fs/cgroup", c).glob(f"edgebed/{fleet_id}*")
    ]


def eight_times(wire: netns.Wire, limits: Limits) -> None:
    """A fault: what `rate 20mbps` does."""
    netns_shape(wire, Limits(limits.cpus, limits.uplink_bit_s * 8, limits.downlink_bit_s * 8, limits.memory_mib))


def egress_only(wire: netns.Wire, limits: Limits) -> None:
    """A fault: the device's own egress is shaped, what comes to it is not."""
    netns.lift(wire)
    for command in shape_commands(netns.DEVICE_END, limits.uplink_bit_s):
        run(["nsenter", f"--net={wire.path}", *command])


def no_quota(cgroup: Cgroup, limits: Limits) -> None:
    """A fault: the CPU is not limited."""
    cgroup.lift()


netns_shape = netns.shape
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest.mark.alone
async def test_limits_hold_and_every_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as controller:
        good = await short_calibration(controller)
        assert good.passed, causes(good)
        assert_short_work_is_not_too_fast(good)

        for fault, words in (
            (eight_times, "mbps (megabytes) used instead of mbit"),
            (egress_only, "only the uplink is"),
        ):
            monkeypatch.setattr(netns, "shape", fault)
            with pytest.raises(LimitError, match=r"uplink|downlink"):  # read back from the kernel: refused at once
                await controller.put_on_limits("d0", "fault")
            assert words in causes(await short_calibration(controller))  # and by measurement alone, too
        monkeypatch.undo()

        monkeypatch.setattr(Cgroup, "set", no_quota)
        with pytest.raises(LimitError, match="CPU quota is not limited"):
            await controller.put_on_limits("d0", "fault")
        assert "no CPU quota is set" in causes(await short_calibration(controller))
        monkeypatch.undo()

        await controller.put_on_limits("d0", "mended")
        good = await short_calibration(controller)
        assert good.passed, causes(good)
        fleet_id = controller.fleet_id
    assert traces(fleet_id) == []


@pytest.mark.alone
def test_the_command_names_each_fault_with_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_fleet(tmp_path, 0.3, 0.2, 0.1).path
    assert calibrates(path, "local")
    set_quota = Cgroup.set

    def set_but_one(cgroup: Cgroup, limits: Limits) -> None:
        (no_quota if cgroup.paths["cpu"].name.endswith("-1") else set_quota)(cgroup, limits)

    def shape(wire: netns.Wire, limits: Limits) -> None:
        {"0": eight_times, "2": egress_only}.get(wire.netns[-1], netns_shape)(wire, limits)

    monkeypatch.setattr(Cgroup, "set", set_but_one)
    monkeypatch.setattr(netns, "shape", shape)
    monkeypatch.setattr(local, "confirm", lambda limits, held: held)  # the read-back looks away
    code, faults = calibrate_by_command(path, "local")
    assert code == 1
    assert_each_fault_is_named(faults)


async def test_limits_change_in_place_and_read_back(tmp_path: Path) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as controller:
        held = await controller.fleet.limit("d0", Limits(0.5, 5_000_000, 6_000_000, 900))
        assert (held.cpus, held.uplink_bit_s, held.downlink_bit_s, held.memory_mib) == (0.5, 5_000_000, 6_000_000, 900)
        assert held.alive
        assert held.uplink_bytes > 0
        memory = Cgroup.of_process(pid_of(controller, "d0")).paths["memory"]
        for mib in (1200, 800):  # up and down: version 1 takes the two limits in one order only
            await controller.fleet.limit("d0", Limits(0.5, 5_000_000, 6_000_000, mib))
            no_swap = {"memory.memsw.limit_in_bytes": mib * 2**20, "memory.swap.max": 0}
            found = {name: int((memory / name).read_text()) for name in no_swap if (memory / name).exists()}
            assert found == {name: no_swap[name] for name in found}


async def test_a_latency_that_is_no_longer_wanted_goes_and_the_rate_stays(tmp_path: Path) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as controller:
        inside = ["nsenter", "--target", str(pid_of(controller, "d0")), "--net", "tc"]
        delay = (
            "qdisc replace dev eth0 parent 1:1 handle 10: pfifo limit 9"  # stands in for netem, which few kernels have
        )
        run([*inside, *delay.split()])
        await controller.fleet.limit("d0", Limits(0.3, 5_000_000, 6_000_000, 900))
        qdiscs = json.loads(run([*inside, "-j", "qdisc", "show", "dev", "eth0"]))
        assert [(q["kind"], q["handle"]) for q in qdiscs] == [("tbf", "1:"), ("bfifo", "20:")]


async def test_the_agent_may_not_touch_its_limits_nor_leave_its_network(tmp_path: Path) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as controller:
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
    def become(request, shard):
        attack(victim, files)
        tried("read its own shard:", lambda: open(shard, "rb").read(1))
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


async def test_an_agent_that_was_taken_over_reaches_nothing_of_the_host_or_of_another_agent(tmp_path: Path) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3, 0.3), backend="local", dilation="off") as controller:
        fleet = controller.fleet
        assert isinstance(fleet, LocalFleet)
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
        shard = fleet.forks["d0"].shard
        status = os.stat(shard)
        assert (status.st_mode & 0o777, str(status.st_uid)) == (0o400, d0["Uid"].split()[0])

        victim = pid_of(controller, "d0")
        quota = str(Cgroup.of_process(victim).paths["cpu"] / "cgroup.procs")
        files = [quota, "/etc/shadow", fleet.forks["d0"].log, shard, f"/proc/{victim}/environ"]
        whole = await asyncio.to_thread(attack, victim, files)
        assert [line for line in whole if line.endswith("refused")] == []  # the attacks work, for who may
        place = msgspec.structs.replace(fleet.forks["d1"], log=str(tmp_path / "probe.log"))
        held = await asyncio.to_thread(attack, victim, files, place)
        good = ["read its own shard: done", "load a module: done"]
        assert [line for line in held if line.endswith("done")] == [f"read {quota} done", *good]  # /sys is read-only
        assert "processes 1" in held

        # A container whose root may not mount: then the user of its own is what there is.
        bare = msgspec.structs.replace(place, root="", log=str(tmp_path / "bare.log"))
        held = await asyncio.to_thread(attack, victim, files, bare)
        assert {line for line in held if line.endswith("done")} - {good[1]} == {f"read {quota} done", good[0]}


async def test_a_killed_agent_is_reported_and_comes_back_limited(tmp_path: Path) -> None:
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as controller:
        fleet = controller.fleet
        told: asyncio.Queue[str] = asyncio.Queue()
        fleet.on_exit(lambda device, why: told.put_nowait(f"{device}: {why}"))
        os.kill(pid_of(controller, "d0"), signal.SIGKILL)
        async with asyncio.timeout(30):
            assert "d0: its process was killed (SIGKILL" in await told.get()
            await fleet.restart("d0")
        assert (await fleet.held("d0")).alive
        assert (await fleet.held("d0")).cpus is None  # it starts without limits
        held = await fleet.limit("d0", controller.limits["d0"])
        assert held.cpus == pytest.approx(0.3)


async def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = threading.Event(), threading.Event()

    def slowly(wire: netns.Wire) -> None:
        began.set()
        assert go.wait(20)
        netns_make(wire)

    netns_make = netns.make
    monkeypatch.setattr(netns, "make", slowly)
    fleet = LocalFleet(small_fleet(tmp_path, 0.3, 0.2), "finterrupt1", kernel=True)
    start = asyncio.create_task(fleet.prepare())
    assert await asyncio.to_thread(began.wait, 20)
    start.cancel()
    await asyncio.wait([start])
    ending = watch_end(monkeypatch)
    close = asyncio.create_task(fleet.close())
    assert await waits_for_threads(close, ending)
    go.set()
    await close
    await asyncio.get_running_loop().shutdown_default_executor()
    assert traces("finterrupt1") == []


async def test_a_close_that_is_interrupted_again_and_again_leaves_nothing(tmp_path: Path) -> None:
    fleet = LocalFleet(small_fleet(tmp_path, 0.3, 0.2), "finterrupt2", kernel=True)
    await fleet.prepare()
    close = asyncio.create_task(fleet.close())
    await asyncio.sleep(0)  # it has begun
    async with asyncio.timeout(60):
        while not close.done():
            close.cancel()
            await asyncio.sleep(0.01)
    assert close.cancelled()
    assert traces("finterrupt2") == []
    await fleet.close()


OWNER = """
import asyncio, sys
from pathlib import Path
from orchestrator.fleet.local import LocalFleet
from orchestrator.fleet.profile import load_fleet

async def main():
    fleet = LocalFleet(load_fleet(Path(sys.argv[1])), sys.argv[2], kernel=True)
    await fleet.prepare()
    print("made", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_what_a_killed_owner_left_goes_at_the_next_start_and_no_living_ones(tmp_path: Path) -> None:
    path = small_fleet(tmp_path, 0.3).path
    owners = []
    for fleet_id in ("fdead0001", "fliving01"):
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(path), fleet_id], stdout=subprocess.PIPE)
        owners.append(owner)
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"made\n"
    try:
        owners[0].kill()
        owners[0].wait()
        assert traces("fdead0001") != []
        assert "fdead0001" in [left.name for left in leftovers.collect()]
        assert traces("fdead0001") == []
        assert traces("fliving01") != []
    finally:
        owners[1].kill()
        owners[1].wait()
        for owner in owners:
            assert owner.stdout is not None
            owner.stdout.close()
        leftovers.collect()
    assert traces("fliving01") == []


def test_fleet_up_ps_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = str(small_fleet(tmp_path, 0.3, 0.2).path)
    cli, app = CliRunner(), build()
    try:
        assert cli.invoke(app, ["fleet", "up", path, "--backend", "local"]).exit_code == 0
        state = json.loads(cli.invoke(app, ["fleet", "ps", path, "--json"]).stdout)
        assert [d["held"]["cpus"] for d in state["devices"]] == [0.3, 0.2]
        assert all(d["held"]["uplink_bit_s"] == 20_000_000 for d in state["devices"])
        assert "already" in str(cli.invoke(app, ["fleet", "up", path]).exception)
    finally:
        ended = cli.invoke(app, ["fleet", "down", path])
    assert ended.exit_code == 0
    assert traces(state["fleet_id"]) == []
    assert "is not running" in str(cli.invoke(app, ["fleet", "ps", path]).exception)


SPIN = "import sys\nprint('spinning', flush=True)\nwhile True: pass"


@pytest.mark.alone
async def test_limits_hold_while_other_programs_want_every_core(tmp_path: Path) -> None:
    spinners = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", SPIN, stdout=subprocess.PIPE)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        for spinner in spinners:
            assert spinner.stdout is not None
            await spinner.stdout.readline()
        async with standing_fleet(small_fleet(tmp_path, 0.8, 0.4), backend="local", dilation="off") as controller:
            good = await short_calibration(controller)
            assert [row for row in good.rows if row.quantity == "cpu busy" and row.judged and not row.passed] == []
    finally:
        for spinner in spinners:
            spinner.kill()
            await spinner.wait()
