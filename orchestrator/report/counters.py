"""Curves of the trace: CPU of a device as a share of its quota, Mbit/s of its links, uploads that wait for the server.

Rates are in the fleet file's measure (multiplied by the dilation, as times are divided by it). A transfer counts as
even from its first to its last byte: the records do not tell more. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import msgspec

from orchestrator.records.run_index import DeviceFacts, RoundFacts, Session
from orchestrator.records.timeline.clock_alignment import place
from orchestrator.report.events import Counter

STEP = 0.02
"""Changes of the CPU's share below this are not drawn."""

Transfer = tuple[int, int, int]
"""First ns, last ns, bytes."""


class Scale(msgspec.Struct, frozen=True):
    """Converts times of a session to those of the trace: microseconds from its start, divided by its dilation."""

    start_ns: int
    start_us: int
    dilation: float

    def us(self, at_ns: int) -> int:
        return self.start_us + round((at_ns - self.start_ns) / 1e3 / self.dilation)


def cpu_counters(session: Session, rounds: list[RoundFacts], pids: dict[str, int], scale: Scale) -> Iterator[Counter]:
    """CPU time ÷ (length × quota) of every phase in `rounds`; ÷ length where no quota was ever set."""
    spans = sorted((facts.start_ns, facts.end_ns) for facts in rounds)
    quotas: dict[str, list[tuple[int, float]]] = {}
    for row in session.limits:
        quotas.setdefault(row.device, []).append((row.at_ns, row.cpus))
    for name, device in session.devices.items():
        yield from _cpu(device, spans, quotas.get(name, []), pids[name], scale)


def _cpu(
    device: DeviceFacts, spans: list[tuple[int, int]], quotas: list[tuple[int, float]], pid: int, scale: Scale
) -> Iterator[Counter]:
    label = "CPU, share of quota" if quotas else "CPUs"
    shown = -1.0
    for piece in place(device).pieces:
        if not piece.length_ns or not _within(spans, piece.start_ns):
            continue
        index = bisect_right(quotas, (piece.start_ns, float("inf"))) - 1
        quota = quotas[max(0, index)][1] if quotas else 1.0
        share = piece.cpu_ns / piece.length_ns / quota
        if abs(share - shown) >= STEP:
            shown = share
            yield Counter(label, scale.us(piece.start_ns), pid, {"value": round(share, 3)})


def _within(spans: list[tuple[int, int]], at: int) -> bool:
    index = bisect_right(spans, (at, 1 << 62)) - 1
    return index >= 0 and at < spans[index][1]


def link_counters(facts: RoundFacts, pids: dict[str, int], scale: Scale) -> Iterator[Counter]:
    """Mbit/s up and down of every device in one round."""
    up: dict[str, list[Transfer]] = {}
    down: dict[str, list[Transfer]] = {}
    for device, uploads in facts.uploads.items():
        up.setdefault(device, []).extend((u.first_ns, u.at_ns, u.bytes) for u in uploads)
    for device, update in facts.updates.items():
        up.setdefault(device, []).append((update.first_ns, update.at_ns, update.bytes))
    for device, task in facts.delivered.items():
        if device in facts.sent:
            down.setdefault(device, []).append((facts.sent[device].at_ns, task.at_ns, task.bytes))
    for device, replies in facts.replies.items():
        down.setdefault(device, []).extend((r.first_ns, r.at_ns, r.bytes) for r in replies)
    for label, transfers in (("uplink, Mbit/s", up), ("downlink, Mbit/s", down)):
        for device, of_device in transfers.items():
            changes = [change for transfer in of_device for change in _rate(*transfer, scale.dilation)]
            yield from _steps(label, changes, pids[device], scale)


def _rate(first_ns: int, last_ns: int, size: int, dilation: float) -> Iterable[tuple[int, float]]:
    """A transfer of one chunk has no length: it is drawn as if it had taken a millisecond."""
    length = max(last_ns - first_ns, 1_000_000)
    rate = size * 8e3 * dilation / length
    return (last_ns - length, rate), (last_ns, -rate)


def queue_counter(facts: RoundFacts, pid: int, scale: Scale) -> Iterator[Counter]:
    """Uploads that have arrived and whose server step has not begun."""
    started = {(device, step.batch): step.start_ns for step in facts.steps for device in step.devices}
    changes = [
        change
        for device, uploads in facts.uploads.items()
        for upload in uploads
        if (device, upload.batch) in started
        for change in ((upload.at_ns, 1.0), (started[device, upload.batch], -1.0))
    ]
    label = f"uploads waiting, lane {facts.lane}" if facts.lane else "uploads waiting"
    return _steps(label, changes, pid, scale)


def _steps(label: str, changes: Iterable[tuple[int, float]], pid: int, scale: Scale) -> Iterator[Counter]:
    """A curve from its changes; one value per microsecond."""
    sums: dict[int, float] = {}
    for at, change in changes:
        us = scale.us(at)
        sums[us] = sums.get(us, 0.0) + change
    value = 0.0
    for us in sorted(sums):
        if sums[us]:
            value += sums[us]
            yield Counter(label, us, pid, {"value": round(abs(value), 3)})
