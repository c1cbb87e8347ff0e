"""A trace with a rate per second, replayed on two devices: goodput per second beside it.

Both devices replay 60 s of one trace between 1 and 50 Mbit/s, each from its own offset, while the host sends to them
and they send to the host without a pause. The limits are set as on a real fleet of the local backend; agents are not
part of it. Per second: bytes that arrived × 8 ÷ (rate × the share of a full frame that is payload). A last part
measures what a change of rate costs with many devices.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import statistics
import threading
import time

from benchmarks._figures import figure, skip
from edgebed.wire.frames import WIRE_SHARE
from orchestrator.fleet.network import netns
from orchestrator.fleet.network.netlink import in_netns
from orchestrator.fleet.network.subnets import LOCAL_POOL, free_subnets, host_networks
from orchestrator.fleet.spec.profile import Limits
from orchestrator.scenario.traces import Playback, Trace, parse_csv

SECONDS, SEED = 60, 7
MANY, CHANGES = 200, 3
OFTEN_S = 0.01


def trace() -> Trace:
    """A random walk of the logarithm of the rate, 1 to 50 Mbit/s."""
    chance, rate, lines = random.Random(SEED), 8.0, ["time_s,uplink_mbit_s,downlink_mbit_s"]
    for second in range(SECONDS):
        lines.append(f"{second},{rate:.2f},{rate:.2f}")
        rate = min(50.0, max(1.0, rate * 2 ** chance.gauss(0, 0.8)))
    return parse_csv("\n".join(lines), "walk")


class Flow:
    """Sends without a pause from one end of a wire to the other, and counts what arrives."""

    def __init__(self, wire: netns.Wire, up: bool) -> None:
        self.arrived: list[tuple[float, int]] = []
        self._over = threading.Event()
        host, device = wire.host_address, wire.device_address
        server = (
            socket.create_server((host, 0)) if up else in_netns(wire.path, lambda: socket.create_server((device, 0)))
        )
        port = server.getsockname()[1]
        connect = lambda: socket.create_connection((host if up else device, port))  # noqa: E731
        self._sender = in_netns(wire.path, connect) if up else connect()
        self._receiver, _ = server.accept()
        server.close()
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        for each in (self._sender, self._receiver):
            each.settimeout(1.0)
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        chunk = bytes(16 * 1024)
        while not self._over.is_set():
            try:
                self._sender.send(chunk)
            except TimeoutError:
                continue

    def _receive(self) -> None:
        total = 0
        while not self._over.is_set():
            try:
                total += len(self._receiver.recv(256 * 1024))
            except TimeoutError:
                continue
            self.arrived.append((time.monotonic(), total))

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._sender.close()
        self._receiver.close()

    def between(self, begin_s: float, end_s: float) -> int:
        """Bytes that arrived in between."""
        marks = [0, 0]
        for at_s, total in self.arrived:
            for place, bound in enumerate((begin_s, end_s)):
                if at_s <= bound:
                    marks[place] = total
        return marks[1] - marks[0]


def limits(rate_mbit_s: float) -> Limits:
    return Limits(1.0, round(rate_mbit_s * 1e6), round(rate_mbit_s * 1e6), 512)


def rates_of(playback: Playback, seconds: int) -> list[tuple[float, float]]:
    """Time and rate of every step of a playback, so many seconds of it."""
    steps, step = [], playback.first_step
    while playback.begins_s(step) < seconds:
        sample = playback.sample(step)
        assert sample is not None
        steps.append((max(0.0, playback.begins_s(step)), sample.uplink_mbit_s or 0.0))
        step += 1
    return steps


def replay(wires: list[netns.Wire], plays: list[list[tuple[float, float]]]) -> list[float]:
    """Play every trace on its wire; prints the errors. Returns how late each change was, in seconds."""
    for wire, steps in zip(wires, plays, strict=True):
        netns.shape(wire, limits(steps[0][1]))
    flows = [(wire, up, Flow(wire, up)) for wire in wires for up in (True, False)]
    begin_s, late = time.monotonic(), list[float]()
    due = sorted((at_s, rate, wire) for wire, steps in zip(wires, plays, strict=True) for at_s, rate in steps)
    for at_s, rate, wire in sorted(due, key=lambda each: each[0]):
        time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
        netns.set_rates(wire, limits(rate))
        late.append(time.monotonic() - begin_s - at_s)
    time.sleep(max(0.0, begin_s + SECONDS - time.monotonic()))
    for _, _, flow in flows:
        flow.close()
    for wire, up, flow in flows:
        report(f"{wire.veth} {'up' if up else 'down'}", flow, plays[wires.index(wire)], begin_s)
    return late


def report(name: str, flow: Flow, steps: list[tuple[float, float]], begin_s: float) -> None:
    """Seconds between two changes, the first of each left out where the rate fell: its queue is still full."""
    errors = []
    ends = [at_s for at_s, _ in steps[1:]] + [float(SECONDS)]
    for (at_s, rate), end_s in zip(steps, ends, strict=True):
        if end_s - at_s >= 0.9:
            goodput = flow.between(begin_s + at_s, begin_s + end_s) * 8 / (end_s - at_s) / 1e6
            errors.append(goodput / (rate * WIRE_SHARE) - 1)
    worst = max(errors, key=abs)
    figure(f"{name}: median |goodput ÷ trace - 1|", statistics.median(map(abs, errors)), most=0.05)
    figure(f"{name}: worst, of {len(errors)} seconds", abs(worst), note=f"{worst:+.1%}")


async def many() -> None:
    """What a change of every device in every second costs the event loop."""
    fleet_id, subnets = f"tr{os.getpid()}", free_subnets(LOCAL_POOL, 30, host_networks())
    wires = [netns.Wire(*netns.wire_names(fleet_id, index), next(subnets)) for index in range(MANY)]
    try:
        for wire in wires:
            netns.make(wire)
            netns.shape(wire, limits(10))
        gaps, over = list[float](), asyncio.Event()

        async def beat() -> None:
            while not over.is_set():
                before = time.monotonic()
                await asyncio.sleep(OFTEN_S)
                gaps.append(time.monotonic() - before - OFTEN_S)

        beating = asyncio.create_task(beat())
        cpu_s, wall_s = time.process_time(), list[float]()
        for change in range(CHANGES):
            begin = time.monotonic()
            await asyncio.gather(*(asyncio.to_thread(netns.set_rates, wire, limits(5 + change)) for wire in wires))
            wall_s.append(time.monotonic() - begin)
            await asyncio.sleep(max(0.0, 1.0 - wall_s[-1]))
        cpu_s = time.process_time() - cpu_s
        over.set()
        await beating
        figure(f"{MANY} devices × 2 rates: seconds until all are read back", statistics.median(wall_s), most=0.5)
        figure(f"{MANY} devices: CPU seconds of this process per second", cpu_s / CHANGES, most=0.3)
        figure("the event loop's longest delay, s", max(gaps), most=0.1)
    finally:
        for wire in wires:
            netns.remove(wire.netns)


def main() -> None:
    if os.geteuid() or shutil.which("tc", path="/usr/sbin:/sbin:/usr/bin") is None:
        skip("needs root and tc")
        return
    walk, subnets = trace(), free_subnets(LOCAL_POOL, 30, host_networks())
    wires = [netns.Wire(*netns.wire_names(f"tp{os.getpid()}", index), next(subnets)) for index in range(2)]
    plays = [rates_of(Playback(walk, 0.0, offset_s), SECONDS) for offset_s in (0.0, 23.0)]
    try:
        for wire in wires:
            netns.make(wire)
        late = replay(wires, plays)
    finally:
        for wire in wires:
            netns.remove(wire.netns)
    figure("seconds from when a change is due to its read-back, worst", max(late), most=0.1)
    asyncio.run(many())
