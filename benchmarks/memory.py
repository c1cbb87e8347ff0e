"""Peak memory of agent and orchestrator while 2 GB stream, over idle."""

from __future__ import annotations

import asyncio

from benchmarks._figures import figure, progress
from benchmarks._near import both_ends
from benchmarks._peer import memory_mb, reset_peak

BATCHES = 77  # of 26.2 MB: 2.02 GB


async def measure() -> None:
    async with both_ends() as (near, far):
        far_idle = (await far.do("reset"))["rss"]
        reset_peak()
        idle = memory_mb("VmRSS")
        await far.do("upload", count=BATCHES, parallel=2)
        far_peak, peak = (await far.do("state"))["peak"], memory_mb("VmHWM")
        assert near.received == BATCHES
    figure("agent, peak over idle, MB", far_peak - far_idle, most=256, note=f"idle {far_idle:.0f} (torch loaded)")
    figure("orchestrator, peak over idle, MB", peak - idle, most=256, note=f"idle {idle:.0f} (torch loaded)")


def main() -> None:
    over = progress("2 GB through the broker")
    asyncio.run(measure())
    over()
