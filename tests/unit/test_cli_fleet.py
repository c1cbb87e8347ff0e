"""What `edgebed fleet ps` shows of limits in force, not in force, and held by the agents themselves."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from edgebed.errors import FleetError, UsageError
from orchestrator.cli.fleet import fleet_table, up
from orchestrator.fleet.base import Held
from orchestrator.fleet.spec.profile import FleetSpec, Limits
from orchestrator.runs import daemon
from orchestrator.runs.daemon import DeviceInFleet, FleetState
from tests.waiting import until

WANTED = Limits(0.2, 10_000_000, 30_000_000, 512)
KERNEL = Held(
    "d0", WANTED, 0.2, 10_000_000, 30_000_000, 512, 3.0, 1.0, 7, 80.0, 5_000_000, 6_000_000, True, period_us=100_000
)
NOTHING = msgspec.structs.replace(
    KERNEL, cpus=None, period_us=None, uplink_bit_s=None, downlink_bit_s=None, memory_mib=None
)


def shown(held: Held | None, enforcement: str, wanted: Limits = WANTED) -> dict[str, list[str]]:
    """Cells by label, and the caption."""
    device = DeviceInFleet("d0", "p", wanted, held, "" if held else "gone")
    out = io.StringIO()
    console = Console(width=160, file=out)
    console.print(fleet_table(FleetState("f", "f1", "local", enforcement, 1.0, "", (device,), "pacing")))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines()]
    return {row[1]: row[2:] for row in rows if len(row) > 2} | {"text": [out.getvalue()]}


def test_what_the_kernel_holds_stands_beside_what_was_asked_for() -> None:
    rows = shown(KERNEL, "kernel")
    assert rows["requested"] == rows["set"] == ["0.2", "100", "10", "30", "512"]
    assert rows["used"] == ["3 s (1 s throttled)", "", "5 MB", "6 MB", "80"]
    assert "grain pacing" in rows["text"][0]


def test_a_limit_that_is_not_in_force_is_none() -> None:
    assert shown(NOTHING, "kernel")["set"] == ["none"] * 5


def test_what_agents_hold_themselves_is_neither_set_nor_none() -> None:
    rows = shown(msgspec.structs.replace(NOTHING, read_back=False), "software")
    assert rows["set"] == ["–", "–", "–", "–", "not limited"]
    assert rows["used"] == ["3 s", "", "–", "–", "80"]
    assert "not limited by the kernel" in rows["text"][0]


def test_a_device_that_is_away_says_why() -> None:
    assert shown(None, "kernel")["away"][0] == "gone"


def test_a_real_board_is_unlimited_and_says_whether_it_is_there() -> None:
    board, held = msgspec.structs.replace(WANTED, unlimited=True), msgspec.structs.replace(NOTHING, read_back=False)
    rows = shown(held, "unlimited", board)
    assert rows["unlimited: a real board"] == ["–"] * 5
    assert "profile p, connected" in rows
    assert "f (local, unlimited: real boards, grain pacing)" in rows["text"][0]
    assert "profile p, away" in shown(msgspec.structs.replace(held, alive=False), "kernel", board)


@pytest.mark.parametrize("option", [{"backend": "kubernetes"}, {"dilation": "x"}, {"dilation": "0.5"}])
def test_wrong_options_are_refused_before_anything_starts(
    option: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "fleet.yaml"
    path.write_text("name: f\ndevices: [{profile: cpu0.2}]\n")
    with pytest.raises(UsageError):
        up(path, **option)
    assert not (tmp_path / "state").exists()


def test_an_interrupted_start_removes_what_stands_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(place: daemon.FleetFolder) -> str:
        raise KeyboardInterrupt

    ended: list[daemon.FleetFolder] = []
    alive = iter([False, True])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(daemon, "spawn", lambda *_: 1)
    monkeypatch.setattr(daemon, "end", ended.append)
    monkeypatch.setattr(daemon.FleetFolder, "alive", lambda place: next(alive))
    monkeypatch.setattr(daemon.FleetFolder, "progress", interrupted)
    path = tmp_path / "fleet.yaml"
    path.write_text("name: f\ndevices: [{profile: cpu0.2}]\n")
    with pytest.raises(KeyboardInterrupt):
        up(path)
    assert [place.folder.name for place in ended] == ["f"]


def test_a_standing_fleet_answers_from_a_folder_with_a_long_path(tmp_path: Path) -> None:
    """The path of a socket has at most 107 bytes."""
    place = daemon.FleetFolder(tmp_path / ("deep" * 30))
    place.folder.mkdir()
    files = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as server, place.nearby() as here:
        server.bind(str(here / place.socket.name))
        with pytest.raises(FleetError, match=r"does not answer: .*refused"):  # nobody listens, but it is found
            place.ask()
    assert len(os.listdir("/proc/self/fd")) <= files


async def test_a_daemon_answers_from_a_folder_with_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def standing(*_: object, **__: object) -> AsyncIterator[None]:
        yield

    async def state_of(_: object) -> FleetState:
        return state

    state = FleetState("f", "f1", "local", "kernel", 1.0, "", ())
    monkeypatch.setattr(daemon, "standing_fleet", standing)
    monkeypatch.setattr(daemon, "state_of", state_of)
    place = daemon.FleetFolder(tmp_path / ("deep" * 30))
    place.folder.mkdir()
    spec = FleetSpec("f", "local", 1.0, (), tmp_path / "fleet.yaml")
    held = asyncio.create_task(daemon.hold(spec, place, daemon.Wanted(None, "1", None)))
    await until(lambda: place.ready() or held.done())
    assert await asyncio.to_thread(place.ask) == state
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(10):
        await held
    assert not place.ready()
