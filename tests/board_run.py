"""Records of a run that never took place, on boards of the samples: one gets hot, one has a weak power supply."""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path

import msgspec

from edgebed.wire.reading import BoardReading
from orchestrator.records import types as t
from orchestrator.records.host_records import BoardReadings
from tests.board_samples import Sample
from tests.synthetic import MS, Synthetic

BOARDS = {"weak": "pi-4", "middle": "pi-5", "strong": "jetson-orin-nano"}
"""Devices of `Synthetic`, and the samples whose boards they are."""

S = 1000 * MS
ROUNDS = 8


def records() -> list[t.Record]:
    """`weak`, the Pi 4, is hot and capped in rounds 3 to 5; `middle`, the Pi 5, has too low a voltage at the end of
    round 6; somebody gives `strong`, the Jetson, another power mode from round 7 on."""
    made = Synthetic(rounds=ROUNDS)
    started, *rest = made.records
    assert isinstance(started, t.RunStarted)
    starts = [record.at_ns for record in rest if isinstance(record, t.RoundStarted)]
    end = next(record.at_ns for record in rest if isinstance(record, t.RunFinished))
    read = deque(
        BoardReadings(at, name, f"{name}#1", (_reading(made, name, at, starts),))
        for at in range(starts[0] - S, end, S // 4)
        for name in BOARDS
    )
    joined = [t.DeviceJoined(started.at_ns - 1, name, f"{name}#1", False, facts(name)) for name in BOARDS]
    found: list[t.Record] = [started, *joined]
    for record in rest:
        while read and read[0].at_ns < getattr(record, "at_ns", 0) and len(found) > len(joined) + len(BOARDS) * 2:
            found.append(read.popleft())
        found.append(record)
    return found


def facts(name: str) -> dict[str, str]:
    """What the agent of this device says of its board when it joins."""
    with tempfile.TemporaryDirectory() as folder:
        board = Sample(BOARDS[name], Path(folder)).board()
        return {"machine": "aarch64", "kernel": "6.6.31", "torch": "2.11.0", **board.facts()}


def _reading(made: Synthetic, name: str, at_ns: int, starts: list[int]) -> BoardReading:
    now = sum(start <= at_ns for start in starts)
    reading = BoardReading(made.on_device(name, at_ns), (1800,) * 4, 1.0, 55.0 + now, None, None, None)
    change = msgspec.structs.replace
    if name == "weak":
        hot = 3 <= now <= 5
        return change(reading, mhz=(1000,) * 4 if hot else (1800,) * 4, celsius=82.0 if hot else 61.0,
                      throttled=0x8000A if hot else 0)  # fmt: skip
    if name == "middle":
        late = now == 6 and at_ns > sum(starts[5:7]) // 2
        return change(reading, mhz=(2400,) * 4, throttled=1 if late else 0, watts=4.0 + now % 2)
    mode = "7W" if now >= 7 else None
    return change(reading, mhz=(1510,) * 6, hot=False, watts=9.0, power_mode=mode)
