"""The software throttle: duty cycle and token buckets on a clock of the test's own."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.software_throttle import CREDIT_S, CpuGovernor, SoftwareThrottle, TokenBucket
from edgebed.link.base import Handler
from edgebed.timeouts import timeout
from edgebed.wire.frames import WIRE_SHARE
from edgebed.wire.messages import Configure


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(cpus=st.floats(0.05, 1.0), batches=st.lists(st.floats(0.01, 3.0), min_size=10, max_size=50))
def test_work_and_sleep_together_hold_the_quota(cpus: float, batches: list[float]) -> None:
    wall, cpu = Clock(), Clock()
    governor = CpuGovernor(wall, cpu)
    governor.set(cpus)
    for batch in batches:
        wall.now += batch
        cpu.now += batch
        wall.now += governor.owed()
    assert cpu.now <= cpus * (wall.now + CREDIT_S) * (1 + 1e-6)
    assert cpu.now >= cpus * wall.now * (1 - 1e-6)


def test_a_long_rest_saves_up_little() -> None:
    wall, cpu = Clock(), Clock()
    governor = CpuGovernor(wall, cpu)
    governor.set(0.5)
    wall.now += 1000
    governor.owed()
    cpu.now += 1
    wall.now += 1
    assert governor.owed() > 0.5


def test_without_a_limit_nothing_waits() -> None:
    throttle = SoftwareThrottle()
    throttle.configure(Configure(1, 1, 5.0, software=False, cpus=0.001, uplink_bit_s=8, downlink_bit_s=8))
    throttle.pace()
    assert throttle.uplink.delay(10**9) == 0
    assert throttle.downlink.delay(10**9) == 0


@given(rate=st.integers(10_000, 10**9), sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_bytes_pass_one_after_the_other(rate: int, sizes: list[int]) -> None:
    clock = Clock()
    bucket = TokenBucket(clock)
    bucket.set(rate)
    delays = [bucket.delay(size) for size in sizes]
    assert delays == sorted(delays)
    expected = sum(sizes) * 8 / WIRE_SHARE / rate
    assert abs(delays[-1] - expected) <= 1e-6 * expected


def test_an_idle_link_saves_nothing_up() -> None:
    clock = Clock()
    bucket = TokenBucket(clock)
    bucket.set(8_000_000)
    clock.now = 1000.0
    assert bucket.delay(1_000_000) > 0.9


class Wire:
    """A link that notes what is published, and lets the test deliver."""

    connected = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.handlers: list[Handler] = []
        self.all_sent = asyncio.Event()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.sent.append(payload)
        if len(self.sent) == 8:
            self.all_sent.set()

    def subscribe(self, topic: str, handler: Handler) -> None:
        self.handlers.append(handler)

    def on_connect(self, callback: object) -> None: ...


async def test_messages_leave_and_arrive_late_but_in_order() -> None:
    wire, throttle = Wire(), SoftwareThrottle()
    link = throttle.link(wire)
    throttle.configure(Configure(1, 1, 5.0, software=True, cpus=1.0, uplink_bit_s=8_000_000, downlink_bit_s=8_000_000))
    got: list[bytes] = []
    all_got = asyncio.Event()

    def take(topic: str, payload: bytes) -> None:
        got.append(payload)
        if len(got) == 8:
            all_got.set()

    link.subscribe("t", take)
    messages = [bytes([i]) * 5000 for i in range(8)]
    start = asyncio.get_running_loop().time()
    for message in messages:
        link.publish("t", message)
        wire.handlers[0]("t", message)
    assert wire.sent == []
    assert got == []
    async with timeout(10):
        await asyncio.gather(wire.all_sent.wait(), all_got.wait())
    assert wire.sent == messages
    assert got == messages
    assert asyncio.get_running_loop().time() - start >= 40_000 * 8 / 8_000_000
