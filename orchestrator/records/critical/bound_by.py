"""`bound_by` of a round and of a run: seconds and shares by bound, for summary.json, pages and terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records.critical.critical_path import LEAST, WAITS, RoundPath, waits_of, with_lost_cpu
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.critical.whatif import GROUPS, Saving
from orchestrator.records.timeline.timeline import RoundTimeline
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import percent, seconds


class Part(msgspec.Struct, frozen=True):
    """One bound: `what` and `whose` as `event_graph.Bound`, seconds divided by the dilation, share of all."""

    what: str
    whose: str
    seconds: float
    share: float


class RoundBounds(msgspec.Struct, frozen=True):
    """What bounded one round.

    Attributes:
        parts: the largest first; their seconds add up to the round.
        near: what bounded paths that would have ended at most 5 % of the round earlier.
        rule: "" (all devices were done), `enough`, `deadline`, `quorum` or `budget`.
        savings: what each bound would have saved if it alone were twice as fast, the largest first.
        waits: what devices waited for: shares of the round by cause (`critical_path.WAITS`), the mean over the devices.
    """

    parts: tuple[Part, ...]
    near: tuple[Bound, ...] = ()
    rule: str = ""
    savings: tuple[Saving, ...] = ()
    waits: dict[str, float] = {}


def bounds_of_round(
    timeline: RoundTimeline,
    path: RoundPath,
    lost_s: Mapping[str, float | None],
    waited_ns: Mapping[str, Mapping[str, int]],
    savings: tuple[Saving, ...] = (),
) -> RoundBounds:
    """What bounded a finished round that has a path.

    Args:
        lost_s: by how much each device was later because it did not get its CPU.
        waited_ns: `waits_of_round`.
        savings: `whatif.savings_of_round`.
    """
    worked = {name: sum(device.sums.get(phase, 0) for phase in OWN_WORK) for name, device in timeline.devices.items()}
    bounds = with_lost_cpu(path.bounds, worked, lost_s)
    facts = timeline.facts
    assert facts.finished is not None
    whole_s = facts.finished.seconds / facts.dilation
    waited = {name: waited_s(ns, facts.dilation) for name, ns in waited_ns.items()}
    parts = parts_of({bound: ns / (1e9 * facts.dilation) for bound, ns in bounds.items()})
    shares = mean_shares(waited, dict.fromkeys(waited, whole_s))
    return RoundBounds(parts, tuple(path.near), path.rule, savings, shares)


def parts_of(seconds: Mapping[Bound, float]) -> tuple[Part, ...]:
    """The largest first."""
    whole = sum(seconds.values())
    rows = sorted(((length, bound) for bound, length in seconds.items() if length > 0), key=lambda row: -row[0])
    return tuple(Part(bound.what, bound.whose, length, length / whole) for length, bound in rows)


def together(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of several rounds or runs as those of one."""
    sums: dict[Bound, float] = {}
    for part in parts:
        bound = Bound(part.what, part.whose)
        sums[bound] = sums.get(bound, 0.0) + part.seconds
    return parts_of(sums)


def waits_of_round(timeline: RoundTimeline, path: RoundPath | None) -> dict[str, dict[str, int]]:
    """Nanoseconds that each device waited in a finished round, by cause (`critical_path.WAITS`). A device that does not
    take part in it waits for nothing, and has no entry."""
    facts = timeline.facts
    assert facts.finished is not None
    end_ns, drawn = facts.finished.at_ns, [name for name in timeline.devices if name in facts.started.devices]
    return {name: waits_of(timeline, name, path, end_ns) for name in drawn}


def waited_s(ns: Mapping[str, int], dilation: float) -> dict[str, float]:
    return {cause: length / 1e9 / dilation for cause, length in ns.items()}


def mean_shares(waited: Mapping[str, Mapping[str, float]], whole_s: Mapping[str, float]) -> dict[str, float]:
    """What devices waited for: shares of the rounds by cause, the mean over the devices.

    Args:
        waited: seconds by device and cause.
        whole_s: seconds of the rounds in which the device took part.
    """
    shares: dict[str, float] = {}
    for name, causes in waited.items():
        for cause, length in causes.items() if whole_s[name] else ():
            shares[cause] = shares.get(cause, 0.0) + length / whole_s[name] / len(waited)
    return {cause: shares[cause] for cause in WAITS if cause in shares}


MOST = 4
"""Bounds that a sentence names."""


def sentence(parts: Sequence[Part]) -> str:
    """In words: "server 61%, cpu0.1's CPU 30%, others 9%"; "" of nothing."""
    named = [part for part in parts[:MOST] if part.share >= LEAST]
    rest = sum(part.share for part in parts) - sum(part.share for part in named)
    texts = [f"{vocabulary.bound(part.what, part.whose)} {percent(part.share, 0)}" for part in named]
    return ", ".join([*texts, *([f"others {percent(rest, 0)}"] if rest >= LEAST else [])])


def savings_text(savings: Iterable[Saving]) -> str:
    """In words: "server −0.41 s, cpu0.1's CPU −0.2 s" if each alone were twice as fast; "" where nothing is saved."""
    one = [row for row in savings if row.whose not in GROUPS and row.saved_s > 0][:3]
    return ", ".join(f"{vocabulary.bound(row.what, row.whose)} −{seconds(row.saved_s)}" for row in one)


def waits_text(shares: Mapping[str, float]) -> str:
    """In words: "the server 40%, other devices 12%"; "" where nobody waited."""
    named = {cause: share for cause, share in shares.items() if share >= LEAST}
    return ", ".join(f"{vocabulary.WAITED_FOR[cause]} {percent(share, 0)}" for cause, share in named.items())


def near_text(near: Iterable[Bound]) -> str:
    """In words: "nearly also by d's CPU"; "" without a near-tie."""
    named = [vocabulary.bound(bound.what, bound.whose) for bound in near][:MOST]
    return f"nearly also by {', '.join(named)}" if named else ""


def in_words(bounds: RoundBounds) -> str:
    """One sentence on a round: its bounds, its near-ties, and the rule that released it."""
    texts = [f"bound by: {sentence(bounds.parts)}", near_text(bounds.near)]
    return "; ".join([text for text in texts if text] + ([vocabulary.RULES[bounds.rule]] if bounds.rule else []))


def more_words(bounds: RoundBounds) -> str:
    """More sentences on a round: its what-ifs, and what devices waited for; "" where there is nothing to tell."""
    saved, waited = savings_text(bounds.savings), waits_text(bounds.waits)
    sentences = (f"Twice as fast: {saved}." if saved else "", f"Devices waited for {waited} of it." if waited else "")
    return " ".join(sentence for sentence in sentences if sentence)
