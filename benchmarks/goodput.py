"""Goodput of a 26 MB feature batch, agent -> MQTT -> orchestrator, against raw TCP on the same shaped link."""

from __future__ import annotations

from benchmarks._figures import figure
from benchmarks._link import over_rates, shaped_link
from benchmarks._near import both_ends, raw_sink

RATES = (10, 30, 100)
RUNS = {10: 1, 30: 1, 100: 3}


async def measure(mbit: int) -> None:
    with shaped_link(mbit) as link:
        async with both_ends(link.host, link.prefix) as (_, far):
            raw = mqtt = cpu = 0.0
            for _ in range(RUNS[mbit]):  # turn by turn, so that a busy host disturbs both alike
                sent = await far.do("upload", count=1, parallel=1)
                with raw_sink(link.host, int(sent["bytes"])) as port:
                    raw += (await far.do("raw", host=link.host, port=port, size=int(sent["bytes"])))["seconds"]
                mqtt += sent["seconds"]
                cpu += sent["cpu_s"]
            size = sent["bytes"] * RUNS[mbit]
    note = f"{size * 8e-6 / mqtt:.2f} of {size * 8e-6 / raw:.2f} Mbit/s; {cpu / size * 1e9:.1f} ms CPU per MB"
    figure(f"26 MB batch over raw TCP at {mbit} Mbit/s", raw / mqtt, least=0.97, note=note)


def main() -> None:
    over_rates(RATES, measure)
