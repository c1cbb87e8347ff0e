"""A thread that reads the sensors of a board once a second, for the heartbeats."""

from __future__ import annotations

import functools
import threading
from collections import deque

import msgspec
import torch

from edge_agent.accelerator import accelerator_facts, torch_note
from edge_agent.sensors import machine
from edge_agent.sensors.board import Board
from edgebed.wire.reading import BoardReading

EVERY_S = 1.0

KEPT = 120
"""Readings that wait for a heartbeat; of more, the oldest are dropped."""


@functools.cache
def board_facts(accelerator: torch.device) -> dict[str, str]:
    """Facts of the board that this process runs on, and trains on; asked once, since some of them need a command."""
    return Board().facts() | machine.torch_facts() | torch_note() | accelerator_facts(accelerator)


class BoardWatch:
    """Reads until `close`. Not in the event loop: a command takes milliseconds, and a sensor may hang."""

    def __init__(self, board: Board, every_s: float = EVERY_S) -> None:
        self._board, self._every_s = board, every_s
        self._readings: deque[BoardReading] = deque(maxlen=KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sensors", daemon=True)
        self._thread.start()

    def take(self) -> tuple[BoardReading, ...]:
        """What was read since the last call."""
        taken = []
        while self._readings:
            taken.append(self._readings.popleft())
        return tuple(taken)

    def close(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while True:
            reading = self._board.read()
            if sendable(reading):
                self._readings.append(reading)
            if self._stop.wait(self._every_s):
                return


def sendable(reading: BoardReading) -> bool:
    """Whether the orchestrator will accept it. A sensor that tells nonsense must not cost a heartbeat."""
    try:
        msgspec.convert(msgspec.to_builtins(reading), BoardReading)
    except msgspec.ValidationError:
        return False
    return True
