"""`bound_by` of a round and of a run: seconds and shares by bound, for summary.json, pages and terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from edgebed.device.phases import OWN_WORK
from orchestrator.records.critical.critical_path import LEAST, WAITS, RoundPath, waits_of, with_lost_cpu
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.critical.round_graph import lacks
from orchestrator.records.critical.whatif import GROUPS, Saving
from orchestrator.records.timeline.timeline import RoundTimeline
from orchestrator.records.words import vocabulary
from orchestrator.records.words.formatting import percent, seconds

K = TypeVar("K")


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
        rule: "" (all devices were done), `enough`, `deadline` or `quorum`.
        savings: what each bound would have saved if it alone were twice as fast, the largest first.
        waits: what devices waited for: shares of the round by cause (`critical_path.WAITS`), the mean over the devices.
    """

    parts: tuple[Part, ...]
    near: tuple[Bound, ...] = ()
    rule: str = ""
    savings: tuple[Saving, ...] = ()
    waits: dict[str, float] = {}


class BoundBy:
    """Adds up what bounded the rounds of a run.

    Attributes:
        rounds: one entry per finished round, in the order of `add`; None where the records do not tell.
    """

    def __init__(self) -> None:
        self.rounds: list[RoundBounds | None] = []
        self._sums: dict[Bound, float] = {}
        self._why_not = ""

    def add(
        self,
        timeline: RoundTimeline,
        path: RoundPath | None,
        lost_s: Mapping[str, float | None] | None = None,
        savings: tuple[Saving, ...] = (),
    ) -> None:
        """A finished round.

        Args:
            lost_s: by how much each device was later because it did not get its CPU.
            savings: `whatif.savings_of_round`.
        """
        if path is None:
            self.rounds.append(None)
            self._why_not = self._why_not or lacks(timeline.facts) or "its records contradict each other"
            return
        found = bounds_of_round(timeline, path, lost_s or {}, savings)
        self.rounds.append(found)
        for part in found.parts:
            bound = Bound(part.what, part.whose)
            self._sums[bound] = self._sums.get(bound, 0.0) + part.seconds

    def result(self) -> dict[str, Any]:
        """In all; `why_not`: why some rounds, or all, are not part of it."""
        known = sum(bounds is not None for bounds in self.rounds)
        parts = _parts(self._sums)
        return {
            "text": sentence(parts),
            "parts": [msgspec.structs.asdict(part) for part in parts],
            "rounds": known,
            "why_not": self._why_not if known < len(self.rounds) else "",
        }


def bounds_of_round(
    timeline: RoundTimeline,
    path: RoundPath,
    lost_s: Mapping[str, float | None] | None = None,
    savings: tuple[Saving, ...] = (),
) -> RoundBounds:
    """What bounded a round that has a path. Arguments as `BoundBy.add`."""
    worked = {name: sum(device.sums.get(phase, 0) for phase in OWN_WORK) for name, device in timeline.devices.items()}
    bounds = with_lost_cpu(path.bounds, worked, lost_s or {})
    scale = 1e9 * timeline.facts.dilation
    waited = WaitSums()
    waited.add(timeline, path)
    parts = _parts({bound: ns / scale for bound, ns in bounds.items()})
    return RoundBounds(parts, tuple(path.near), path.rule, savings, waited.shares())


def _parts(seconds: Mapping[Bound, float]) -> tuple[Part, ...]:
    whole = sum(seconds.values())
    rows = sorted(((length, bound) for bound, length in seconds.items() if length > 0), key=lambda row: -row[0])
    return tuple(Part(bound.what, bound.whose, length, length / whole) for length, bound in rows)


def in_summary(bounds: RoundBounds | None) -> dict[str, Any] | None:
    """The entry of a round in `round_bounds` of summary.json, with its sentence."""
    return None if bounds is None else {"text": in_words(bounds)} | msgspec.to_builtins(bounds)


class WaitSums:
    """Adds up what every device waited for in the rounds of a run, by cause (`critical_path.WAITS`)."""

    def __init__(self) -> None:
        self._waited: dict[str, dict[str, float]] = {}
        self._whole: dict[str, float] = {}

    def add(self, timeline: RoundTimeline, path: RoundPath | None) -> None:
        """A finished round. A device that does not take part in it waits for nothing."""
        facts = timeline.facts
        assert facts.finished is not None
        for name in timeline.devices:
            if name not in facts.started.devices:
                continue
            mine = self._waited.setdefault(name, {})
            for cause, ns in waits_of(timeline, name, path, facts.finished.at_ns).items():
                mine[cause] = mine.get(cause, 0.0) + ns / 1e9 / facts.dilation
            self._whole[name] = self._whole.get(name, 0.0) + facts.finished.seconds / facts.dilation

    def shares(self) -> dict[str, float]:
        """Shares of the rounds by cause, the mean over the devices."""
        shares: dict[str, float] = {}
        for name, waited in self._waited.items():
            for cause, length in waited.items():
                shares[cause] = shares.get(cause, 0.0) + length / self._whole[name] / len(self._waited)
        return {cause: shares[cause] for cause in WAITS if cause in shares}

    def result(self) -> dict[str, Any]:
        """For summary.json: seconds by device and cause, and shares of the rounds."""
        return {"wait_s": self._waited, "wait_share_mean": self.shares()}


def over_rounds(rounds: Iterable[tuple[RoundBounds, float]]) -> dict[str, Any]:
    """`bound_by`, `what_if` and `wait_share_mean` of a run that goes on, from its rounds with their seconds."""
    sums, saved, waited = dict[Bound, float](), dict[tuple[str, str], float](), dict[str, float]()
    count, whole = 0, 0.0
    for bounds, length in rounds:
        _add(sums, {Bound(part.what, part.whose): part.seconds for part in bounds.parts})
        _add(saved, {(row.what, row.whose): row.saved_s for row in bounds.savings})
        _add(waited, {cause: share * length for cause, share in bounds.waits.items()})
        count, whole = count + 1, whole + length
    parts = _parts(sums)
    savings = sorted((Saving(*key, length) for key, length in saved.items()), key=lambda saving: -saving.saved_s)
    return {
        "bound_by": {"text": sentence(parts), "parts": msgspec.to_builtins(parts), "rounds": count, "why_not": ""},
        "what_if": {"rounds_s": whole, "savings": msgspec.to_builtins(savings)},
        "wait_share_mean": {cause: waited[cause] / whole for cause in WAITS if cause in waited},
    }


def _add(into: dict[K, float], more: Mapping[K, float]) -> None:
    for key, length in more.items():
        into[key] = into.get(key, 0.0) + length


MOST = 4
"""Bounds that a sentence names."""


def sentence(parts: Sequence[Part]) -> str:
    """In words: "server 61%, cpu0.1's CPU 30%, others 9%"; "" of nothing."""
    named = [part for part in parts[:MOST] if part.share >= LEAST]
    rest = sum(part.share for part in parts) - sum(part.share for part in named)
    texts = [f"{vocabulary.bound(part.what, part.whose)} {percent(part.share, 0)}" for part in named]
    return ", ".join([*texts, *([f"others {percent(rest, 0)}"] if rest >= LEAST else [])])


def savings_text(savings: Iterable[Mapping[str, Any]], most: int = 3) -> str:
    """In words: "server −0.41 s, cpu0.1's CPU −0.2 s" if each alone were twice as fast; "" where nothing is saved.

    Args:
        savings: `whatif.Saving` of single bounds, as in summary.json.
    """
    one = [row for row in savings if row["whose"] not in GROUPS and row["saved_s"] > 0][:most]
    return ", ".join(f"{vocabulary.bound(row['what'], row['whose'])} −{seconds(row['saved_s'])}" for row in one)


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
    saved, waited = savings_text([msgspec.structs.asdict(row) for row in bounds.savings]), waits_text(bounds.waits)
    sentences = (f"Twice as fast: {saved}." if saved else "", f"Devices waited for {waited} of it." if waited else "")
    return " ".join(sentence for sentence in sentences if sentence)
