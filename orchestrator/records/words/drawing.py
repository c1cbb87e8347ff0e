"""How many of many values are drawn, and with how many digits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

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
