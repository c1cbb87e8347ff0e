"""How fast the host is, while a run goes on: the reference loop in a process and a quota of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from statistics import median

from edgebed.errors import LimitError
from edgebed.limits.cgroups import Cgroup
from edgebed.module_process import module_command
from edgebed.timeouts import end_in_time
from orchestrator.fleet.spec.profile import Limits

QUOTA = Limits(cpus=0.05, uplink_bit_s=0, downlink_bit_s=0, memory_mib=256)
"""One piece of work fits into one period, so it is never stopped, as long as the host gives it the CPU."""

KEPT = 4096
END_S = 5.0


class HostSpeed:
    """What the reference loop has measured: CPU time of one piece of work, over time."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, float]] = deque(maxlen=KEPT)  # (monotonic ns at its end, ms of CPU time)

    def add(self, line: bytes) -> None:
        """A line of the loop's output. One that is cut off, as the last one of a loop that was killed, is left out."""
        if line.endswith(b"\n"):
            at_ns, cpu_ns = line.split()
            self._pieces.append((int(at_ns), int(cpu_ns) / 1e6))

    def between(self, start_ns: int, end_ns: int) -> tuple[float | None, int]:
        """Median milliseconds of CPU time of the pieces that ended in this time, and their number."""
        found = [ms for at_ns, ms in self._pieces if start_ns <= at_ns <= end_ns]
        return (median(found) if found else None), len(found)


@contextlib.asynccontextmanager
async def watch_speed(name: str) -> AsyncIterator[HostSpeed]:
    """Context manager: the loop runs. As root it has a cgroup `name`, beside those of the devices."""
    cgroup = await asyncio.to_thread(_make, name)
    process = await asyncio.create_subprocess_exec(
        *module_command("orchestrator.fleet.host.reference_loop", *(cgroup.procs_files() if cgroup else ())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us
    )
    speed = HostSpeed()
    reader = asyncio.create_task(_read(process, speed))
    try:
        yield speed
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await end_in_time(process, END_S)
        reader.cancel()
        if cgroup is not None:
            cgroup.remove()


async def _read(process: asyncio.subprocess.Process, speed: HostSpeed) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        speed.add(line)


def _make(name: str) -> Cgroup | None:
    """None where this process may not make cgroups; the loop then has no quota."""
    try:
        cgroup = Cgroup.named(name)
        cgroup.make()
        cgroup.set(QUOTA)
    except LimitError:
        return None
    return cgroup
