"""A boards service in trouble: a full disk, a broker that hangs, an address that comes late, a service that is killed,
many boards at once. Boards that have nothing to do with it go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

pytest.importorskip("cryptography")

from edge_agent.board import standby
from edge_agent.board.client import Service
from edge_agent.board.join import join
from edge_agent.board.keystore import JoinedService, Keystore
from edge_agent.board.standby import Standby
from edgebed.errors import FileError, LinkError
from edgebed.wire.boards import Join
from orchestrator.boards import service
from orchestrator.boards.authority import Authority
from orchestrator.boards.boards_broker import boards_broker
from orchestrator.boards.enrolment import RENEW_PAUSE_S, Enrolment
from orchestrator.boards.service_folder import ServiceFolder, Where
from tests.component._boards import HOST, Lab, running
from tests.waiting import until

pytestmark = pytest.mark.mosquitto


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of 1 MiB in this folder, with what was there."""
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)], check=True)
    try:
        for name, data in before.items():
            (folder / name).write_bytes(data)
        (folder / "shards").mkdir()
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no room on the disk; returns the file that has it."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    return path


@pytest.mark.root
async def test_a_full_disk_of_the_service_stops_joins_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "service"
    place.mkdir()
    with small_disk(place):
        (place / "shards").rmdir()
        async with running(tmp_path, place) as lab:
            first, token = await lab.board("first"), str(lab.token("late"))
            filler = fill(place)
            with pytest.raises(FileError, match="No space left"):
                lab.token("none")
            with pytest.raises(LinkError, match="the service failed"):
                await asyncio.to_thread(join, lab.service, token, lab.keys("late"), print)
            links = [lab.link(first, f"first-{number}") for number in range(5)]
            for link in links:
                await link.open()
            await until(lambda: any("live.json" in line for line in lab.said))
            assert sum("No space left" in line for line in lab.said) < 5  # not a line for every attempt
            filler.unlink()
            await until(lambda: len(lab.live.sessions) == 5)
            await asyncio.to_thread(join, lab.service, token, lab.keys("late"), print)
            version = lab.revoke("first")
            await until(lambda: lab.live.applied == version and not lab.live.sessions)
            for link in links:
                await link.close()


async def test_a_broker_that_hangs_is_restarted_so_that_a_revocation_is_in_force(tmp_path: Path) -> None:
    async with running(tmp_path) as lab:
        links = {name: lab.link(await lab.board(name), name) for name in ("gone", "stays")}
        for link in links.values():
            await link.open()
        await until(lambda: len(lab.live.sessions) == 2)
        (broker,) = [each for each in psutil.Process().children() if each.name() == "mosquitto"]
        broker.suspend()
        version = lab.revoke("gone")
        await until(lambda: lab.live.applied == version, 20)
        assert broker.is_running() is False or broker.status() == psutil.STATUS_ZOMBIE
        await until(lambda: links["stays"].connected and len(lab.live.sessions) == 1, 20)
        assert not links["gone"].connected
        for link in links.values():
            await link.close()


async def test_an_address_that_comes_late_is_certified_and_drops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the service started before the network."""
    late = "127.0.0.2"
    there = {"lo": [SimpleNamespace(family=socket.AF_INET, address=HOST)]}
    monkeypatch.setattr(service.psutil, "net_if_addrs", lambda: there)
    monkeypatch.setattr(service, "main_address", lambda: there["lo"][-1].address)
    monkeypatch.setattr(service, "ADDRESSES_S", 0.1)
    lab = Lab(tmp_path)
    lab.request = Where((), lab.port, lab.mqtt_port)
    await lab.start()
    first = lab.link(await lab.board("first"), "first")
    await first.open()
    await until(lambda: len(lab.live.sessions) == 1)
    before = lab.live.sessions
    by_late, token = Service(late, lab.port), str(lab.token("second"))
    with pytest.raises(LinkError, match="do not trust each other"):
        await asyncio.to_thread(join, by_late, token, lab.keys("second"), print)
    there["eb0123abcd.7"] = [SimpleNamespace(family=socket.AF_INET, address="198.18.0.1")]  # of a device's link
    there["lo"].append(SimpleNamespace(family=socket.AF_INET, address=late))
    await until(lambda: any(f"valid for {late} too" in line for line in lab.said))
    where = lab.place.where()
    assert where is not None
    assert (where.hosts, where.asked) == ((late,), False)
    assert not any("198.18.0.1" in line for line in lab.said)
    await asyncio.to_thread(join, by_late, token, lab.keys("second"), print)
    waiting = asyncio.create_task(Standby(lab.keys("second"), lab.said.append).run())
    await until(lambda: len(lab.live.sessions) == 2)
    assert set(before) < set(lab.live.sessions)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await first.close()
    await lab.stop()


async def test_the_service_of_another_run_that_is_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lab = Lab(tmp_path, ServiceFolder.of_user().folder)
    lab.place.tell_where(Where((HOST,), lab.port, lab.mqtt_port, HOST))
    async with contextlib.AsyncExitStack() as second:
        async with boards_broker(lab.place, lab.said.append, 60.0):
            first, before = lab.live.pid, lab.orchestrator
            broker = await second.enter_async_context(boards_broker(lab.place, lab.said.append, 0.5))
            assert (broker.started, broker.find()) == (False, lab.orchestrator)
            os.kill(first, signal.SIGKILL)
        await until(lambda: (live := lab.place.live()) is not None and live.pid != first, 60)
        assert broker.find() == lab.orchestrator != before  # the run finds it there
    assert not lab.place.running()
    assert len([line for line in lab.said if "it is started for this run" in line]) == 1


async def test_fifty_boards_join_at_once_and_are_revoked_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as lab:
        names = [f"b{number}" for number in range(50)]
        stays = lab.link(await lab.board("stays"), "stays")
        await stays.open()
        await until(lambda: len(lab.live.sessions) == 1)
        before = lab.live.sessions
        keys = [lab.keys(name) for name in names]
        with ThreadPoolExecutor(50) as threads:  # the service has the default one
            loop, tokens = asyncio.get_running_loop(), [str(lab.token(name)) for name in names]
            joins = zip(tokens, keys, strict=True)
            joining = [loop.run_in_executor(threads, join, lab.service, *each, lab.said.append) for each in joins]
            await asyncio.gather(*joining)
        links = [lab.link(each, name) for each, name in zip(keys, names, strict=True)]
        await asyncio.gather(*[link.open() for link in links])
        await until(lambda: len(lab.live.sessions) == 51)
        with lab.store.change() as registry:
            for name in names:
                registry.revoke(registry.find(name), "by hand", time.time())
        await until(lambda: lab.live.sessions == before)
        assert not any(link.connected for link in links)
        await asyncio.gather(*[link.close() for link in [*links, stays]])


# ---- the board's disk ----


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with running(tmp_path) as lab:
        yield lab


@pytest.mark.root
async def test_a_board_with_a_full_disk_stays_connected_and_renews_later(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "RENEWAL_CHECK_S", 0.2)
    keys, long_ago = lab.keys("pi"), time.time() - 80 * 86400
    authority = Authority(lab.place.folder)
    with lab.store.change() as registry:
        secret = registry.invite("pi", "", 3600.0, False, long_ago)
    old = Enrolment(lab.store, authority, lab.mqtt_port).join(Join(secret, keys.request()), long_ago)
    keys.keep(JoinedService(old.board, "pi", HOST, lab.port, lab.mqtt_port), authority.pem.decode(), old.certificate)
    await until(lambda: lab.live.applied == lab.store.read().version)
    with small_disk(keys.folder):
        filler = fill(keys.folder)
        waiting = asyncio.create_task(Standby(Keystore(keys.folder), lab.said.append).run())
        await until(lambda: any("the certificate was not renewed" in line for line in lab.said))
        await until(lambda: [each.board for each in lab.live.sessions] == [old.board])
        filler.unlink()
        with lab.store.change() as registry:  # an hour has passed
            registry.find("pi").renewed_s -= RENEW_PAUSE_S
        await until(lambda: any("the certificate is renewed" in line for line in lab.said))
        assert len(lab.live.sessions) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.root
async def test_old_shards_make_room_for_the_one_that_is_needed(lab: Lab) -> None:
    keys, data = await lab.board("pi"), os.urandom(600_000)
    sha256 = lab.offer(data)
    with small_disk(keys.folder):
        shards = keys.folder / "shards"
        for name, size in (("a" * 64 + ".safetensors", 500_000), ("b" * 64 + ".part", 100_000)):
            (shards / name).write_bytes(bytes(size))
        with pytest.raises(FileError, match="No space left"):
            await asyncio.to_thread(lab.service.shard, sha256, shards, keys.identity)
        path = await asyncio.to_thread(lab.service.shard, sha256, shards, keys.identity)
        assert path.read_bytes() == data
        assert [each.name for each in shards.iterdir()] == [path.name]
