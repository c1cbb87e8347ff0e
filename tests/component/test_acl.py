"""A device's user on a broker of ours reads and writes the topics of its device, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from edgebed.errors import LinkError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.wire.topics import Topics
from orchestrator.broker.acl import mosquitto_lines
from orchestrator.broker.open_broker import Broker, open_broker
from tests.broker_address import tcp_address
from tests.waiting import until

TOPICS = Topics("f1")
OURS = [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"]


@pytest.fixture(params=OURS)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    async with open_broker([], kinds=[request.param], fleet="f1", devices=["a", "b"]) as broker:
        yield broker


def address_of(broker: Broker, device: str = "") -> Address:
    return tcp_address(broker, device=device) if device else broker.address


@contextlib.asynccontextmanager
async def hearing(link: MqttLink, *topics: str) -> AsyncIterator[list[str]]:
    """The topics on which it hears something, of these that it subscribes to."""
    heard = list[str]()
    for topic in topics:
        link.subscribe(topic, lambda topic, payload: heard.append(topic))
    await link.open()
    yield heard
    await link.close()


async def test_a_device_hears_only_what_is_for_it(broker: Broker) -> None:
    curious = ["#", "edgebed/f1/to/+", "edgebed/f1/data/to/+", TOPICS.control_to("b"), TOPICS.data_to("b")]
    others = [TOPICS.state("b"), TOPICS.control_from("b"), TOPICS.data_from("b"), "anything"]
    own = [TOPICS.control_to("a"), TOPICS.data_to("a")]
    a = MqttLink(address_of(broker, "a"), "a")
    async with hearing(a, *curious, *others, *own) as heard, hearing(MqttLink(address_of(broker), "o")) as _:
        sender = MqttLink(address_of(broker), "sender")
        await sender.open()
        for topic in (TOPICS.control_to("b"), TOPICS.data_to("b"), *others, *own):
            sender.publish(topic, b"x", retain=topic == TOPICS.state("b"))
        await until(lambda: own[-1] in heard)
        await sender.close()
    assert set(heard) == set(own)


async def test_nothing_arrives_that_a_device_says_for_another(broker: Broker) -> None:
    orchestrator, false = MqttLink(address_of(broker), "o"), MqttLink(address_of(broker, "a"), "a")
    own = [TOPICS.state("a"), TOPICS.data_from("a"), TOPICS.control_from("a")]
    async with hearing(orchestrator, "edgebed/#", "anything") as heard, hearing(false):
        for topic in (TOPICS.control_from("b"), TOPICS.data_from("b"), TOPICS.control_to("b"), "anything"):
            false.publish(topic, b"x")
        false.publish(TOPICS.state("b"), b"gone", retain=True)
        for topic in own:
            false.publish(topic, b"x")
        await until(lambda: own[-1] in heard)
        assert set(heard) == set(own)


async def test_a_will_for_another_device_is_not_published(broker: Broker) -> None:
    async with hearing(MqttLink(address_of(broker), "o"), "edgebed/#") as heard:
        false = MqttLink(address_of(broker, "a"), "a", will=(TOPICS.state("b"), b"gone", True))
        with contextlib.suppress(LinkError):  # some brokers refuse such a client at once
            await false.open()
            false.reopen()  # without a goodbye
            await until(lambda: false.connected)
        honest = MqttLink(address_of(broker, "a"), "honest")
        await honest.open()
        honest.publish(TOPICS.state("a"), b"here")
        await until(lambda: bool(heard))
        assert heard == [TOPICS.state("a")]
        await false.close()
        await honest.close()


async def test_a_password_opens_one_user_only(broker: Broker) -> None:
    a, b = address_of(broker, "a"), address_of(broker, "b")
    assert len({a.password, b.password, broker.address.password}) == 3
    for user, password in (("b", a.password), ("orchestrator", a.password), ("c", a.password), ("a", "")):
        with pytest.raises(LinkError, match="refused us"):
            await MqttLink(Address(a.host, a.port, user, password), "x").open()


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
async def test_a_device_cannot_take_the_place_of_another_connection(broker: Broker) -> None:
    """Mosquitto has no such check: there the names of connections cannot be guessed."""
    b = MqttLink(address_of(broker, "b"), "name of b")
    async with hearing(b, TOPICS.control_to("b")) as heard, hearing(MqttLink(address_of(broker), "o")):
        with pytest.raises(LinkError, match="refused us"):
            await MqttLink(address_of(broker, "a"), "name of b").open()
        orchestrator = MqttLink(address_of(broker), "sender")
        await orchestrator.open()
        orchestrator.publish(TOPICS.control_to("b"), b"x")
        await until(lambda: bool(heard))
        await orchestrator.close()


def test_mosquittos_rules_have_no_wildcard_for_devices() -> None:
    rules = [line for line in mosquitto_lines("f1") if line.startswith("pattern")]
    assert len(rules) == 5
    assert all(rule.endswith("/%u") and "+" not in rule and "#" not in rule for rule in rules)
