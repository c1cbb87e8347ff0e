"""The attack program against a live boards service: no attempt gets more than it should."""

from __future__ import annotations

import pytest

from tests.hostile import agent, host, service
from tests.hostile.attempts import Attempt, table, tried
from tests.hostile.program import at_service


@pytest.mark.mosquitto
@pytest.mark.root
async def test_no_attempt_on_a_live_service_gets_more_than_it_should() -> None:
    results = await at_service()
    print(table(results))
    assert [each for each in results if not each.fine] == []


async def test_an_attempt_that_gets_more_is_told() -> None:
    async def got(target: str) -> str:
        return target

    attempt = Attempt("stranger", "tries", got, "refused", "A7", "ten")
    assert [(await tried(attempt, said)).fine for said in ("refused: x", "ten", "eleven")] == [True, True, False]
    assert "MORE" in table([await tried(attempt, "eleven")])
    assert "open A7" in table([await tried(attempt, "ten")])


def test_there_are_enough_attempts() -> None:
    assert len(service.ATTEMPTS) + len(host.ATTEMPTS) >= 40
    assert len(agent.ATTACKS) - 1 >= 30
