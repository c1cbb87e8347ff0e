"""Control round trip while a 26 MB batch is in flight, in multiples of the idle one, on a shaped link."""

from __future__ import annotations

import asyncio

from benchmarks._figures import figure, percentile
from benchmarks._link import over_rates, shaped_link
from benchmarks._near import both_ends

BATCHES = {10: 1, 100: 6}  # by Mbit/s; some 12 to 21 seconds each
IDLE = 200


async def measure(mbit: int) -> None:
    with shaped_link(mbit) as link:
        async with both_ends(link.host, link.prefix) as (near, far):
            idle = await near.trips(count=IDLE)
            upload = asyncio.ensure_future(far.do("upload", count=BATCHES[mbit], parallel=1))
            busy = await near.trips(until=upload)
            await upload
    calm, loaded = percentile(idle, 0.99), percentile(busy, 0.99)
    note = (
        f"p99 {loaded:.1f} ms of {calm:.1f} idle; median {percentile(busy, 0.5):.1f} of {percentile(idle, 0.5):.1f}; "
        f"{len(busy)} trips"
    )
    figure(f"control p99 with a batch in flight at {mbit} Mbit/s ÷ idle", loaded / calm, note=note)


def main() -> None:
    over_rates(BATCHES, measure)
