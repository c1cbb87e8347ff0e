"""A Presence that is sent again, on both brokers of ours: by the device itself, by another one, by a stranger."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest

from edgebed.errors import LinkError
from edgebed.link.connection import Address
from edgebed.link.endpoint import TransferEndpoint
from edgebed.link.mqtt import MqttLink
from edgebed.wire.messages import Presence, Status, encode
from edgebed.wire.protocol import PROTOCOL
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.broker.open_broker import Broker, open_broker
from orchestrator.fleet.control.membership import Membership
from orchestrator.records.types import Fault, Record
from tests.broker_address import tcp_address
from tests.waiting import until

TOPICS = Topics("f1")
OURS = [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"]


class Desk:
    """An orchestrator's endpoint and membership on a broker, for the devices `a` and `b`, which are pinned."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.records, self.dropped = broker, list[Record](), list[tuple[str, str]]()
        self.link = MqttLink(self.address(), "orchestrator-1")
        self.endpoint = TransferEndpoint(
            ORCHESTRATOR,
            TOPICS,
            self.link,
            self.link,
            deliver=_nothing,
            on_control=lambda peer, message: self.membership.on_control(peer, message),
            known=lambda name: name in ("a", "b"),
            on_dropped=lambda peer, why: self.dropped.append((peer, why)),
        )
        self.membership = Membership(["a", "b"], self.endpoint.control, self.records.append, pinned=lambda name: True)
        self.endpoint.start()

    def address(self, user: str = "") -> Address:
        return tcp_address(self.broker, device=user) if user else self.broker.address

    @contextlib.asynccontextmanager
    async def connected(self, user: str) -> AsyncIterator[MqttLink]:
        link = MqttLink(self.address(user), f"{user}-{uuid.uuid4().hex}")
        await link.open()
        yield link
        await link.close()

    def is_(self, device: str, incarnation: str) -> bool:
        member = self.membership.devices[device]
        return member.online and member.incarnation == incarnation

    @property
    def faults(self) -> list[str]:
        return [record.what for record in self.records if isinstance(record, Fault)]


async def _nothing(inbound: object) -> None: ...


@pytest.fixture(params=OURS)
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with open_broker([], kinds=[request.param], fleet="f1", devices=["a", "b"]) as broker:
        desk = Desk(broker)
        await desk.link.open()
        yield desk
        await desk.endpoint.close()
        await desk.link.close()


def presence(device: str, incarnation: str) -> bytes:
    return encode(Presence(device, incarnation, True, PROTOCOL))


def heartbeat(device: str, incarnation: str, progress: int) -> bytes:
    return encode(Status(device, incarnation, 0, "", "waiting", progress, 0.0, 0))


async def restarted(desk: Desk, link: MqttLink) -> None:
    """Device `a` has joined, has ended, and was started again by the fleet."""
    link.publish(TOPICS.state("a"), presence("a", "first"), retain=True)
    await until(lambda: desk.is_("a", "first"))
    desk.membership.left("a", "its process ended")
    desk.membership.expect("a")
    link.publish(TOPICS.state("a"), presence("a", "second"), retain=True)
    await until(lambda: desk.is_("a", "second"))


async def test_a_device_that_sends_its_old_presence_again_stays_what_it_is(desk: Desk) -> None:
    async with desk.connected("a") as link, desk.connected("a") as thief:
        await restarted(desk, link)
        thief.publish(TOPICS.state("a"), presence("a", "first"), retain=True)
        thief.publish(TOPICS.control_from("a"), heartbeat("a", "first", 5))
        await until(lambda: bool(desk.faults))
        link.publish(TOPICS.control_from("a"), heartbeat("a", "second", 7))
        await until(lambda: (seen := desk.membership.devices["a"].status) is not None and seen.progress == 7)
        assert desk.is_("a", "second")
        (fault,) = desk.faults
        assert "(incarnation first) announced itself as a again" in fault


async def test_a_device_with_a_new_presence_of_its_own_is_not_believed_either(desk: Desk) -> None:
    async with desk.connected("a") as link:
        await restarted(desk, link)
        link.publish(TOPICS.state("a"), presence("a", "third"), retain=True)
        await until(lambda: bool(desk.faults))
        assert desk.is_("a", "second")
        assert "two agents call themselves a" in desk.faults[0]


async def test_another_device_cannot_send_it_at_all(desk: Desk) -> None:
    async with desk.connected("a") as link, desk.connected("b") as other:
        await restarted(desk, link)
        other.publish(TOPICS.state("a"), presence("a", "first"), retain=True)  # the broker drops it
        other.publish(TOPICS.state("b"), presence("a", "first"), retain=True)  # the orchestrator drops it
        await until(lambda: bool(desk.dropped))
        other.publish(TOPICS.state("b"), presence("b", "own"), retain=True)
        await until(lambda: desk.is_("b", "own"))
        assert desk.is_("a", "second")
        assert desk.dropped == [("b", "speaks for somebody else")]
        assert not desk.faults


async def test_a_stranger_cannot_even_connect(desk: Desk) -> None:
    address = desk.address("a")
    for user, password in (("", ""), ("a", "guess"), ("c", address.password)):
        with pytest.raises(LinkError, match="refused us"):
            await MqttLink(Address(address.host, address.port, user, password), "stranger").open()


async def test_only_devices_of_the_fleet_are_known(desk: Desk) -> None:
    """Even the orchestrator's own user makes no device by announcing one."""
    desk.link.publish(TOPICS.state("c"), presence("c", "1"))
    desk.link.publish(TOPICS.control_from("d"), heartbeat("d", "1", 1))
    await until(lambda: bool(desk.dropped))
    desk.link.publish(TOPICS.state("b"), presence("b", "own"))
    await until(lambda: desk.is_("b", "own"))
    assert set(desk.membership.devices) == {"a", "b"}
    assert [why for _, why in desk.dropped] == ["is not a device of this fleet"]
