"""Boards: joining, shards, MQTT over TLS, waiting for work, renewing, with a running service and a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from edge_agent.board.cipher import cipher_environment
from edge_agent.board.client import ClockError, Service
from edge_agent.board.join import join, leave
from edge_agent.board.keystore import JoinedService
from edge_agent.board.standby import Standby
from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import FleetError, LinkError, UsageError, WireError
from edgebed.link.endpoint import ReceivedTransfer, TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import client_context
from edgebed.wire.boards import WAITING, BoardOrder, BoardState, Join
from edgebed.wire.messages import Presence, Upload, decode_control
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.boards.authority import Authority
from orchestrator.boards.enrolment import Enrolment
from orchestrator.boards.members import Taken, claimed
from orchestrator.boards.service import serve
from orchestrator.boards.service_folder import ServiceFolder, Where
from tests.component._boards import HOST, Lab, Orchestrator, made, standing, status
from tests.waiting import until

pytestmark = pytest.mark.mosquitto


# ---- joining ----


async def test_a_board_joins_connects_and_leaves(lab: Lab) -> None:
    keys = await lab.board("pi")
    about = keys.service()
    assert (about.name, about.host, about.port, about.mqtt_port) == ("pi", HOST, lab.port, lab.mqtt_port)
    link = lab.link(keys, "a")
    await link.open()
    await until(lambda: [each.board for each in lab.live.sessions] == [about.board])
    await link.close()
    await until(lambda: not lab.live.sessions)
    with pytest.raises(UsageError, match="this board has joined"):
        await asyncio.to_thread(join, lab.service, str(lab.token("other")), keys, print)
    await asyncio.to_thread(leave, keys, lab.said.append)
    assert not keys.folder.exists()
    assert [board.revoked_why for board in lab.store.read().boards] == ["it left"]


async def test_a_wrong_clock_is_named_before_the_secret_is_sent(lab: Lab) -> None:
    slow = Service(HOST, lab.port, lambda: dt.datetime(1970, 1, 1, 0, 5, tzinfo=dt.UTC))
    token = str(lab.token("pi"))
    with pytest.raises(ClockError, match="1970-01-01 00:05 UTC"):
        await asyncio.to_thread(join, slow, token, lab.keys("pi"), print)
    await asyncio.to_thread(join, lab.service, token, lab.keys("pi"), print)


async def test_a_second_service_for_the_same_boards_is_refused(lab: Lab) -> None:
    with pytest.raises(FleetError, match="already running"):
        await asyncio.to_thread(ServiceFolder(lab.place.folder).hold)


# ---- shards ----


async def test_shards_are_handed_to_boards_only_and_continued(lab: Lab, tmp_path: Path) -> None:
    keys, data = await lab.board("pi"), os.urandom(3_000_000)
    sha256 = hashlib.sha256(data).hexdigest()
    (lab.place.shards / f"{sha256}.safetensors").write_bytes(data)
    folder = made(tmp_path / "cache")
    (folder / f"{sha256}.part").write_bytes(data[:1_000_000])
    path = await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)
    assert path.read_bytes() == data
    (folder / f"{sha256}.safetensors").rename(folder / f"{sha256}.part")  # all bytes, but not yet named
    assert (await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)).read_bytes() == data
    path.unlink()
    (folder / f"{sha256}.part").write_bytes(b"damaged")
    with pytest.raises(WireError, match="damaged"):
        await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)
    assert (await asyncio.to_thread(lab.service.shard, sha256, folder, keys.identity)).read_bytes() == data
    with pytest.raises(LinkError, match="there is no such shard"):
        await asyncio.to_thread(lab.service.shard, "0" * 64, folder, keys.identity)
    stranger = client_context(keys.identity.ca.read_text())
    assert await asyncio.to_thread(status, lab, stranger, "GET", f"/shards/{sha256}") == 403


# ---- MQTT over TLS ----


async def test_transfers_over_tls_arrive_both_ways(lab: Lab) -> None:
    keys = await lab.board("pi")
    device, topics, body = keys.service().board, Topics("f1"), os.urandom(5_000_000)
    arrived: list[bytes] = []

    async def deliver(inbound: ReceivedTransfer) -> None:
        arrived.append(bytes(inbound.body))

    sides = []
    for name, address in ((ORCHESTRATOR, lab.orchestrator), (device, lab.link(keys, "x")._address)):  # noqa: SLF001
        control = MqttLink(address, f"{name}-control")
        data = MqttLink(address, f"{name}-data", keepalive_s=0, paced=name == device)
        endpoint = TransferEndpoint(name, topics, control, data, deliver=deliver, on_control=lambda *_: None)
        endpoint.start()
        await control.open()
        await data.open()
        sides.append((endpoint, control, data))
    async with lab.working("f1", keys), asyncio.timeout(30):
        await sides[1][0].send(ORCHESTRATOR, Upload(device, "t", 0, 1), body)
        await sides[0][0].send(device, Upload(device, "t", 1, 1), body)
    assert arrived == [body, body]
    for endpoint, control, data in sides:
        await endpoint.close()
        await data.close()
        await control.close()


CIPHER = """
import socket, ssl, sys
from pathlib import Path
from edgebed.link.tls import Identity, identity_context
host, port, folder = sys.argv[1:]
with socket.create_connection((host, int(port))) as plain:
    with identity_context(Identity.of(Path(folder))).wrap_socket(plain, server_hostname=host) as secure:
        print(secure.cipher()[0])
"""


async def test_a_board_without_aes_instructions_gets_chacha20(lab: Lab) -> None:
    keys = await lab.board("pi")
    arguments = [sys.executable, "-c", CIPHER, HOST, str(lab.mqtt_port), str(keys.folder)]
    (lab.folder / "cpuinfo").write_text("Features\t: fp asimd crc32\n")
    env = {**os.environ, **cipher_environment(keys.folder, lab.folder / "cpuinfo")}
    done = await asyncio.to_thread(subprocess.run, arguments, env=env, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "TLS_CHACHA20_POLY1305_SHA256", done.stderr


# ---- waiting for work ----


async def test_a_board_carries_out_its_order_and_waits_for_the_next(lab: Lab) -> None:
    keys, shard = await lab.board("pi"), lab.folder / "idle.safetensors"
    board = keys.service().board
    write_idle_shard(shard)
    sha256 = hashlib.sha256(shard.read_bytes()).hexdigest()
    shard.rename(lab.place.shards / f"{sha256}.safetensors")
    standby = asyncio.create_task(Standby(keys, lab.said.append).run())
    taken = contextlib.ExitStack()
    taken.enter_context(claimed(lab.place, {"pi": board}, Taken("test", "f1", os.getpid())))
    async with Orchestrator(lab) as orchestrator:

        def state() -> BoardState:
            return msgspec.json.decode(
                orchestrator.heard.get(WAITING.state(board), b'{"online":false}'), type=BoardState
            )

        def presence() -> Presence | None:
            heard = orchestrator.heard.get(Topics("f1").state(board))
            said = decode_control(heard) if heard else None
            return said if isinstance(said, Presence) else None

        await until(lambda: state().online and not state().fleet)
        wrong, right = BoardOrder("f1", "0" * 64), BoardOrder("f1", sha256)
        for order, done in (
            (wrong, lambda: "no such shard" in state().error),
            (right, lambda: (said := presence()) is not None and said.online and said.shard == sha256),
        ):
            orchestrator.link.publish(WAITING.control_to(board), msgspec.json.encode(order), retain=True)
            await until(done, 60)
        assert state() == msgspec.structs.replace(state(), fleet="f1", error="")
        taken.close()  # as if the orchestrator had been killed: the service takes the order away
        await until(lambda: (said := presence()) is not None and not said.online)
        await until(lambda: state().online and not state().fleet)
        assert state().error == ""
    assert not [line for line in lab.said if "ended by" in line]  # its fleet was over: that is no failure
    standby.cancel()
    await asyncio.gather(standby, return_exceptions=True)


async def test_a_board_comes_back_after_the_service_was_away_and_ends_when_it_is_revoked(lab: Lab) -> None:
    keys = await lab.board("pi")
    standby = asyncio.create_task(Standby(keys, lab.said.append, guard_s=0.2).run())
    await until(lambda: bool(lab.live.sessions))
    await lab.stop()
    await until(lambda: any("cannot be reached" in line for line in lab.said))
    await lab.start()
    await until(lambda: bool(lab.live.sessions))
    lab.revoke("pi")
    with pytest.raises(UsageError, match="it is revoked"):
        await asyncio.wait_for(standby, 20)


async def test_a_second_run_of_a_board_is_refused_and_one_that_leaves_ends_its_run(lab: Lab) -> None:
    keys = await lab.board("pi")
    async with standing(keys) as process:
        await until(lambda: len(lab.live.sessions) == 1, 30)
        with pytest.raises(FleetError, match="already runs on this board"):
            await Standby(keys, lab.said.append).run()
        await asyncio.to_thread(leave, keys, lab.said.append)
        assert await asyncio.wait_for(process.wait(), 30) == UsageError.exit_code  # systemd does not start it again
    assert not lab.live.sessions


async def test_a_certificate_that_has_run_out_is_renewed(lab: Lab) -> None:
    keys, long_ago = lab.keys("pi"), time.time() - 91 * 86400
    authority = Authority(lab.place.folder)
    enrolment = Enrolment(lab.store, authority, lab.mqtt_port)
    with lab.store.change() as registry:
        secret = registry.invite("pi", "", 3600.0, False, long_ago)
    old = enrolment.join(Join(secret, keys.request()), long_ago)
    keys.keep(JoinedService(old.board, "pi", HOST, lab.port, lab.mqtt_port), authority.pem.decode(), old.certificate)
    with pytest.raises(LinkError):
        await lab.link(keys, "old").open()
    standby = asyncio.create_task(Standby(keys, lab.said.append).run())
    await until(lambda: [each.board for each in lab.live.sessions] == [old.board])
    assert any("the certificate is renewed" in line for line in lab.said)
    standby.cancel()
    await asyncio.gather(standby, return_exceptions=True)


async def test_a_service_whose_address_is_not_there_yet_may_be_started_again(lab: Lab, tmp_path: Path) -> None:
    place = ServiceFolder(tmp_path / "another")
    place.shards.mkdir(parents=True)
    with pytest.raises(LinkError, match=r"cannot listen on 203\.0\.113\.9") as error:
        await serve(Where((HOST,), lab.port, lab.mqtt_port, "203.0.113.9"), place, lab.said.append)
    assert error.value.exit_code != UsageError.exit_code  # with which systemd would give up
