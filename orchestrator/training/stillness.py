"""Tells whether a process hangs: it has work to do, and has used no CPU time for long; and why one has ended. Pure."""

from __future__ import annotations

import signal


class Stillness:
    """Counts looks, not seconds: while we were stopped ourselves, nobody could take an answer.

    Args:
        most: looks in a row at which a process with work has used no CPU time; then it counts as hanging.
    """

    def __init__(self, most: int) -> None:
        self._most, self._still, self._cpu_s = most, 0, -1.0

    def hangs(self, at_work: bool, cpu_s: float, cpus: float) -> bool:
        """One look.

        Args:
            at_work: whether an answer of the process is waited for.
            cpu_s: CPU seconds that it has used since its start.
            cpus: that it may use. With less than one it gets more looks, because a paced server mostly waits.
        """
        still = at_work and cpu_s == self._cpu_s
        self._still, self._cpu_s = self._still + 1 if still else 0, cpu_s
        return self._still * min(1.0, cpus) >= self._most


def cause(code: int) -> str:
    """Why a process ended, by its return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was killed ({name}{', perhaps because memory was short' if name == 'SIGKILL' else ''})"
