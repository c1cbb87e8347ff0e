"""How long an agent has received nothing from an orchestrator. Pure."""

from __future__ import annotations

from edgebed.errors import LinkError


class Silence:
    """Counts the seconds since the orchestrator's last message, without time in which this process was stopped.
    `limit_s`: seconds after which the agent ends; 0: no limit."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._seconds = limit_s, 0.0

    def end(self) -> None:
        """The orchestrator has sent a message."""
        self._seconds = 0.0

    def add(self, waited_s: float, heartbeat_s: float) -> None:
        """Count the wait until a heartbeat, of which there is one every `heartbeat_s`. If it took much longer, this
        process was stopped meanwhile, and that time is not counted. Raises LinkError beyond the limit."""
        self._seconds += min(waited_s, 2 * heartbeat_s)
        if self._limit_s and self._seconds > max(self._limit_s, 4 * heartbeat_s):
            raise LinkError(
                f"nothing was received from an orchestrator for {self._seconds:.0f} s",
                hint="start the fleet again; --alone-s (or EDGEBED_ALONE_S) sets how long an agent waits",
            )
