"""What every attempt of the attack program is, and the table of what each got."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """One thing that an attacker tries.

    Attributes:
        who: the attacker: stranger, member, other user.
        tries: what it tries.
        make: carries it out against the target, and returns what it got.
        may: what it may get, in part; anything else is too much.
        open_row: the finding that is not mended yet; then it gets `now`, and may.
    """

    who: str
    tries: str
    make: Callable[[T], Awaitable[str]]
    may: str
    open_row: str = ""
    now: str = ""


@dataclass(frozen=True)
class Result:
    who: str
    tries: str
    got: str
    may: str
    fine: bool
    open_row: str = ""


async def tried(attempt: Attempt[T], target: T) -> Result:
    got = " ".join((await attempt.make(target)).split())[:200]
    held = attempt.may in got
    still_open = bool(attempt.open_row) and not held and attempt.now in got
    return Result(
        attempt.who, attempt.tries, got, attempt.may, held or still_open, attempt.open_row if still_open else ""
    )


def table(results: Sequence[Result]) -> str:
    """One line per attempt; `MORE`: it got more than it should, `open`: as much as a finding that is not mended lets
    it get."""
    rows = [(_verdict(each), each.who, each.tries, each.got) for each in results]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def _verdict(result: Result) -> str:
    if not result.fine:
        return "MORE"
    return f"open {result.open_row}" if result.open_row else "held"
