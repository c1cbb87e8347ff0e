"""Who was slowest in a round, by how much, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec

from orchestrator.records.run_index import RoundFacts
from orchestrator.records.timeline import RoundTimeline

CAUSES = ("cpu", "uplink", "downlink", "server")

_OF_PHASE = {
    "decode": "cpu",
    "compute": "cpu",  # with the time in which the quota stopped it
    "encode": "cpu",
    "blocked": "uplink",
    "upload_tail": "uplink",
    "dispatch": "downlink",
    "download": "downlink",
    "server_wait": "server",
}


class Straggler(msgspec.Struct, frozen=True):
    """The slowest device of a round. `gap_s`: behind the median device; `why`: the cause in which it is furthest behind
    the median device (one of CAUSES; "" where no single one stands out, see `standing_out`). Seconds are not divided by
    the dilation."""

    device: str
    gap_s: float
    why: str
    behind_s: dict[str, float]  # by cause, against the median device


def straggler(timeline: RoundTimeline) -> Straggler | None:
    """None for a round in which fewer than two devices got done, or that is serving: there is nobody to be behind."""
    facts = timeline.facts
    if len(facts.done) < 2 or "serving" in facts.started.notes:
        return None
    seconds = {device: done.seconds for device, done in facts.done.items()}
    slowest = max(seconds, key=lambda device: seconds[device])
    costs = {device: causes(timeline, device) for device in seconds}
    behind = {cause: (costs[slowest][cause] - median(c[cause] for c in costs.values())) / 1e9 for cause in CAUSES}
    gap = seconds[slowest] - median(seconds.values())
    return Straggler(slowest, gap, standing_out(behind, gap), behind)


LEAST = 0.1
"""[ours] A cause that explains less than this share of the gap is not called its reason."""


def standing_out(behind_s: Mapping[str, float], gap_s: float) -> str:
    """The cause in which a straggler is furthest behind; "" where that is none, or next to nothing of the gap."""
    why = max(behind_s, key=lambda cause: behind_s[cause])
    return why if behind_s[why] > 0 and behind_s[why] >= LEAST * gap_s else ""


def waits(timeline: RoundTimeline) -> tuple[str | None, int]:
    """For whom the round waited last, and the nanoseconds that all devices together spent waiting for others."""
    waited = sum(device.sums.get("wait_for_others", 0) for device in timeline.devices.values())
    names = (s.detail for device in timeline.devices.values() for s in device.segments if s.name == "wait_for_others")
    return next(names, None) if waited else None, waited


def causes(timeline: RoundTimeline, device: str) -> dict[str, int]:
    """Nanoseconds of a device's round by what they were spent on."""
    sums = dict.fromkeys(CAUSES, 0)
    totals = timeline.devices[device].sums if device in timeline.devices else {}
    for name, length in totals.items():
        if name in _OF_PHASE:
            sums[_OF_PHASE[name]] += length
    _release(sums, timeline.facts, device)
    waited = totals.get("reply_wait", 0)
    if waited:
        _split_wait(sums, waited, timeline.facts, device)
    return sums


def _release(sums: dict[str, int], facts: RoundFacts, device: str) -> None:
    """What looks like a slow uplink is the server's where the server half was behind and held the link back."""
    done = facts.done.get(device)
    held = min(sums["uplink"], round(done.held_s * 1e9)) if done is not None else 0
    sums["uplink"] -= held
    sums["server"] += held


def _split_wait(sums: dict[str, int], waited: int, facts: RoundFacts, device: str) -> None:
    """Waiting for a reply is its upload, then the server's step (and its queue), then its download."""
    up = min(waited, sum(u.at_ns - u.first_ns for u in facts.uploads.get(device, ())))
    down = min(waited - up, sum(r.at_ns - r.first_ns for r in facts.replies.get(device, ())))
    sums["uplink"] += up
    sums["downlink"] += down
    sums["server"] += waited - up - down
