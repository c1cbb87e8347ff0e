"""Every way to get a broker; each refuses strangers, listens where it should, and ends with us."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import docker
import msgspec
import psutil
import pytest

from edgebed.errors import LinkError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from orchestrator.broker import container as container_broker
from orchestrator.broker import mosquitto
from orchestrator.broker.mosquitto import broker_user, password_hash, settings, write_files
from orchestrator.broker.open_broker import open_broker
from orchestrator.broker.runner import Listen
from orchestrator.fleet import leftovers
from orchestrator.fleet.ownership import BROKER, OWNER, this_process
from tests.broker_address import tcp_address
from tests.component._faults import process_status
from tests.hangs import run
from tests.waiting import until

OURS = [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"]


@pytest.mark.parametrize("kind", OURS)
async def test_it_listens_on_every_address_and_wants_the_password(kind: str) -> None:
    async with open_broker(["127.0.0.2", "127.0.0.1"], kinds=[kind]) as broker:
        for host in ("127.0.0.1", "127.0.0.2"):
            address = tcp_address(broker, host)
            seen: list[bytes] = []
            link = MqttLink(address, "a")
            link.subscribe("t/+", lambda topic, payload, seen=seen: seen.append(payload))
            await link.open()
            link.publish("t/x", b"hello")
            await until(lambda seen=seen: seen == [b"hello"])
            await link.close()
            for user, password in (("orchestrator", "wrong"), ("", ""), ("other", address.password)):
                with pytest.raises(LinkError, match="refused us"):
                    await MqttLink(Address(host, broker.port, user, password), "b").open()
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.3", broker.port)) != 0  # nowhere else
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", broker.port)) != 0  # and not any more


class Listening(MqttLink):
    """Notes every message that comes, also what it has not asked for."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.came: list[str] = []
        self.name = str(arguments[1])

    def _on_message(self, topic: str, payload: bytes) -> None:
        self.came.append(topic)


@pytest.mark.parametrize("kind", OURS)
async def test_many_join_while_others_join_and_each_gets_what_it_asked_for(kind: str) -> None:
    async with open_broker([], kinds=[kind]) as broker:
        address = broker.address
        listener = Listening(address, "listener")
        listener.subscribe("state/+", lambda topic, payload: None)
        await listener.open()
        links: list[Listening] = []
        for number in range(8):  # waves: the later ones find retained messages and subscriptions of the earlier ones
            wave = [Listening(address, f"c{number}-{place}") for place in range(10)]
            for link in wave:
                link.subscribe(f"to/{link.name}", lambda topic, payload: None)
            await asyncio.gather(*(link.open() for link in wave))
            for link in wave:
                link.publish(f"state/{link.name}", b"here", retain=True)
            links += wave
        await until(lambda: len(listener.came) == len(links))
        for link in links:
            listener.publish(f"to/{link.name}", b"hello")
        await until(lambda: all(link.came for link in links))
        assert [link.came for link in links] == [[f"to/{link.name}"] for link in links]
        await asyncio.gather(*(link.close() for link in [listener, *links]))


@pytest.mark.parametrize("kind", OURS)
def test_it_dies_with_a_killed_orchestrator(kind: str) -> None:
    code = f"""
import asyncio, psutil
from orchestrator.broker.open_broker import open_broker
async def main():
    async with open_broker([], kinds=["{kind}"]):
        print(psutil.Process().children()[0].pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        child.wait(timeout=10)


@pytest.mark.parametrize("kind", OURS)
def test_it_starts_whatever_lock_another_thread_holds(kind: str) -> None:
    """A copy of this process would wait for the lock for ever; only a new program may be started."""
    code = f"""
import asyncio, os, threading
from orchestrator.broker.open_broker import open_broker
lock = threading.Lock()
lock.acquire()
os.register_at_fork(after_in_child=lock.acquire)
async def main():
    async with open_broker([], kinds=["{kind}"]):
        print("open")
asyncio.run(main())
"""
    assert run([sys.executable, "-c", code], 60).stdout == "open\n"


async def test_nothing_to_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto, "find", lambda: None)
    with pytest.raises(LinkError, match="none is installed") as caught:
        async with open_broker([], kinds=["mosquitto"]):
            pass
    assert "apt install mosquitto" in caught.value.hint


async def test_a_broker_that_does_not_start_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "mosquitto"
    broken.write_text("#!/bin/sh\necho broken config >&2\nexit 3\n")
    broken.chmod(0o755)
    private = [folder for folder in (tmp_path, *tmp_path.parents) if not folder.stat().st_mode & 0o001]
    for folder in private:
        folder.chmod(0o755)  # as root, the broker runs as a user of its own
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LinkError, match=r"exit code 3: broken config"):
        async with open_broker([], kinds=["mosquitto"]):
            pass
    async with open_broker([], kinds=["mosquitto", "embedded"]) as broker:
        assert "embedded" in broker.kind


@pytest.mark.mosquitto
async def test_a_temporary_folder_with_white_space_is_refused_and_nothing_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Mosquitto would end the socket's path at the space, and remove the file of this name."""
    (tmp_path / "my files").mkdir()
    (tmp_path / "my").write_text("precious")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my files"))
    with pytest.raises(LinkError, match="white space"):
        async with open_broker([], kinds=["mosquitto"]):
            pass
    async with open_broker([], kinds=["mosquitto", "embedded"]) as broker:
        assert "embedded" in broker.kind
    assert (tmp_path / "my").read_text() == "precious"


def test_only_the_brokers_user_may_read_and_write_its_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_files(Listen(["127.0.0.1"], 1234, {"u": "p"}), tmp_path)
    finally:
        os.umask(before)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {
        "mosquitto.conf": "0o600", "passwords": "0o600", "acl": "0o600", "run": "0o700",
    }  # fmt: skip


@pytest.mark.root
@pytest.mark.mosquitto
async def test_of_the_brokers_folder_its_user_owns_what_it_needs_and_no_more() -> None:
    """Or it could put links in the place of files that root writes."""
    async with open_broker([], kinds=["mosquitto"]) as broker:
        run = Path(broker.address.host).parent
        assert (run.parent.stat().st_uid, oct(run.parent.stat().st_mode & 0o777)) == (0, "0o711")
        owners = {path.name: path.stat().st_uid for path in run.parent.iterdir() if path.name != ".owner"}
        its = broker_user()
    assert its, "root must not be the broker's user"
    assert owners == {"run": its, "mosquitto.conf": its, "passwords": its, "acl": its, "broker.log": 0}


async def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(LinkError, match=r"203\.0\.113\.1"):
        async with open_broker(["203.0.113.1"], kinds=["embedded"]):
            pass


@pytest.mark.docker
@pytest.mark.mosquitto
async def test_a_container_serves_where_only_an_image_is(monkeypatch: pytest.MonkeyPatch, mosquitto_image: str) -> None:
    monkeypatch.setattr(container_broker, "IMAGES", (mosquitto_image,))
    containers = docker.from_env().containers
    mine = {"label": f"{OWNER}={this_process()}"}
    async with open_broker(["127.0.0.2"], kinds=["container"]) as broker:
        assert broker.kind == "mosquitto container"
        await broker.restart()
        (container,) = containers.list(filters=mine)
        host, status = container.attrs["HostConfig"], process_status(container.attrs["State"]["Pid"])
        assert host["ReadonlyRootfs"]
        assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
        assert status["Uid"].split() == [str(broker_user() if os.geteuid() == 0 else os.geteuid())] * 4
    assert not containers.list(all=True, filters=mine)


@pytest.mark.docker
@pytest.mark.mosquitto
def test_a_container_of_a_dead_orchestrator_is_collected_and_one_of_a_living_is_kept(mosquitto_image: str) -> None:
    containers, me = docker.from_env().containers, this_process()
    owners = {
        "dead": str(msgspec.structs.replace(me, started=me.started + 1)),
        "living": str(me),
        "elsewhere": str(msgspec.structs.replace(me, machine="another", boot="another", pid=1)),
        "older": "999999999",  # as version 0.2 wrote it: a pid, which says nothing across namespaces
    }
    made = {
        who: containers.create(mosquitto_image, ["none"], labels={BROKER: "x", OWNER: it}) for who, it in owners.items()
    }
    try:
        found = {left.name for left in leftovers.find_leftovers()}
        assert [who for who, container in made.items() if container.name in found] == ["dead"]
        for left in leftovers.find_leftovers():
            if left.name == made["dead"].name:
                leftovers.remove(left)
        ids = {container.id for container in containers.list(all=True)}
        assert [who for who, container in made.items() if container.id in ids] == ["living", "elsewhere", "older"]
    finally:
        for container in containers.list(all=True, filters={"label": f"{BROKER}=x"}):
            container.remove(force=True)


def test_settings_drop_nothing_and_let_in_nobody() -> None:
    lines = settings(Listen(["127.0.0.1", "10.0.0.1"], 1234, {"u": "p"}), "/x")
    wanted = {"allow_anonymous false", "max_inflight_messages 0", "set_tcp_nodelay true", "persistence false"}
    assert wanted | {"listener 1234 127.0.0.1", "listener 1234 10.0.0.1"} <= set(lines)


def test_the_password_itself_is_in_no_file() -> None:
    assert password_hash("secret", b"0" * 12).startswith("$6$MDAwMDAwMDAwMDAw$")
    assert "secret" not in password_hash("secret", b"0" * 12)
