"""What `orchestrator.broker.amqtt_broker` overrides and calls of amqtt, most of it private, is what it was written for.

Where this fails, a newer amqtt is installed. Compare its methods with those of the version before, and write the new
hashes down; or replace or drop the embedded broker (docs/transport.md).
"""

from __future__ import annotations

import hashlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amqtt.session import Session

from orchestrator.broker import amqtt_broker as ours

ROOT = Path(__file__).parents[2]
VERSION = "0.12.1"
KNOWN = {
    "Broker.__init__": "5158ff3ca649",
    "Broker._authenticate": "4d7db8cc6fe2",
    "Broker._broadcast_message": "78ad4edb7efb",
    "Broker._cleanup_session": "530ae891d9f5",
    "Broker._client_connected": "432b724bc4fb",
    "Broker._client_message_loop": "916c4647c338",
    "Broker._del_subscription": "415f349273b0",
    "Broker._get_handler": "169908c149fd",
    "Broker._handle_client_session": "8b1b52a03df9",
    "Broker._handle_disconnect": "8c3b8702f356",
    "Broker._initialize_client_session": "5dd89158bbe4",
    "Broker._matches": "c03b25d98f4c",
    "Broker._publish_retained_messages_for_subscription": "d6ad257821ba",
    "Broker._run_broadcast": "e852128b3e38",
    "Broker._session_monitor": "5091fa20cdfd",
    "Broker._stop_handler": "496013328caf",
    "Broker._topic_filtering": "9259ae5e1dd3",
    "Broker.add_subscription": "07757b63113c",
    "Broker.retain_message": "6233eff2618b",
    "Broker.start": "bd1c165101f6",
    "Broker.stream_connected": "d1c68240cb49",
    "BrokerProtocolHandler.__init__": "95a1c78fecfd",
    "BrokerProtocolHandler.attach": "ff8ecc04c80a",
    "BrokerProtocolHandler.handle_read_timeout": "ffd79f12457f",
    "BrokerProtocolHandler.init_from_connect": "036dc04c1133",
    "BrokerProtocolHandler.mqtt_connack_authorize": "4e64256ea1f5",
    "BrokerProtocolHandler.mqtt_publish": "30cb8f651cc5",
    "BrokerProtocolHandler.start": "f7637c34a27f",
    "Session": "0ad91e23a868",
    "StreamReaderAdapter.__init__": "2594a16cfbf6",
    "StreamReaderAdapter.read": "e445534526f9",
    "StreamWriterAdapter.__init__": "9612036ac78e",
    "StreamWriterAdapter.close": "9f228a1f968d",
}
"""Method -> the first digits of its source's SHA-256."""


def touched() -> Iterator[tuple[str, object]]:
    """Every method of amqtt that a class of ours overrides or calls, and what makes the attributes that it reads."""
    source = inspect.getsource(ours)
    for owner in (ours.Broker, ours.Handler, ours.Reader, ours.Writer):
        base = owner.__mro__[1]
        names = {"__init__", *vars(owner), *re.findall(r"(?:self|super\(\)|[hH]andler)\.(\w+)", source)}
        for name in names:
            method = inspect.getattr_static(base, name, None)
            method = getattr(method, "__func__", method)
            if inspect.isfunction(method) and method.__module__.startswith("amqtt."):
                yield f"{base.__name__}.{name}", method
    yield "Session", Session


def digest(thing: Any) -> str:
    return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()[:12]


def changed(known: dict[str, str], found: dict[str, str]) -> dict[str, str]:
    """What became of the methods that are not as they were, by name."""
    gone = {name: "is gone" for name in known if name not in found}
    new = {name: "is new here" for name in found if name not in known}
    return gone | new | {name: "has changed" for name in known if found.get(name, known[name]) != known[name]}


def test_amqtt_is_the_one_that_the_embedded_broker_mends() -> None:
    found = {name: digest(thing) for name, thing in touched()}
    differences = [f"{name} {what}" for name, what in changed(KNOWN, found).items()]
    assert not differences, (
        f"amqtt {version('amqtt')} is not {VERSION}, which orchestrator/broker/amqtt_broker.py was written for: "
        f"{', '.join(differences)}. Compare these, and mend, replace or drop the embedded broker"
    )


def test_a_difference_is_seen() -> None:
    """Or the test above could not fail."""
    found = {name: digest(thing) for name, thing in touched()}
    assert len(found) > 30
    other = {**found, "Broker.start": "0", "Broker.more": "1"}
    del other["Broker._matches"]
    assert changed(found, other) == {
        "Broker._matches": "is gone",
        "Broker.start": "has changed",
        "Broker.more": "is new here",
    }


def test_amqtt_is_pinned_for_the_orchestrator_and_no_agent_gets_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {"base": project["dependencies"], **project["optional-dependencies"]}
    asked = {name: text for name, extra in extras.items() for text in extra if "amqtt" in text}
    assert asked == {"orchestrator": f"amqtt=={VERSION}"}
    assert f"\namqtt=={VERSION} " in (ROOT / "requirements" / "all.lock").read_text("utf-8")
    assert "amqtt" not in (ROOT / "requirements" / "agent.lock").read_text("utf-8")
    # The image installs that lock, and copies no code of the orchestrator.
    image = (ROOT / "docker" / "Dockerfile.agent").read_text("utf-8")
    assert "-r /tmp/build/agent.lock" in image
    assert re.findall(r"^COPY (\w+) /app", image, re.MULTILINE) == ["edgebed", "edge_agent"]
    assert version("amqtt") == VERSION
