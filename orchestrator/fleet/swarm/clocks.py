"""The clocks of a Swarm's nodes against this host's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from edgebed.errors import FleetError, lasting
from edgebed.wire.boards import MOST_CLOCK_ERROR_S
from orchestrator.records.words.formatting import seconds

NOTED_S = 1.0
"""A clock that is wrong by more than this is not set by NTP."""

DRIFT_S = 0.1
"""The timeline puts a device's phases on this host's clock by an offset that is measured when the device joins. If the
two clocks run at different speeds, later phases are wrong by the difference since then."""

HINT = "set it there: timedatectl set-ntp true; or here, if this host's clock is the wrong one"


class Clock(msgspec.Struct, frozen=True):
    """A node's clock (UTC) minus this host's: `offset_s`, within ± `error_s`."""

    node: str
    offset_s: float
    error_s: float

    @property
    def wrong_s(self) -> float:
        """At least, in seconds."""
        return max(0.0, abs(self.offset_s) - self.error_s)

    def __str__(self) -> str:
        way = "ahead of" if self.offset_s > 0 else "behind"
        return f"{self.node} is {lasting(abs(self.offset_s))} {way} this host"


def clock_of(node: str, asked_s: float, told_s: float, heard_s: float, step_s: float = 0.0) -> Clock:
    """From one question: our clock when it was asked and when the answer came, and the node's in between, which is
    rounded down to a multiple of `step_s`."""
    return Clock(node, told_s - (asked_s + heard_s - step_s) / 2, (heard_s - asked_s + step_s) / 2)


def refuse_wrong(clocks: Iterable[Clock]) -> None:
    """Raises FleetError with all nodes whose clocks TLS does not bear."""
    wrong = [str(clock) for clock in clocks if clock.wrong_s > MOST_CLOCK_ERROR_S]
    if wrong:
        raise FleetError(f"clocks differ by more than {lasting(MOST_CLOCK_ERROR_S)}: {', '.join(wrong)}", hint=HINT)


def notes(clocks: Iterable[Clock]) -> Iterator[str]:
    """A line for each node whose clock is wrong, although a run goes on with it."""
    for clock in clocks:
        if NOTED_S < clock.wrong_s <= MOST_CLOCK_ERROR_S:
            yield f"the clock of {clock} (± {seconds(clock.error_s)}); rounds and timeline do not depend on it"


def drift_note(first: Clock, last: Clock) -> str:
    """A line if the steady clock of a node has moved against this host's by more than the timeline bears; else ""."""
    node, drift_s = last.node, last.offset_s - first.offset_s
    if abs(drift_s) - first.error_s - last.error_s <= DRIFT_S:
        return ""
    way, where = ("gained", "late") if drift_s > 0 else ("lost", "early")
    return (
        f"the clock of {node} has {way} {seconds(abs(drift_s))} since the start: phases of its devices may stand too "
        f"{where} in the timeline by that"
    )
