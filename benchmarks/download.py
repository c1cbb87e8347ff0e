"""Downloads to a device on a shaped link: time beside the link's own, and the device's CPU, paced and not.

A device reads a slow link in larger bites (`edgebed.link.mqtt`): that must save CPU and cost no time.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from benchmarks._figures import figure
from benchmarks._link import over_rates, shaped_link
from benchmarks._near import Near, both_ends
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Reply
from edgebed.wire.settings import Codec

RATES = (10, 30, 100)
SIZES = {8_000: 40, 190_000: 20, 2_000_000: 4}
"""Bytes and how often: the gradient of a batch of digits, a small network, a large one."""

FIXED_S = 0.008
"""Of a transfer beside its bytes' own time: a broker and two programs on the way."""


async def measure(mbit: int) -> None:
    with shaped_link(mbit) as link:
        cpu_ms: dict[bool, float] = {}
        for paced in (False, True):
            async with both_ends(link.host, link.prefix, paced=paced) as (near, far):
                for size, count in SIZES.items():
                    body = encode_tensors({"x": torch.rand(size // 4)}, Codec())
                    before = (await far.do("memory"))["cpu_s"]
                    took = [await _one(near, body, n) for n in range(count)]
                    cpu_ms[paced] = ((await far.do("memory"))["cpu_s"] - before) / count / len(body) * 1e9
                    least = len(body) * 8 * 1.046 / mbit / 1e6 + FIXED_S
                    if paced:
                        name = f"{size / 1e3:.0f} KB download at {mbit} Mbit/s / (link's own time + 8 ms)"
                        figure(name, median(took) / least, most=1.1, note=f"{median(took) * 1e3:.1f} ms")
        figure(f"CPU of a 2 MB download at {mbit} Mbit/s, paced / not", cpu_ms[True] / cpu_ms[False], most=1.0,
               note=f"{cpu_ms[True]:.1f} ms per MB")  # fmt: skip


async def _one(near: Near, body: bytes | bytearray, n: int) -> float:
    begin = time.perf_counter()
    await near.endpoint.send("dev", Reply("bench", n), body)
    return time.perf_counter() - begin


def main() -> None:
    over_rates(RATES, measure)
