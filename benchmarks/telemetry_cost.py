"""CPU time that an agent spends on telling of itself: at most 1 % of its device's quota.

Per batch: its phases (clock, CPU time, throttling counters) and their part of a heartbeat; per task: the memory read.
Set against the smallest batch in the project: 32 digits of 8 × 8 on the device half of the small network's first cut.
A run of that (480 digits a device, local backend, DTFL) recorded 1,102 phases of work for 360 batches in 24 tasks. An
idle agent sends a heartbeat every 5 s; the smallest quota in the papers is 0.1 CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks._figures import figure
from edge_agent.telemetry import CpuUsage, Throttling, resident_mib
from edgebed.device.phases import PhaseLog
from edgebed.models.staged import MODELS
from edgebed.wire.messages import Status, encode
from edgebed.wire.settings import LearningTask

PHASES, BATCHES, QUOTA, HEARTBEAT_S = 1102 / 360, 360 / 24, 0.1, 5.0


def cpu_us(work: Callable[[], object], times: int) -> float:
    """Microseconds of CPU for one call."""
    work()
    start = time.process_time_ns()
    for _ in range(times):
        work()
    return (time.process_time_ns() - start) / times / 1e3


def batch_us() -> float:
    """CPU microseconds of one step of the smallest device half."""
    model = MODELS.create({"name": "resnet-tiny"}, "model").build(LearningTask((1, 8, 8), 10))
    half = model.stages(0, model.cuts_with_head[0])
    x = torch.randn(32, 1, 8, 8)

    def step() -> None:
        half.zero_grad()
        half(x).square().mean().backward()

    return cpu_us(step, 60)


def main() -> None:
    torch.set_num_threads(1)
    throttling = Throttling()
    log = PhaseLog(time.monotonic_ns, CpuUsage(time.process_time_ns, throttling.recent))
    names = iter(["compute", "encode"] * 1_000_000)
    change = cpu_us(lambda: log.enter(next(names), "run/1/dev"), 20_000)
    log.seen(10**9)
    for _ in range(100):
        log.enter(next(names), "run/1/dev")

    def beat() -> bytes:
        first, phases = log.pending()
        return encode(Status("dev-1", "dev-1#1", 1, "run/1/dev", "compute", 7, 1.0, time.monotonic_ns(), phases, first))

    heartbeat = cpu_us(beat, 2_000)
    empty = cpu_us(lambda: encode(Status("dev", "dev#1", 1, "", "waiting", 7, 1.0, time.monotonic_ns())), 5_000)
    memory, batch = cpu_us(resident_mib, 5_000), batch_us()
    figure("one change of phase, µs", change, note="counters visible" if throttling.visible else "no counters here")
    figure("a heartbeat with 100 phases, µs", heartbeat)
    figure("memory, once per task, µs", memory)
    figure("one batch of the smallest device half, µs", batch)
    told = PHASES * (change + heartbeat / 100) + memory / BATCHES
    figure("telling ÷ a batch", told / batch, most=0.01)
    figure(f"idle: heartbeats ÷ a quota of {QUOTA} CPU", empty / 1e6 / HEARTBEAT_S / QUOTA, most=0.01)
