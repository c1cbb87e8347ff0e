"""A shaped link for benchmarks: a network namespace, a veth pair, tbf on both ends (root, ip, tc)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks._figures import progress, skip


class Shaped(NamedTuple):
    prefix: list[str]  # command that runs the rest of the line on the far side
    host: str  # our address as the far side sees it


def missing() -> str:
    """Why no shaped link can be made; "" if it can."""
    if os.geteuid() != 0:
        return "shaped links need root"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"shaped links need {', '.join(tools)} (apt install iproute2)" if tools else ""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def shaped_link(mbit: int) -> Iterator[Shaped]:
    """A link of `mbit` Mbit/s each way; 256 KB queue, the burst of 0.25 ms."""
    tag = f"{os.getpid() % 10000}"
    space, near, far, net = f"eb-bench-{tag}", f"ebn{tag}", f"ebf{tag}", f"10.213.{os.getpid() % 250}"
    burst = 1540 + int(mbit * 1e6 * 0.25e-3 / 8)
    tbf = ["root", "tbf", "rate", f"{mbit}mbit", "burst", f"{burst}b", "limit", "256kb"]
    inside = ["ip", "netns", "exec", space]
    try:
        run("ip", "netns", "add", space)
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        run("ip", "addr", "add", f"{net}.1/24", "dev", near)
        run("ip", "link", "set", near, "up")
        run(*inside, "ip", "addr", "add", f"{net}.2/24", "dev", far)
        run(*inside, "ip", "link", "set", far, "up")
        run("tc", "qdisc", "add", "dev", near, *tbf)
        run(*inside, "tc", "qdisc", "add", "dev", far, *tbf)
        yield Shaped(inside, f"{net}.1")
    finally:
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)


def over_rates(rates: Iterable[int], measure: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Measure at each of these Mbit/s, or say why no link can be shaped."""
    if why := missing():
        skip(why)
        return
    for mbit in rates:
        over = progress(f"{mbit} Mbit/s")
        asyncio.run(measure(mbit))
        over()
