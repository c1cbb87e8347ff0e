"""Facts of the machine, most of which do not change while it runs: model, cores, memory, power mode, torch, clock."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from edge_agent.sensors.source import RunCommand, text_of, whole


def model(root: Path) -> str | None:
    """The model name: from the device tree, or on a PC from the firmware (DMI)."""
    tree = text_of(root / "proc/device-tree/model")
    if tree is not None:
        return tree
    dmi = root / "sys/class/dmi/id"
    words = [word for word in (text_of(dmi / "sys_vendor"), text_of(dmi / "product_name")) if word]
    return " ".join(words) or None


def cores(root: Path) -> int | None:
    """Cores that are online, from a list such as `0-3,6`."""
    text = text_of(root / "sys/devices/system/cpu/online")
    return None if text is None else count_of(text)


def count_of(ranges: str) -> int | None:
    count = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        start, end = whole(first), whole(last or first)
        if start is None or end is None or end < start:
            return None
        count += end - start + 1
    return count


def memory_mib(root: Path) -> int | None:
    """MemTotal: what the kernel has, which is less than what is soldered on."""
    for line in (text_of(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        kib = whole(rest.split()[0]) if name == "MemTotal" and rest.split() else None
        if kib is not None:
            return kib // 1024
    return None


def power_mode(run: RunCommand) -> str | None:
    """Of a Jetson. `nvpmodel -q` prints `NV Power Mode: NAME`, then the mode's number; without root it may print
    errors beside."""
    for line in (run(("nvpmodel", "-q")) or "").splitlines():
        head, _, name = line.partition(":")
        if head.strip() == "NV Power Mode" and name.strip():
            return name.strip()
    return None


def torch_facts() -> dict[str, str]:
    """The torch that this process has loaded: what it was built for, and the SIMD that it uses here."""
    cuda = torch.version.cuda
    return {
        "torch_build": f"CUDA {cuda}" if cuda else "CPU only",
        "torch_simd": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": str(torch.get_num_threads()),
        "usable_cores": str(len(os.sched_getaffinity(0))),
    }


def clock(run: RunCommand) -> dict[str, str]:
    """How well chrony keeps the clock; empty where it does not run.

    `chronyc -c tracking` prints one line: reference id, its name, stratum, reference time, system time's offset from
    NTP time in seconds (positive: the clock is slow), last offset, RMS offset, frequency, residual frequency, skew,
    root delay and root dispersion in seconds, update interval, leap status. NTP bounds the clock's error by
    |offset| + root dispersion + root delay / 2.
    """
    fields = (run(("chronyc", "-c", "tracking")) or "").strip().split(",")
    try:
        source, leap = fields[1], fields[13]
        offset, delay, dispersion = (float(fields[index]) for index in (4, 10, 11))
    except (IndexError, ValueError):
        return {}
    if leap == "Not synchronised":
        return {"clock": "not synchronised"}
    error = abs(offset) + dispersion + delay / 2
    return {"clock": f"synchronised with {source or fields[0]}", "clock_error_s": f"{error:.6f}"}
