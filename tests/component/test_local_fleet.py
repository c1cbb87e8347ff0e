"""The local backend on the real kernel: limits held, faults found, deaths reported, nothing left over."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgebed.errors import LimitError
from edgebed.limits.cgroups import Cgroup
from edgebed.limits.shell import run
from edgebed.limits.throttle import shape_commands
from orchestrator.cli import build
from orchestrator.fleet import leftovers
from orchestrator.fleet.local import backend as local
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.fleet.network import netns
from orchestrator.fleet.network.netlink import DEVICE_END
from orchestrator.fleet.spec.profile import Limits
from orchestrator.runs.session import standing_fleet
from tests.component._faults import (
    assert_each_fault_is_named,
    assert_short_work_is_not_too_fast,
    calibrate_by_command,
    calibrates,
    causes,
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
    for command in shape_commands(DEVICE_END, limits.uplink_bit_s):
        run(["nsenter", f"--net={wire.path}", *command])


def no_quota(cgroup: Cgroup, limits: Limits) -> None:
    """A fault: the CPU is not limited."""
    cgroup.lift()


netns_shape = netns.shape
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest.mark.alone
async def test_every_fault_is_read_back_and_then_the_limits_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next test finds the same faults by measurement alone."""
    async with standing_fleet(small_fleet(tmp_path, 0.3), backend="local", dilation="off") as controller:
        for fault in (eight_times, egress_only):
            monkeypatch.setattr(netns, "shape", fault)
            with pytest.raises(LimitError, match=r"uplink|downlink"):
                await controller.put_on_limits("d0", "fault")
        monkeypatch.undo()

        monkeypatch.setattr(Cgroup, "set", no_quota)
        with pytest.raises(LimitError, match="CPU quota is not limited"):
            await controller.put_on_limits("d0", "fault")
        monkeypatch.undo()

        await controller.put_on_limits("d0", "mended")
        good = await short_calibration(controller)
        assert good.passed, causes(good)
        assert_short_work_is_not_too_fast(good)
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


async def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = threading.Event(), threading.Event()

    def slowly(wire: netns.Wire) -> None:
        began.set()
        assert go.wait(20)
        netns_make(wire)

    netns_make = netns.make
    monkeypatch.setattr(netns, "make", slowly)
    backend = LocalBackend(small_fleet(tmp_path, 0.3, 0.2), "finterrupt1", kernel=True)
    start = asyncio.create_task(backend.prepare())
    assert await asyncio.to_thread(began.wait, 20)
    start.cancel()
    await asyncio.wait([start])
    ending = watch_end(monkeypatch)
    close = asyncio.create_task(backend.close())
    assert await waits_for_threads(close, ending)
    go.set()
    await close
    await asyncio.get_running_loop().shutdown_default_executor()
    assert traces("finterrupt1") == []


async def test_a_close_that_is_interrupted_again_and_again_leaves_nothing(tmp_path: Path) -> None:
    backend = LocalBackend(small_fleet(tmp_path, 0.3, 0.2), "finterrupt2", kernel=True)
    await backend.prepare()
    close = asyncio.create_task(backend.close())
    await asyncio.sleep(0)  # it has begun
    async with asyncio.timeout(60):
        while not close.done():
            close.cancel()
            await asyncio.sleep(0.01)
    assert close.cancelled()
    assert traces("finterrupt2") == []
    await backend.close()


OWNER = """
import asyncio, sys
from pathlib import Path
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.fleet.spec.profile import load_fleet

async def main():
    backend = LocalBackend(load_fleet(Path(sys.argv[1])), sys.argv[2], kernel=True)
    await backend.prepare()
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
