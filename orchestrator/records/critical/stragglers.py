"""Who was slowest in a round, by how much, and why. Summary, report, live page and terminal take it from here. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from orchestrator.records.critical.critical_path import NEAR, RoundPath, reason
from orchestrator.records.timeline.timeline import RoundTimeline
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import NONE, percent, seconds

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


class Costs(msgspec.Struct):
    """What one device's time in a round was spent on; nanoseconds."""

    # `cpu`, `uplink`, `downlink`, `server`: time that belongs to one cause
    cpu: int = 0
    uplink: int = 0
    downlink: int = 0
    server: int = 0
    held: int = 0  # part of `uplink` in which the server half was behind and held the link back
    reply_wait: int = 0  # time in which the device waited for replies
    # `replies_up`, `replies_down`: how long its uploads and the replies to them took on the link, all together
    replies_up: int = 0
    replies_down: int = 0

    def by_cause(self) -> tuple[int, int, int, int]:
        """In the order of CAUSES. A wait for a reply is its upload, then the server's step (and its queue), then its
        download."""
        held = min(self.uplink, self.held)
        up = min(self.reply_wait, self.replies_up)
        down = min(self.reply_wait - up, self.replies_down)
        server = self.server + held + self.reply_wait - up - down
        return self.cpu, self.uplink - held + up, self.downlink + down, server


class Straggler(msgspec.Struct, frozen=True):
    """The slowest device of a round. Seconds are not divided by the dilation."""

    device: str  # "" where the gap is below 5 % of the round: then nobody is a straggler
    gap_s: float  # behind the median device
    # what the critical path spent most on, one of CAUSES; "" where that was another device's. Without a path: the cause
    # in which it is furthest behind the median device; "" where none stands out (`standing_out`)
    why: str
    behind_s: dict[str, float]  # by cause, against the median device; empty where its costs are not known


def straggler(timeline: RoundTimeline, path: RoundPath | None = None) -> Straggler | None:
    """None for a round in which fewer than two devices got done, or that is serving: nobody is behind. `path`: of the
    round; it gives the reason."""
    facts = timeline.facts
    if len(facts.done) < 2 or "serving" in facts.started.notes:
        return None
    seconds = {device: done.seconds for device, done in facts.done.items()}
    return straggler_of(seconds, {device: costs(timeline, device) for device in seconds}, path)


def straggler_of(seconds: Mapping[str, float], spent: Mapping[str, Costs], path: RoundPath | None = None) -> Straggler:
    """The slowest of at least two devices, and why.

    Args:
        seconds: of all devices that got done, not divided.
        spent: their costs, as far as these are known.
        path: of the round; without one, the reason is the cause in which the device is furthest behind.
    """
    slowest = max(seconds, key=lambda device: seconds[device])
    gap = seconds[slowest] - median(seconds.values())
    if gap < NEAR * seconds[slowest]:
        return Straggler("", gap, "", {})
    if slowest not in spent:
        return Straggler(slowest, gap, "", {})
    causes = {device: of_device.by_cause() for device, of_device in spent.items()}
    middle = [median(column) for column in zip(*causes.values(), strict=True)]
    behind = {cause: (own - of) / 1e9 for cause, own, of in zip(CAUSES, causes[slowest], middle, strict=True)}
    why = reason(path, slowest) if path is not None else standing_out(behind, gap)
    return Straggler(slowest, gap, why, behind)


LEAST = 0.1
"""[ours] A cause that explains less than this share of the gap is not called its reason."""


def standing_out(behind_s: Mapping[str, float], gap_s: float) -> str:
    """The cause in which a straggler is furthest behind; "" where it explains less than LEAST of the gap."""
    why = max(behind_s, key=lambda cause: behind_s[cause])
    return why if behind_s[why] > 0 and behind_s[why] >= LEAST * gap_s else ""


def whole_run(rounds: Sequence[tuple[str | None, str | None, str | None, float]], profiles: Mapping[str, str]) -> str:
    """Who was the straggler of a run most often, why, and what the others waited for it, in a sentence; "" where there
    was no straggler.

    Args:
        rounds: of each its straggler, the reason, for whom it waited last, and the device-seconds that others waited.
        profiles: by device.
    """
    counts = Counter(straggler for straggler, *_ in rounds if straggler)
    if not counts:
        return ""
    (name, count), *_ = counts.most_common()
    waited = sum((waited_s for _, _, waited_for, waited_s in rounds if waited_for == name), 0.0)
    (why, _), *_ = Counter(why for straggler, why, *_ in rounds if straggler == name).most_common()
    mostly = f"mostly because of {vocabulary.cause(why)}" if why else "and no single cause stands out"
    share = f"{count} ({percent(count / len(rounds), 0)})"
    return (
        f"{name} ({profiles.get(name, NONE)}) was the straggler in {share} of {len(rounds)} rounds, {mostly}; "
        f"the others together waited {seconds(waited)} for it."
    )


def waits(timeline: RoundTimeline) -> tuple[str | None, int]:
    """For whom the round waited last, and the nanoseconds that all devices together spent waiting for others."""
    waited = sum(device.sums.get("wait_for_others", 0) for device in timeline.devices.values())
    names = (s.detail for device in timeline.devices.values() for s in device.segments if s.name == "wait_for_others")
    return next(names, None) if waited else None, waited


def costs(timeline: RoundTimeline, device: str) -> Costs:
    """What a device's round was spent on, from its timeline."""
    found, facts = Costs(), timeline.facts
    totals = timeline.devices[device].sums if device in timeline.devices else {}
    for name, length in totals.items():
        if name in _OF_PHASE:
            setattr(found, _OF_PHASE[name], getattr(found, _OF_PHASE[name]) + length)
    done = facts.done.get(device)
    found.held = round(done.held_s * 1e9) if done is not None else 0
    found.reply_wait = totals.get("reply_wait", 0)
    if found.reply_wait:
        found.replies_up = sum(u.at_ns - u.first_ns for u in facts.uploads.get(device, ()))
        found.replies_down = sum(r.at_ns - r.first_ns for r in facts.replies.get(device, ()))
    return found
