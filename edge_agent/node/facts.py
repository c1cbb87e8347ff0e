"""What a node helper tells of its node, and the proof that the node gives the CPUs that are counted on."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

BUSY = """
import sys, time
share, seconds = float(sys.argv[1]), float(sys.argv[2])
begin, used = time.monotonic(), time.process_time()
while (passed := time.monotonic() - begin) < seconds:
    if time.process_time() - used > share * passed:
        time.sleep(0.001)
print(time.process_time() - used)
"""
"""Wants `share` of a CPU for so many seconds, makes up for what it was denied, and prints the CPU seconds that it
got."""


def facts(proc: Path = Path("/proc")) -> dict[str, Any]:
    """Cores, memory, load of the last minute, and CPU seconds: since the boot, used by all programs of the node, and
    stolen by its hypervisor; used by this process. `machine` is the same for engines that share a machine. `at_s` is
    the time on the steady clock, `utc_s` that on the clock that people set."""
    used_s, stolen_s = cpu_seconds((proc / "stat").read_text(), os.sysconf("SC_CLK_TCK"))
    memory = next(line for line in (proc / "meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return {
        "cores": os.cpu_count() or 1,
        "memory_mib": int(memory.split()[1]) // 1024,
        "load": float((proc / "loadavg").read_text().split()[0]),
        "used_s": used_s,
        "stolen_s": stolen_s,
        "helper_s": time.process_time(),
        "machine": (proc / "sys/kernel/random/boot_id").read_text().strip(),
        "at_s": time.monotonic(),
        "utc_s": time.time(),
    }


def cpu_seconds(stat: str, ticks: int) -> tuple[float, float]:
    """Used and stolen CPU seconds of all CPUs, from /proc/stat: user, nice, system, idle, iowait, irq, softirq,
    steal."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    used = sum(fields[:3]) + sum(fields[5:7])
    return used / ticks, fields[7] / ticks if len(fields) > 7 else 0.0


async def busy(cpus: float, seconds: float) -> dict[str, float]:
    """Have processes that together want so many CPUs; returns the CPU seconds that they got."""
    count = math.ceil(cpus)
    argv = [sys.executable, "-I", "-S", "-c", BUSY, str(cpus / count), str(seconds)]
    processes = [await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE) for _ in range(count)]
    said = await asyncio.gather(*(process.communicate() for process in processes))
    return {"cpu_s": sum(float(out) for out, _ in said)}
