"""Somebody between a board and its service, who answers in the service's place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_agent.board.join import join
from edge_agent.board.standby import Standby
from edgebed.errors import LinkError, UsageError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from orchestrator.boards.authority import Authority
from tests.component._between import Between, padded_ca
from tests.component._boards import HOST, Lab, made, running

pytestmark = pytest.mark.mosquitto


@pytest.mark.parametrize("told", ["{right}{own}", "{right}\nand {own}", "{own}{right}", "{own}"])
async def test_who_adds_a_ca_to_the_right_one_gets_nothing(told: str, tmp_path: Path) -> None:
    place, own = padded_ca(made(tmp_path / "right")), Authority(made(tmp_path / "own"))
    right = Authority(place).pem.decode()
    between = Between(own, told.format(right=right, own=own.pem.decode()))
    async with running(made(tmp_path / "lab"), place) as lab:
        token, keys = lab.token("kitchen-pi"), lab.keys("kitchen-pi")
        with between.listening(), pytest.raises(LinkError, match=r"do not trust each other|another fingerprint"):
            await asyncio.to_thread(join, between.service, str(token), keys, print)
        assert not between.posted
        assert not keys.joined
        await asyncio.to_thread(join, lab.service, str(token), keys, print)  # the token still works
        assert keys.identity.ca.read_text() == right


async def test_a_board_that_stored_a_second_ca_shows_nothing_to_it(lab: Lab, tmp_path: Path) -> None:
    keys, own = await lab.board("pi"), Authority(made(tmp_path / "own"))
    between = Between(own, "")
    keys.identity.ca.write_text(keys.identity.ca.read_text() + own.pem.decode())
    with between.listening():
        for attempt in (
            lambda: asyncio.run(asyncio.wait_for(Standby(keys, print).run(), 10)),
            lambda: between.service.check(keys.identity),
            lambda: between.service.shard("0" * 64, tmp_path, keys.identity),
            lambda: asyncio.run(MqttLink(Address(HOST, between.service.port, identity=keys.identity), "pi").open()),
        ):
            with pytest.raises(UsageError, match=r"ca\.pem does not hold exactly one certificate") as caught:
                await asyncio.to_thread(attempt)
            assert "leave, then join again" in caught.value.hint
