"""Pauses between reads of a slow link, so that fewer arriving segments wake the reader. Pure."""

from __future__ import annotations

PACE_MIN_S, PACE_MAX_S = 0.002, 0.040
PACE_SHARE = 0.75
"""The longest pause, as a share of the time that the rest of a packet is expected to take. A pause that ends late would
slow the transfer and hide how fast the link is."""


class ReadPauses:
    """How long to wait after a read before the next one: each read gets many bytes, and no packet waits. Pure."""

    def __init__(self) -> None:
        self._bytes_s = 0.0  # of the link, as last seen
        self._read_s: float | None = None  # when the packet in hand was last read from

    def pause_s(self, arrived: int, missing: int, now_s: float) -> float:
        """After a read of `arrived` bytes at `now_s` that left a packet `missing` bytes short; 0: look at once."""
        if self._read_s is not None and now_s > self._read_s:
            self._bytes_s = arrived / (now_s - self._read_s)
        self._read_s = now_s if missing else None
        if not missing:
            return 0.0
        if not self._bytes_s:
            return PACE_MIN_S
        rest_s = PACE_SHARE * missing / self._bytes_s
        return 0.0 if rest_s < PACE_MIN_S else min(rest_s, PACE_MAX_S)
