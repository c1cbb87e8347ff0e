"""Samples of boards: the files that an agent reads of one, and what its commands say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edge_agent.sensors.board import Board

SAMPLES = Path(__file__).parent / "recorded" / "boards"
DEVICE_TREE = "proc/device-tree/model"


class Sample:
    """A sample unpacked: its tree, and its commands."""

    def __init__(self, name: str, root: Path) -> None:
        self.root, self.asked = root, list[str]()
        self.commands: dict[str, str] = {}
        for part in (SAMPLES / f"{name}.txt").read_text().split("=== ")[1:]:
            path, content = part.split("\n", 1)
            if path.startswith("commands/"):
                self.commands[path.removeprefix("commands/")] = content
                continue
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content.strip() + "\0" if path == DEVICE_TREE else content)

    def run(self, command: Sequence[str]) -> str | None:
        self.asked.append(" ".join(command))
        return self.commands.get(" ".join(command))

    def board(self, now: Callable[[], float] = lambda: 7.0, spent_s: Callable[[], float] = lambda: 0.0) -> Board:
        return Board(self.root, self.run, now, spent_s)
