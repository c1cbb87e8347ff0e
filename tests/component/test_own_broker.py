"""A broker of the user's own: on this host, over TLS, and what is refused."""

from __future__ import annotations

import datetime as dt
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgebed.errors import LinkError, UsageError
from edgebed.link.mqtt import Address, MqttLink
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.boards.authority import Authority
from orchestrator.broker import mosquitto
from orchestrator.broker.child import Child
from orchestrator.broker.open_broker import Broker, free_port, open_broker
from orchestrator.broker.own import PASSWORD, USER, OwnBroker, parse_url
from orchestrator.broker.seams import Listen
from orchestrator.cli import build
from orchestrator.cli.arguments import own_broker
from tests.component._boards import until

HOST = "127.0.0.1"
USERS = {ORCHESTRATOR: "boss", "a": "of a", "b": "of b"}


class Foreign:
    """A Mosquitto with TLS that somebody else runs, with the rights that `edgebed broker acl` prints."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port([HOST])
        self.authority = Authority(folder)
        self.child = Child("mosquitto", self._prepare)

    def _prepare(self, listen: Listen, folder: Path) -> tuple[list[str], bytes]:
        key, certificate = self.authority.server_pair([HOST, "localhost"], dt.datetime.now(dt.UTC))
        for name, data in {"key": key, "certificate": certificate, "ca": self.authority.pem}.items():
            (folder / f"{name}.pem").write_bytes(data)
        config = mosquitto.write_files(listen, folder)
        (folder / "acl").write_text(CliRunner().invoke(build(), ["broker", "acl"]).stdout)
        tls = [f"certfile {folder}/certificate.pem", f"keyfile {folder}/key.pem"]
        config.write_text(config.read_text() + "\n".join([*tls, ""]))
        program = mosquitto.binary()
        assert program is not None
        return [program, "-c", str(config)], b""

    def own(self, **changed: str) -> OwnBroker:
        users = self.folder / "users"
        users.touch(0o600)
        users.write_text("".join(f"{user}:{password}\n" for user, password in USERS.items()))
        wanted = {"url": f"mqtts://{HOST}:{self.port}", "ca": str(self.folder / "ca.pem"), "users": str(users)}
        return OwnBroker(**{**wanted, **changed})


@pytest.fixture
async def foreign(tmp_path: Path) -> AsyncIterator[Foreign]:
    made = Foreign(tmp_path)
    await made.child.start(Listen([HOST], made.port, USERS), tmp_path)
    yield made
    await made.child.stop()


def link(broker: Broker, device: str = "") -> MqttLink:
    access = broker.access(HOST, device)
    return MqttLink(Address(access.host, access.port, access.username, access.password), f"link of {device}")


@pytest.mark.mosquitto
async def test_devices_reach_a_broker_behind_tls_with_their_own_users(foreign: Foreign) -> None:
    heard: dict[str, bytes] = {}
    async with open_broker([], foreign.own(), devices=["a", "b"]) as broker:
        assert broker.kind == f"mqtts://{HOST}:{foreign.port}"
        assert broker.port != foreign.port
        assert [broker.access(HOST, name).username for name in ("", "a", "b")] == [ORCHESTRATOR, "a", "b"]
        orchestrator, a = link(broker), link(broker, "a")
        orchestrator.subscribe("edgebed/#", heard.__setitem__)
        await orchestrator.open()
        await a.open()
        a.publish(Topics("f1").data_from("b"), b"false")
        a.publish(Topics("f1").data_from("a"), bytes(4 << 20))
        await until(lambda: bool(heard))
        assert {topic: len(payload) for topic, payload in heard.items()} == {Topics("f1").data_from("a"): 4 << 20}
        await a.close()
        await orchestrator.close()
        with pytest.raises(LinkError, match="not ours"):
            await broker.restart()


@pytest.mark.mosquitto
async def test_who_answers_in_the_brokers_place_gets_no_password(foreign: Foreign, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other.pem"
    other.write_bytes(Authority(tmp_path / "other").pem)
    for changed, why in (
        ({"ca": str(other)}, "is not believed"),
        ({"ca": ""}, "is not believed"),
        ({"url": f"mqtts://127.0.0.2:{foreign.port}"}, "cannot be reached|is not believed"),
        ({"url": f"mqtts://{HOST}:{free_port([HOST])}"}, "cannot be reached"),
    ):
        with pytest.raises(LinkError, match=why):
            async with open_broker([], foreign.own(**changed), devices=["a"]):
                pass


async def test_a_broker_on_this_host_is_used_without_tls_and_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_broker([], kinds=["embedded"]) as ours:
        monkeypatch.setenv(USER, ours.username)
        monkeypatch.setenv(PASSWORD, ours.password)
        own = OwnBroker(f"mqtt://{HOST}:{ours.port}")
        async with open_broker(["10.1.2.3"], own, devices=["a"]) as broker:
            assert broker.kind == f"mqtt://{HOST}:{ours.port}"
            assert broker.access("10.1.2.3").host == "10.1.2.3"  # on this host: devices have their own name for it
            assert broker.access("10.1.2.3", "a").username == ours.username
            with pytest.raises(LinkError, match="not ours"):
                await broker.restart()
        monkeypatch.setenv(PASSWORD, "wrong")
        with pytest.raises(LinkError, match="refused us"):
            async with open_broker([], own):
                pass


async def test_passwords_and_weights_leave_this_host_over_tls_only() -> None:
    for url in ("mqtt://192.0.2.7", "mqtt://broker.lan:1883"):
        with pytest.raises(UsageError, match="not on this host") as caught:
            async with open_broker([], OwnBroker(url)):
                pass
        assert "mqtts://" in caught.value.hint


def test_a_file_of_users_is_ours_alone_and_has_every_device(tmp_path: Path) -> None:
    fleet, file = tmp_path / "fleet.yaml", tmp_path / "users"
    profile = "{name: p, cpus: 0.5, uplink_mbit_s: 1, downlink_mbit_s: 1, memory_mib: 256}"
    (tmp_path / "p.yaml").write_text(profile)
    fleet.write_text("name: f\nbackend: local\ndevices: [{profile: p.yaml, count: 2, name: d}]\n")
    command = ["broker", "users", str(fleet), str(file)]
    result = CliRunner().invoke(build(), command)
    assert result.exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    own = OwnBroker("mqtt://localhost", users=str(file))
    users = own.passwords_of(["d-1", "d-2"])
    assert set(users) == {ORCHESTRATOR, "d-1", "d-2"}
    assert len(set(users.values())) == 3
    assert own.address().password == users[ORCHESTRATOR]
    assert not any(password in result.output for password in users.values())
    assert CliRunner().invoke(build(), command).exit_code != 0  # nothing is overwritten
    with pytest.raises(UsageError, match="no line for d-3"):
        own.passwords_of(["d-3"])
    file.chmod(0o640)
    with pytest.raises(UsageError, match="others can read"):
        own.address()


def test_no_password_stands_on_a_command_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="list of processes") as caught:
        own_broker("mqtts://u:secret@h", None, None)
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    for url, ca in ((None, tmp_path), ("mqtt://localhost", tmp_path), ("http://h", None)):
        with pytest.raises(UsageError):
            own_broker(url, ca, None)


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "mqtt://h:port",
        "mqtt://u:secret@h:99999",
        "mqtt://u:secret/x@h",
        "mqtt://",
        "localhost:1883",
        "mqtts://h/topic",
    ],
)
def test_unusable_urls_name_the_hint_and_keep_the_password(url: str) -> None:
    with pytest.raises(UsageError, match="no broker's address") as caught:
        parse_url(url)
    assert "mqtts://" in caught.value.hint
    assert "secret" not in str(caught.value)


def test_urls_are_taken_apart() -> None:
    assert parse_url("mqtt://u:p%40ss@broker.lan") == Address("broker.lan", 1883, "u", "p@ss")
    assert parse_url("mqtts://broker.lan") == Address("broker.lan", 8883)
