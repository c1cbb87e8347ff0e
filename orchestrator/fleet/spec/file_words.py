"""What messages about fleet and profile files say of a key's value."""

from __future__ import annotations

from edgebed.limits.spec import LEAST_MBIT_S, MOST_LATENCY_MS, MOST_MBIT_S
from orchestrator.fleet.backends import choices

MOST_DEVICES = 1000
MBIT = f"a number of megabits per second from {LEAST_MBIT_S:g} to {MOST_MBIT_S:.0f}, such as 10"

WORDS = {
    "cpus": "a number of CPUs above 0 and at most 1024, such as 0.5",
    "uplink_mbit_s": MBIT,
    "downlink_mbit_s": MBIT,
    "memory_mib": "a whole number of MiB of at least 64, such as 2048",
    "latency_ms": f"a number of milliseconds one way from 0 to {MOST_LATENCY_MS:.0f}, such as 20",
    "profile": "the name of a device profile, such as cpu1, or the path of its file",
    "board": "the name of a board that has joined (edgebed boards ls)",
    "accelerator": "cpu, cuda or auto (cuda where the board's torch can use it)",
    "limit": "true or false: whether the board limits itself to its `profile`",
    "name": "a name of letters, digits, '_', '.' and '-'",
    "count": f"a whole number from 1 to {MOST_DEVICES}",
    "backend": f"{choices()} (software is local with the software throttle)",
    "node": "a node's host name, address or id (docker node ls)",
    "cores": "a number of CPUs above 0 and at most 1024, such as 3.5",
}
"""What the value of a key must be, with its unit."""
