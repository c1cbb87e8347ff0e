"""What figures share: bars in a row, legends, digits, and how many of many values are drawn. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from orchestrator.records.words.palette import ordered
from orchestrator.records.words.vocabulary import phase

Look = Mapping[str, tuple[str, str]]
"""What bars are drawn in, by key, in their order: the phase that has the same colour, and the words."""

T = TypeVar("T")
N = TypeVar("N", float, float | None)


def six_digits(value: N) -> N:
    """Enough to draw with."""
    return value if value is None else float(f"{value:.6g}")


def stride(count: int, most: int) -> int:
    """The step with which at most `most` of `count` items are shown."""
    return max(1, -(-count // most))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most about `most` of the items, at equal distances, the last one among them."""
    step = stride(len(items), most)
    return [*items[::step], *(items[-1:] if (len(items) - 1) % step else [])]


def phases(names: Iterable[str]) -> Look:
    """Phases look like themselves."""
    return {name: (name, phase(name)) for name in ordered(names)}


def legend(look: Look) -> list[dict[str, Any]]:
    """What the colours of bars mean."""
    return [{"name": words, "cls": f"p-{like}"} for like, words in look.values()]


def bars(
    sums: Mapping[str, Mapping[str, float]], look: Look, tell: Callable[[float], str], head: str = "device", **more: Any
) -> dict[str, Any]:
    """A figure with a row per name of `sums`, of parts one after the other."""
    return {
        "kind": "rows",
        "rows": [{"label": name, "bars": _stacked(own, look, tell)} for name, own in sums.items()],
        "to": max((sum(own.values()) for own in sums.values()), default=0.0) or 1e-9,
        "format": "tick",
        "legend": legend(look),
        "columns": [[head], *([words, "num"] for _, words in look.values())],
        "cells": [[name, *(tell(own[key]) if own.get(key) else "·" for key in look)] for name, own in sums.items()],
    } | more


def _stacked(lengths: Mapping[str, float], look: Look, tell: Callable[[float], str]) -> list[list[Any]]:
    """Class, from, to, text."""
    at, found = 0.0, []
    for key, (like, words) in look.items():
        if (length := lengths.get(key, 0.0)) > 0:
            found.append([f"p-{like}", six_digits(at), six_digits(at + length), f"{words} {tell(length)}"])
            at += length
    return found
