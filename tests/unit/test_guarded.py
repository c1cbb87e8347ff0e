"""No password, token or key stands in what people or files are shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from edge_agent import settings
from edge_agent.node import settings as node
from edgebed.guarded import Guarded
from edgebed.link.connection import Address
from edgebed.wire.boards import Join, Token
from edgebed.wire.fork_protocol import Fork
from orchestrator.boards.service_folder import Live
from orchestrator.boards.tls_broker import Files
from orchestrator.broker.own import OwnBroker
from orchestrator.broker.runner import Listen
from orchestrator.fleet.many_hosts import TlsListener
from orchestrator.fleet.ownership import this_process
from orchestrator.runs.daemon import state_of

WORD = "hunter2"


@pytest.mark.parametrize(
    "guarded",
    [
        Address("h", 1883, "u", WORD),
        TlsListener("h", b"", b"", WORD.encode()),
        Listen(["h"], 1883, {"u": WORD}),
        Live(this_process(), Address("/socket", 0, "u", WORD), 0),
        Token(bytes(32), WORD, "pi"),
        Join(WORD, "csr"),
        Fork("d", (), f"mqtt://u:{WORD}@h", "log", "shard"),
        Files(b"", b"", WORD.encode(), b""),
        settings.AgentSettings("h", 1883, "u", WORD, "f", "d", Path("shard")),
        node.HelperSettings("ca", "c", WORD, "c", WORD, 1, 1.0),
        OwnBroker(f"mqtts://u:{WORD}@h"),
    ],
    ids=lambda each: f"{type(each).__module__}.{type(each).__name__}",
)
def test_reprs_keep_secrets(guarded: msgspec.Struct) -> None:
    assert WORD not in repr([guarded])
    assert repr(guarded).startswith(type(guarded).__name__)


def test_a_repr_shows_what_is_no_secret_and_that_none_is_set() -> None:
    assert repr(Address("h", 1883)) == "Address(host='h', port=1883, username='', password='', identity=None)"


def test_equality_and_order_of_fields_stay() -> None:
    assert isinstance(Address("h", 1), Guarded)
    assert Address("h", 1, "u", WORD) == Address("h", 1, "u", WORD) != Address("h", 1, "u", "other")


async def test_the_state_of_a_fleet_has_its_broker_without_a_password() -> None:
    controller = SimpleNamespace(
        broker=SimpleNamespace(address=Address("h", 1883, "orchestrator", WORD)),
        spec=SimpleNamespace(name="f"),
        fleet_id="f1",
        backend_name="local",
        enforcement="kernel",
        dilation=1.0,
        names=[],
        grain="pacing",
    )
    state = await state_of(controller)  # type: ignore[arg-type]
    assert state.broker == "h:1883"
    assert WORD.encode() not in msgspec.json.encode(state)
