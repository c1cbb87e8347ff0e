"""How often an agent that ends by itself is started again. Pure; time enters as `now` in seconds of any clock."""

from __future__ import annotations

from collections import deque

RESTARTS = 5
WITHIN_S = 600.0
"""Before dilation: work that a device dies of takes so many times longer in a dilated run."""


class RestartBudget:
    """At most `most` restarts within `within_s` seconds. A finished task shows that the agent can work, and clears it.

    An agent that ends once an hour is started again for ever; one that ends at once, a few times only.
    """

    def __init__(self, most: int = RESTARTS, within_s: float = WITHIN_S) -> None:
        self.most, self.within_s = most, within_s
        self._taken: deque[float] = deque(maxlen=most)

    def take(self, now: float) -> bool:
        """Whether one more restart is within the budget."""
        if len(self._taken) == self.most and now - self._taken[0] < self.within_s:
            return False
        self._taken.append(now)
        return True

    def clear(self) -> None:
        self._taken.clear()
