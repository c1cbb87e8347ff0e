"""What device halves keep on a device between the tasks of a run. Pure.

It is kept by the task that made it. The orchestrator names the last task of the device whose work it merged; what
later tasks made is dropped, for their work is in no weights. So a device keeps two versions at most: what the task in
hand began with, and what it made. They are in the agent's memory and end with it.
"""

from __future__ import annotations

from edgebed.errors import RunError
from edgebed.models.staged import KEPT, Weights, with_prefix

MOST_RUNS = 8
"""Runs that take turns on a device, and may each have state there."""


class KeptStates:
    """The device state of each run."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Weights]] = {}  # by run, then by the task that made it

    def begin(self, run: str, expected: str) -> Weights:
        """What a task goes on with, by names with `KEPT`; {} where it begins with none or brings a copy. The half may
        change it in place. `expected`: the task whose state it is to be; "" for none. Raises RunError: this device does
        not have it."""
        kept = self._runs.pop(run, {})
        if not expected:
            return {}
        if expected not in kept:
            raise RunError(f"the device state of task {expected} is gone", hint="the next task brings a copy, if any")
        self._runs[run] = {expected: kept[expected]}
        return with_prefix({name: value.clone() for name, value in kept[expected].items()}, KEPT)

    def keep(self, run: str, task: str, state: Weights) -> None:
        """The task is done, and leaves this."""
        if state:
            kept = self._runs.setdefault(run, {})
            kept[task] = {name: value.detach().clone() for name, value in state.items()}
            while len(self._runs) > MOST_RUNS:
                del self._runs[next(iter(self._runs))]
