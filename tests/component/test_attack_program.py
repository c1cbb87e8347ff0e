"""The attack program against a live boards service: no attempt gets more than it should."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.component._boards import made, running
from tests.component.test_man_in_the_middle import padded_ca
from tests.hostile import agent, host, service
from tests.hostile.attempts import Attempt, Result, table, tried

pytestmark = [pytest.mark.mosquitto, pytest.mark.root]


async def test_no_attempt_on_a_live_service_gets_more_than_it_should() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own cannot be entered by other users
        os.chmod(folder, 0o755)
        results = await attempts(Path(folder))
    print(table(results))
    assert [each for each in results if not each.fine] == []


async def attempts(folder: Path) -> list[Result]:
    """The CA's base64 has padding, so that a second one could be hidden behind it."""
    async with running(made(folder / "lab"), padded_ca(made(folder / "place"))) as lab:
        await service.prepared(lab)
        return [await tried(each, lab) for each in (*service.ATTEMPTS, *host.ATTEMPTS)]


async def test_an_attempt_that_gets_more_is_told() -> None:
    async def got(target: str) -> str:
        return target

    attempt = Attempt("stranger", "tries", got, "refused", "A7", "ten")
    assert [(await tried(attempt, said)).fine for said in ("refused: x", "ten", "eleven")] == [True, True, False]
    assert "MORE" in table([await tried(attempt, "eleven")])
    assert "open A7" in table([await tried(attempt, "ten")])


def test_there_are_enough_attempts() -> None:
    assert len(service.ATTEMPTS) + len(host.ATTEMPTS) + len(agent.ATTACKS) - 1 >= 40
    assert os.geteuid() == 0
