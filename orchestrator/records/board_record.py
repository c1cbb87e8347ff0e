"""The record of what a board's sensors read. Pure."""

from __future__ import annotations

import msgspec

from edgebed.wire.reading import BoardReading


class BoardReadings(msgspec.Struct, frozen=True, gc=False, tag="board_readings"):
    """What the sensors of a board read since its last heartbeat, on the device's clock."""

    at_ns: int
    device: str
    incarnation: str
    readings: tuple[BoardReading, ...]
