"""Rounds that a deadline cuts while uploads of one device wait at its server half, over a real broker."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import torch

from edgebed.errors import WireError
from edgebed.link.base import Handler
from edgebed.link.mqtt import MqttLink
from edgebed.methods.base import DeviceView, Method, Plan, Schedule, ServerHalf
from edgebed.models.staged import Weights
from edgebed.wire.frames import Chunk, unpack
from edgebed.wire.messages import Assignment
from orchestrator.broker.open_broker import open_broker
from tests.broker_address import tcp_address
from tests.component._fleet import Fleet, fleet, method

SLOW = "dev-3"
DEVICES = {"dev-1": 16, "dev-2": 16, SLOW: 28}
"""Samples. The slow one has the most, so that steps of a half that all share are its own in the end; when
the deadline comes, they are trained, and the last wait for their receipts."""


class SlowHalf(ServerHalf):
    """A server half whose steps for the slow device alone last `seconds` longer, until `free` is set."""

    def __init__(self, inner: ServerHalf, seconds: float, free: threading.Event) -> None:
        self._inner, self._seconds, self._free = inner, seconds, free
        self.devices = inner.devices

    def step(self, uploads: Mapping[str, Weights]) -> Mapping[str, Weights]:
        if set(uploads) == {SLOW}:
            self._free.wait(self._seconds)
        return self._inner.step(uploads)

    def weights(self) -> Weights:
        return self._inner.weights()


class Cut:
    """A method whose server half is slow for one device in some rounds.

    Attributes:
        free: set at the end of a test, so that no step is waited for.
    """

    def __init__(self, spec: Mapping[str, object], rounds: Collection[int], seconds: float) -> None:
        self.method, self.free = method(spec), threading.Event()
        self.plans: list[Plan] = []
        _slow_down(self, rounds, seconds)


def _slow_down(cut: Cut, rounds: Collection[int], seconds: float) -> None:
    plan, halves = cut.method.plan, cut.method.server_halves

    def planned(round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        cut.plans.append(plan(round, devices, schedule))
        return cut.plans[-1]

    def slowed(weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device) -> list[ServerHalf]:
        made = halves(weights, assignments, accelerator)
        return [SlowHalf(h, seconds, cut.free) for h in made] if len(cut.plans) - 1 in rounds else made

    cut.method.plan, cut.method.server_halves = planned, slowed  # type: ignore[method-assign]


class CountingLink:
    """A link that counts how often each chunk was published on it."""

    def __init__(self, inner: MqttLink) -> None:
        self._inner = inner
        self.sent: Counter[tuple[str, int]] = Counter()
        self.open, self.close = inner.open, inner.close
        self.on_connect = inner.on_connect

    @property
    def connected(self) -> bool:
        return self._inner.connected

    def subscribe(self, topic: str, handler: Handler) -> None:
        self._inner.subscribe(topic, handler)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        with contextlib.suppress(WireError):
            frame = unpack(payload)
            if isinstance(frame, Chunk):
                self.sent[frame.transfer, frame.index] += 1
        self._inner.publish(topic, payload, retain=retain)


@contextlib.asynccontextmanager
async def fleet_on(kind: str, folder: Path) -> AsyncIterator[tuple[Fleet, dict[str, CountingLink]]]:
    """Three real agents in this process that meet at a broker of a kind; their links by name."""
    links: dict[str, CountingLink] = {}
    async with open_broker([], kinds=[kind]) as broker:
        address = tcp_address(broker)

        def connect(name: str, will: tuple[str, bytes, bool] | None) -> CountingLink:
            links[name] = CountingLink(MqttLink(address, name, will=will, keepalive_s=0))
            return links[name]

        async with fleet(folder, DEVICES, connect=connect) as made:
            yield made, links


def with_server_half(spec: Mapping[str, object]) -> bool:
    """Whether devices of a method send features or logits to a server half."""
    return type(method(spec)).server_halves is not Method.server_halves
