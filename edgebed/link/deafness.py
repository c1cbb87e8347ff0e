"""Whether a data connection is silently dead: it stands, but what is sent on one side does not come out on the other.
A broker that lost a subscription does this, and so do firewalls and address translators that forget a flow. Pure.

A slow link is not dead. While anything is on its way, bytes arrive, or some that were written are unacknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass

SLACK_S = 1.0
"""A mark comes over another connection than the question that belongs to it, and may arrive before it."""
PATIENCE = 3.0


@dataclass(frozen=True)
class Signs:
    """What is known of a data connection. All times are in seconds of one clock."""

    # when the other side last asked, over control, for what it had sent on the data connection; 0.0: never
    asked: float
    # when we put the first mark on the data connection of which the other side has told nothing; None: it has told of
    # all
    marked: float | None
    heard: float  # when a message last came over control
    arrived: float  # when a byte last arrived on the data connection
    drained: bool  # whether all that we wrote has reached the broker's kernel


class Deafness:
    """Looks at the signs from time to time.

    What was sent may wait where our kernel does not see it, in a tunnel to the broker for example. So this sign must
    last three times as long, and after each verdict twice as long as before, until something comes out.
    """

    def __init__(self) -> None:
        self._patience = PATIENCE
        self._asked = 0.0  # the first question since a byte arrived
        self._drained_at: float | None = None

    def verdict(self, signs: Signs, now: float, limit_s: float) -> str:
        """What does not work, "" if nothing is known. A sign must last `limit_s` seconds, and control must have been
        heard within that time."""
        if self._asked <= signs.arrived + SLACK_S:
            self._asked = signs.asked
        if not signs.drained:
            self._drained_at = None
        elif self._drained_at is None:
            self._drained_at = now
        if signs.marked is None:
            self._patience = PATIENCE
        if now - signs.heard >= limit_s:
            return ""
        return self._hears_nothing(signs, now, limit_s) or self._is_not_heard(signs, now, limit_s * self._patience)

    def _hears_nothing(self, signs: Signs, now: float, limit_s: float) -> str:
        asked_s = now - self._asked
        if asked_s >= limit_s and self._asked > signs.arrived + SLACK_S:
            return f"nothing has arrived in the {asked_s:.0f} s since the orchestrator asked"
        return ""

    def _is_not_heard(self, signs: Signs, now: float, limit_s: float) -> str:
        if signs.marked is None or self._drained_at is None:
            return ""
        sent_s = now - max(signs.marked, self._drained_at)
        if sent_s < limit_s:
            return ""
        self._drained_at, self._patience = None, 2 * self._patience
        return f"what was sent {sent_s:.0f} s ago has not come out"
