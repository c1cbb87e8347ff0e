"""How many messages of one peer are taken: a token bucket. Pure; time enters as `now` in seconds of any clock."""

from __future__ import annotations

MESSAGES_S = 5000.0
"""A busy agent sends about a hundred a second: a credit for each MB that it receives, heartbeats, answers."""
BURST = 20_000.0


class Allowance:
    """A token bucket, full at first.

    Args:
        rate: messages per second in the long run.
        burst: messages at once.
    """

    def __init__(self, rate: float = MESSAGES_S, burst: float = BURST) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, 0.0

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Whether so many more messages (or bytes, where it counts bytes) are within the rate."""
        if self._at:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True
