"""How sensors are read: files and commands."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

COMMAND_S = 2.0
"""Seconds after which a command is ended: a sensor that hangs must not stop the others."""

RunCommand = Callable[[Sequence[str]], "str | None"]
"""Runs a command; what it printed, or None where it is missing, failed or took too long."""


def run_command(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def text_of(path: Path) -> str | None:
    """The content of a small file without the NUL at its end, which the device tree has; None where it cannot be
    read."""
    try:
        return path.read_bytes().decode(errors="replace").strip("\0 \n\t") or None
    except OSError:
        return None


def whole(text: str | None) -> int | None:
    """A whole number, or None."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def number_of(path: Path) -> int | None:
    """The whole number in a file; None where there is no such file, or the sensor has no value now."""
    return whole(text_of(path))
