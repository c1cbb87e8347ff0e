"""Boards that end in mid-round: what the run says, and when. Their `edgebed-agent run` are processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from edgebed.errors import FleetError
from edgebed.wire.messages import Probe
from orchestrator.boards.members import with_facts
from orchestrator.fleet.spec.profile import load_fleet
from orchestrator.records.types import DeviceJoined, DeviceOut, RoundFinished, TaskSent
from orchestrator.runs import session
from orchestrator.runs.request import Watch
from tests.component._board_runs import Recorded, lab, request
from tests.component._boards import Lab, standing
from tests.waiting import until

__all__ = ["lab"]
pytestmark = pytest.mark.mosquitto

AT_ONCE_NS = 10e9
"""The run's `liveness_s` is 20 s."""


@contextlib.asynccontextmanager
async def a_run(lab: Lab, folder: Path) -> AsyncIterator[Recorded]:
    """Of the boards b1 and b2."""
    wanted = request(folder, "  - {board: b1}\n  - {board: b2}\n", rounds=500)
    work = asyncio.create_task(session.run_experiment(wanted, Watch(lab.said.append)))
    try:
        yield Recorded(wanted.runs, work)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def frozen_at_work(run: Recorded, device: str) -> int:
    """Stop the newest agent of a device; returns its process id when the round waits for it."""
    await run.expect(TaskSent, lambda each: each.device == device)
    joined = [each for each in run.of(DeviceJoined) if each.device == device and each.host][-1]
    os.kill(pid := int(joined.host["pid"]), signal.SIGSTOP)

    def waits() -> bool:
        sent = [each.at_ns for each in run.of(TaskSent) if each.device == device]
        last = max((each.at_ns for each in run.of(RoundFinished)), default=0)
        return bool(sent) and sent[-1] > last and time.monotonic_ns() - sent[-1] > 1e9

    await until(waits, 60)
    return pid


def has_pending(pid: int, wanted: int) -> bool:
    """Whether a stopped process has been sent this signal."""
    (bits,) = re.findall(r"ShdPnd:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(bits, 16) >> (wanted - 1) & 1)


async def lost(run: Recorded, device: str, since_ns: int) -> DeviceOut:
    out = await run.expect(DeviceOut, lambda each: each.device == device and each.at_ns > since_ns)
    assert out.at_ns - since_ns < AT_ONCE_NS
    return out


async def back(run: Recorded, device: str, since_ns: int) -> None:
    await run.expect(RoundFinished, lambda each: each.at_ns > since_ns and device in each.merged)


async def test_a_board_that_is_shut_down_or_restarted_in_mid_round_is_lost_at_once(
    lab: Lab, tmp_path: Path, uncalibrated: None
) -> None:
    first, second = await lab.board("b1"), await lab.board("b2")
    async with standing(first), standing(second) as process, a_run(lab, tmp_path) as run:
        pid = await frozen_at_work(run, "b2")
        process.send_signal(signal.SIGTERM)
        await until(lambda: has_pending(pid, signal.SIGTERM))
        now_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGCONT)
        out = await lost(run, "b2", now_ns)
        assert out.why == "`edgebed-agent run` was ended on the board"
        assert await process.wait() == 130
        async with standing(second) as again:
            await back(run, "b2", out.at_ns)
            await frozen_at_work(run, "b2")
            again.kill()  # as when its power is cut, only that the broken connection is seen
            await again.wait()
            now_ns = time.monotonic_ns()
            async with standing(second):
                assert (await lost(run, "b2", now_ns)).why == "its board was restarted"
                await back(run, "b2", time.monotonic_ns())


async def test_a_board_that_is_renamed_and_revoked_while_it_is_measured_ends_the_measurement(
    lab: Lab, tmp_path: Path, uncalibrated: None
) -> None:
    request(tmp_path, "  - {board: b1}\n")
    async with (
        standing(await lab.board("b1")),
        session.standing_fleet(with_facts(load_fleet(tmp_path / "fleet.yaml"))) as fleet,
    ):
        measuring = asyncio.create_task(fleet.membership.probe("b1", Probe("", "busy", seconds=60)))
        with lab.store.change() as registry:
            registry.rename(registry.find("b1"), "other", time.time())
        await until(lambda: lab.live.applied == lab.store.read().version)
        assert not measuring.done()
        lab.revoke("other")
        with pytest.raises(FleetError, match="b1 is gone: the board is revoked"):
            await asyncio.wait_for(measuring, 20)
