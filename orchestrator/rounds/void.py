"""Counts void rounds: when they end a run, which devices caused them, and what to do about it. Pure.

Consecutive rounds are counted together. With concurrent lanes void rounds are counted by device, so that one bad device
loses only its own work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgebed.errors import RunError
from orchestrator.experiment import Training

VOID_ROUNDS = 3
"""Void rounds in a row that end a run, or after which a device of a lane is left out."""


class VoidRounds:
    """Void rounds in a row of a run without lanes."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._count = 0

    def count(self, void: bool, missing: Mapping[str, str]) -> None:
        """Count a round that has ended. Raises RunError when too many in a row were void.

        Args:
            missing: devices that did not contribute, each with the reason.
        """
        self._count = self._count + 1 if void else 0
        if self._count >= VOID_ROUNDS:
            quorum = self._training.quorum
            raise RunError(
                f"{self._count} rounds in a row ended without a quorum of {quorum}; missing in the last one: "
                f"{named(missing)}",
                hint=hint(self._training, missing),
            )


def nothing_merged(training: Training, rounds: int, missing: Mapping[str, str]) -> RunError:
    """The error of a run that has ended without a merged round.

    Args:
        missing: devices that did not contribute to the last round, each with the reason.
    """
    return RunError(
        f"no work was merged in {rounds} round{'s' if rounds > 1 else ''}: none had a quorum of {training.quorum}; "
        f"missing in the last one: {named(missing)}",
        hint=hint(training, missing),
    )


class VoidByDevice:
    """Void rounds in a row of every device, of a run with lanes.

    Attributes:
        left_out: devices that get no more rounds, and why their last one was void.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._counts: dict[str, int] = {}
        self.left_out: dict[str, str] = {}

    def count(self, devices: Iterable[str], void: bool, merged: Iterable[str], missing: Mapping[str, str]) -> list[str]:
        """Count a round of `devices` that has ended; returns those that are left out from now on."""
        for device in merged:
            self._counts[device] = 0
        blamed = (missing or dict.fromkeys(devices, "void")) if void else {}
        for device in blamed:
            self._counts[device] = self._counts.get(device, 0) + 1
        out = {device: why for device, why in blamed.items() if self._counts[device] >= VOID_ROUNDS}
        self.left_out |= out
        return sorted(out)

    def nobody(self) -> RunError:
        """The error of a run in which all devices are left out."""
        return RunError(
            f"no device is left to work: the last {VOID_ROUNDS} rounds of each were void: {named(self.left_out)}",
            hint=hint(self._training, self.left_out),
        )


def named(missing: Mapping[str, str], most: int = 5) -> str:
    """Devices with their reasons, for a message."""
    texts = [f"{device} ({why})" for device, why in sorted(missing.items())]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "") or "nobody"


def hint(training: Training, missing: Mapping[str, str]) -> str:
    """What to do about devices that did not contribute, from their reasons and the experiment's settings."""
    late = bool(missing) and all(why.startswith("late") for why in missing.values())
    if late and training.deadline_s is not None:
        way = f"raise training.deadline_s (now {training.deadline_s:g} s)"
    else:
        way = "mend these devices (records.jsonl has each device_out)"
    lower = f", or lower training.quorum (now {training.quorum})" if training.quorum > 1 else ""
    return f"{way}{lower}; `edgebed run --resume` goes on from the last round that was merged"
