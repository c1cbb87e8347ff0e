"""Text for people: numbers, seconds, bytes, rates, shares and accuracies. Pure.

Terminal, report, figures, comparison and live page show figures in this one form. `dashboard/static/format.js` has the
same functions for figures that the page computes itself; a test checks that both give the same text.

Halves are rounded away from zero, as JavaScript's `toPrecision` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, TypeVar

from edgebed.errors import printable
from edgebed.typed import written

NONE = "–"
"""Stands for a value that is not known or does not exist."""

T = TypeVar("T")


def known(value: T | None, show: Callable[[T], str]) -> str:
    """The text of a value, or a dash where there is none."""
    return NONE if value is None else show(value)


def some(names: Sequence[str], most: int = 4) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def setting_texts(setting: Mapping[str, Any]) -> list[str]:
    """The values of a sweep's setting: `batch_size 32`; with the whole key where two end alike."""
    ends = [key.rpartition(".")[2] for key in setting]
    names = [end if ends.count(end) == 1 else key for key, end in zip(setting, ends, strict=True)]
    return [printable(f"{name} {written(value)}") for name, value in zip(names, setting.values(), strict=True)]


def number(value: float, digits: int = 3) -> str:
    """At most `digits` significant digits, without an exponent and without trailing zeros: 1230, 0.5, 3.14."""
    if not value or not math.isfinite(value):
        return "0" if not value else str(value)
    exact = Decimal(value)
    last = Decimal((0, (1,), exact.adjusted() - digits + 1))
    return format(exact.quantize(last, ROUND_HALF_UP).normalize(), "f")


def fixed(value: float, decimals: int) -> str:
    """Exactly `decimals` digits after the point; of huge values the exponent."""
    if abs(value) >= 1e15:
        return f"{value:.2e}"
    return format(Decimal(value).quantize(Decimal((0, (1,), -decimals)), ROUND_HALF_UP), "f")


def seconds(value: float) -> str:
    """Milliseconds below one second; three digits: 34.8 ms, 1.74 s, 12345 s."""
    if abs(value) < 0.9995:
        return f"{number(value * 1000)} ms" if value else "0 s"
    return f"{number(value) if abs(value) < 999.5 else fixed(value, 0)} s"


def signed_seconds(value: float) -> str:
    """Seconds more (+) or less (−)."""
    return ("−" if value < 0 else "+" if value else "") + seconds(abs(value))


def percent(value: float, decimals: int = 1) -> str:
    """A share: 92.8%. One more digit below 0.1%, where only one was asked for."""
    decimals = 2 if decimals == 1 and 0 < value < 0.001 else decimals
    return f"{fixed(value * 100, decimals)}%"


def share(value: float) -> str:
    """A share that was asked for, with the digits it needs: 90%, 99.9%."""
    return f"{number(value * 100, 6)}%"


def signed_percent(value: float) -> str:
    """A relative difference: +4.1%, −0.3%."""
    return ("−" if value < 0 else "+") + fixed(abs(value) * 100, 1) + "%"


def accuracy(value: float) -> str:
    """An accuracy, never rounded up: 0.8997 misses a target of 90%, and must not be shown as 90.0%."""
    return f"{fixed(math.floor(value * 1000 + 1e-6) / 10, 1)}%"


def size(value: float) -> str:
    """Bytes with a decimal unit: 512 B, 1.45 MB."""
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{number(value)} {unit}"
        value /= 1000
    return f"{number(value)} GB"


def rate(bit_s: float) -> str:
    """A rate of a link, given in bit/s: 12.5 Mbit/s."""
    return quantity(bit_s, "bit/s")


def quantity(value: float, unit: str) -> str:
    """Four digits and the unit; rates in Mbit/s."""
    return f"{number(value / 1e6, 4)} Mbit/s" if unit == "bit/s" else f"{number(value, 4)} {unit}"


def ratio(value: float) -> str:
    """A ratio between two methods: 0.873."""
    return fixed(value, 3)


def factor(value: float) -> str:
    """A ratio: 1.25 ×."""
    return f"{fixed(value, 2)} ×"
