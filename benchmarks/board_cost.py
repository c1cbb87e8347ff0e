"""CPU time of a board's sensors at one reading per second: at most 1 % of a core.

The trees are samples of boards, unpacked into ordinary files, and this host's own. A command is a real process that
prints the sample's output. Ordinary files are no sensors: a real one may take longer to read, mostly waiting. The
commands' part is bounded on every board, since they are asked as seldom as their CPU time demands.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._figures import figure
from edge_agent.sensors.board import SHARE, Board, cpu_s
from tests.board_samples import Sample

BOARDS = ("pi-4", "pi-5", "jetson-orin-nano", "jetson-agx-orin", "laptop")
READINGS = 600
MOST_US = 10_000
"""1 % of a core."""


class Clock:
    """A clock that the benchmark moves, so that 600 seconds of readings are done at once."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def cpu_us(root: Path, commands: dict[str, str]) -> float:
    """CPU microseconds per second at one reading per second."""

    def run(command: Sequence[str]) -> str | None:
        text = commands.get(" ".join(command))
        return None if text is None else subprocess.run(["echo", text], capture_output=True, check=True).stdout.decode()

    clock = Clock()
    board = Board(root, run, clock)
    before = cpu_s()
    for _ in range(READINGS):
        board.read()
        clock.seconds += 1
    return (cpu_s() - before) / READINGS * 1e6


def main() -> None:
    for name in BOARDS:
        with tempfile.TemporaryDirectory() as folder:
            sample = Sample(name, Path(folder))
            figure(f"{name}: CPU µs per second", cpu_us(sample.root, sample.commands), most=MOST_US)
    figure("this host: CPU µs per second", cpu_us(Path("/"), {}), most=MOST_US)
    figure("what the rule allows one command", SHARE * 1e6)
