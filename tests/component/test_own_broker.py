"""A broker of the user's own: on this host, over TLS, and what is refused."""

from __future__ import annotations

import datetime as dt
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgebed.errors import LinkError, UsageError
from edgebed.link.connection import Address, parse_url
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import Identity
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.boards.authority import Authority
from orchestrator.broker.open_broker import Broker, open_broker
from orchestrator.broker.own import PASSWORD, USER, OwnBroker
from orchestrator.cli import build
from orchestrator.cli.arguments import own_broker
from orchestrator.fleet.many_hosts import TlsListener
from tests.broker_address import free_port, tcp_address
from tests.component._foreign import HOST, Foreign
from tests.component._strangers import are_open, strangers
from tests.waiting import until

NODES_SIDE = "127.0.0.2"
MOST_STRANGERS = 256
USERS = {ORCHESTRATOR: "boss", "a": "of a", "b": "of b"}


@pytest.fixture
async def foreign(tmp_path: Path) -> AsyncIterator[Foreign]:
    (tmp_path / "foreign").mkdir()
    async with Foreign(tmp_path / "foreign", USERS).running() as made:
        yield made


def link(broker: Broker, device: str = "") -> MqttLink:
    return MqttLink(tcp_address(broker, HOST, device) if device else broker.address, f"link of {device}")


@pytest.mark.mosquitto
async def test_devices_reach_a_broker_behind_tls_with_their_own_users(foreign: Foreign) -> None:
    heard: dict[str, bytes] = {}
    async with open_broker([], foreign.own(), devices=["a", "b"]) as broker:
        assert broker.kind == f"mqtts://{HOST}:{foreign.port}"
        assert broker.port != foreign.port
        assert [broker.access(HOST, name).username for name in ("a", "b")] == ["a", "b"]
        assert broker.address.username == ORCHESTRATOR
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
async def test_other_hosts_reach_it_with_a_certificate_of_the_run(foreign: Foreign, tmp_path: Path) -> None:
    """The relay is the end of their TLS: it shows the run's certificate, and asks for one."""
    ours, now = Authority(tmp_path), dt.datetime.now(dt.UTC)
    key, certificate = ours.server_pair([NODES_SIDE], now)
    tls = TlsListener(NODES_SIDE, ours.pem, certificate, key)
    async with open_broker([], foreign.own(), devices=["a", "b"], tls=tls) as broker:
        node = link_of_a(broker, shown(tmp_path / "node", ours, ours))
        await node.open()
        await node.close()
        with pytest.raises(LinkError):
            await link_of_a(broker, shown(tmp_path / "stranger", ours, foreign.authority)).open()


@pytest.mark.mosquitto
async def test_of_other_hosts_without_a_certificate_few_connections_are_kept(foreign: Foreign, tmp_path: Path) -> None:
    ours, now = Authority(tmp_path), dt.datetime.now(dt.UTC)
    key, certificate = ours.server_pair([NODES_SIDE], now)
    tls = TlsListener(NODES_SIDE, ours.pem, certificate, key)
    async with (
        open_broker([], foreign.own(), devices=["a"], tls=tls) as broker,
        strangers(broker.port, 300, host=NODES_SIDE) as silent,
    ):
        await until(lambda: are_open(silent) == MOST_STRANGERS, 4)
        node = link_of_a(broker, shown(tmp_path / "node", ours, ours))
        await node.open()
        await node.close()


def link_of_a(broker: Broker, identity: Identity) -> MqttLink:
    return MqttLink(Address(NODES_SIDE, broker.port, "a", USERS["a"], identity), "link of a")


def shown(folder: Path, believed: Authority, signer: Authority) -> Identity:
    """Files that show a certificate of `signer`."""
    folder.mkdir()
    files = Identity.of(folder)
    key, certificate = signer.client_pair("node", dt.datetime.now(dt.UTC))
    for path, data in ((files.ca, believed.pem), (files.certificate, certificate), (files.key, key)):
        path.write_bytes(data)
    return files


@pytest.mark.mosquitto
async def test_a_password_that_it_does_not_take_is_told_at_once(foreign: Foreign) -> None:
    foreign.users[ORCHESTRATOR] = "not boss"
    own = foreign.own()
    with pytest.raises(LinkError, match=f"mqtts://{HOST}:{foreign.port}: .* refused us: Not authorized") as caught:
        async with open_broker([], own):
            pass
    assert own.users in caught.value.hint


@pytest.mark.mosquitto
async def test_who_answers_in_the_brokers_place_gets_no_password(foreign: Foreign, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other.pem"
    other.write_bytes(Authority(tmp_path / "other").pem)
    for changed, why in (
        ({"ca": str(other)}, "is not believed"),
        ({"ca": ""}, "is not believed"),
        ({"url": f"mqtts://127.0.0.2:{foreign.port}"}, "cannot be reached|is not believed"),
        ({"url": f"mqtts://{HOST}:{free_port()}"}, "cannot be reached"),
    ):
        with pytest.raises(LinkError, match=why):
            async with open_broker([], foreign.own(**changed), devices=["a"]):
                pass


async def test_a_broker_on_this_host_is_used_without_tls_and_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_broker([], kinds=["embedded"]) as ours:
        monkeypatch.setenv(USER, ours.address.username)
        monkeypatch.setenv(PASSWORD, ours.address.password)
        own = OwnBroker(f"mqtt://{HOST}:{ours.port}")
        async with open_broker(["10.1.2.3"], own, devices=["a"]) as broker:
            assert broker.kind == f"mqtt://{HOST}:{ours.port}"
            assert broker.access("10.1.2.3", "a").host == "10.1.2.3"  # on this host: devices have their own name for it
            assert broker.access("10.1.2.3", "a").username == ours.address.username
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
        " mqtts://u:secret@h",
        "mqtt\ts://u:secret@h",
        "mqtt://u:99#secret@h",
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


def test_the_scheme_of_an_address_may_be_in_capitals(tmp_path: Path) -> None:
    """`parse_url` reads it so; without TLS the password would go to its port in clear text."""
    own = own_broker("MQTTS://10.255.0.1", tmp_path, None)
    assert own is not None
    assert (own.secure, own.name, own.address()) == (True, "mqtts://10.255.0.1:8883", Address("10.255.0.1", 8883))
