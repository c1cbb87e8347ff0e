"""Repeats the plan of a recorded run.

A method that plans from measured times makes another plan in every run. With the recorded assignments the weights are
equal to the bit. So a run that was killed and resumed can be compared with a whole one, and one fleet with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import DeviceView, Plan
from orchestrator.files.output import keep
from orchestrator.records.reader import read
from orchestrator.records.types import Record, RoundStarted


class Replay:
    """Recorded assignments by round. Of a round that was repeated after a resume, the last ones."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._rounds = {record.round: record for record in records if isinstance(record, RoundStarted)}

    def check(self, rounds: int, methods: int) -> None:
        """Raises UsageError where the plan does not fit: too few rounds, several methods, or concurrent rounds."""
        if methods != 1:
            raise UsageError(f"a recorded plan is one method's, not that of {methods}", hint="choose one with --method")
        if any(record.lane for record in self._rounds.values()):
            raise UsageError("a plan whose rounds overlap cannot be repeated", hint="take a synchronous method's run")
        missing = [number for number in range(rounds) if number not in self._rounds]
        if missing:
            raise UsageError(
                f"the recorded plan has no round {missing[0] + 1}, and {rounds} are wanted",
                hint=f"--set training.rounds={missing[0] or 1}, or the plan of a longer run",
            )

    def begin(self, number: int, present: Sequence[DeviceView]) -> tuple[list[DeviceView], Plan]:
        """The devices of a round and their assignments. Raises RunError where one of them is away."""
        recorded = self._rounds[number]
        here = {view.name: view for view in present}
        away = [name for name in recorded.devices if name not in here]
        if away:
            raise RunError(
                f"round {number + 1} of the recorded plan needs {', '.join(away)}, not present now",
                hint="start the run again",
            )
        plan = Plan(recorded.assignments, recorded.predicted_s, recorded.notes)
        return [here[name] for name in recorded.devices], plan


def read_replay(path: Path) -> Replay:
    """The plan in a file of records. Raises UsageError where it cannot be read."""
    return Replay(read(path))


def copy_plan(source: Path, target: Path) -> None:
    """Write the recorded plan of another run into the folder of a run that repeats it. Raises UsageError, FileError."""
    plan = [record for record in read(source) if isinstance(record, RoundStarted)]
    keep(target, b"".join(msgspec.json.encode(record) + b"\n" for record in plan))
