"""Counts void rounds: when they end a run, which devices caused them, and what to do about it. Pure.

Consecutive rounds are counted together. With concurrent lanes void rounds are counted by device, so that one bad device
loses only its own work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgebed.errors import RunError, counted
from orchestrator.experiment import Training
from orchestrator.rounds.machine import Leave

VOID_ROUNDS = 3
"""Void rounds in a row that end a run, or after which a device of a lane is left out."""


class VoidRounds:
    """Void rounds in a row of a run without lanes."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.in_a_row = 0

    def count(self, void: bool) -> None:
        """Count a round that has ended."""
        self.in_a_row = self.in_a_row + 1 if void else 0

    def check(self, missing: Mapping[str, Leave]) -> None:
        """Raises RunError when too many in a row were void.

        Args:
            missing: devices that did not contribute to the last one, and how each left.
        """
        if self.in_a_row >= VOID_ROUNDS:
            quorum = self._training.quorum
            raise RunError(
                f"{self.in_a_row} rounds in a row ended without a quorum of {quorum}; missing in the last one: "
                f"{named(missing)}",
                hint=hint(self._training, missing),
            )


def nothing_merged(training: Training, rounds: int, missing: Mapping[str, Leave]) -> RunError:
    """The error of a run that has ended without a merged round.

    Args:
        missing: devices that did not contribute to the last round, and how each left.
    """
    return RunError(
        f"no work was merged in {counted(rounds, 'round')}: none had a quorum of {training.quorum}; "
        f"missing in the last one: {named(missing)}",
        hint=hint(training, missing),
    )


class VoidByDevice:
    """Void rounds in a row of every device, of a run with lanes.

    Attributes:
        left_out: devices that get no more rounds, and how each left its last one; None: it did not leave.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self.counts: dict[str, int] = {}
        self.left_out: dict[str, Leave | None] = {}

    def count(
        self, devices: Iterable[str], void: bool, merged: Iterable[str], missing: Mapping[str, Leave]
    ) -> list[str]:
        """Count a round of `devices` that has ended; returns those that are left out from now on."""
        for device in merged:
            self.counts[device] = 0
        blamed: Mapping[str, Leave | None] = (missing or dict.fromkeys(devices)) if void else {}
        for device in blamed:
            self.counts[device] = self.counts.get(device, 0) + 1
        out = {device: left for device, left in blamed.items() if self.counts[device] >= VOID_ROUNDS}
        self.left_out |= out
        return sorted(out)

    def nobody(self) -> RunError:
        """The error of a run in which all devices are left out."""
        return RunError(
            f"no device is left to work: the last {VOID_ROUNDS} rounds of each were void: {named(self.left_out)}",
            hint=hint(self._training, self.left_out),
        )


def told(left: Leave | None) -> str:
    """How a device left a void round; None: it did not leave."""
    return "void" if left is None else f"{left.how}: {left.why}"


def named(missing: Mapping[str, Leave | None], most: int = 5) -> str:
    """Devices with their reasons, for a message."""
    texts = [f"{device} ({told(left)})" for device, left in sorted(missing.items())]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "") or "nobody"


def hint(training: Training, missing: Mapping[str, Leave | None]) -> str:
    """What to do about devices that did not contribute, from how they left and the experiment's settings. A deadline
    puts nobody out before there is a quorum, so a void round whose devices were all late reached its ceiling."""
    if missing and all(left is not None and left.limit_s is not None for left in missing.values()):
        key = "budget_s" if any(left and "budget_s" in left.why for left in missing.values()) else "round_ceiling_s"
        way = f"raise training.{key} (now {getattr(training, key):g} s)"
    else:
        way = "mend these devices (records.jsonl has each device_out)"
    lower = f", or lower training.quorum (now {training.quorum})" if training.quorum > 1 else ""
    return f"{way}{lower}; `edgebed run --resume` goes on from the last round that was merged"
