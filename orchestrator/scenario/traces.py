"""Traces of links: text of a CSV or mahimahi file -> rates, latency and presence over time. Pure.

A CSV file begins with a header that names its columns; their units are in the names: `time_s`, and one or more of
`uplink_mbit_s`, `downlink_mbit_s`, `latency_ms`, `present` (1 or 0). Times begin at 0 and rise. A row holds until the
next one; the last row holds as long as the one before it. Lines that begin with # are comments.

A mahimahi file (mm-link(1)) has one line per packet that the link could deliver, with its time in whole milliseconds.
A packet has 1504 bytes. The trace lasts until its last line.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from edgebed.errors import UsageError
from edgebed.limits.spec import LEAST_MBIT_S, MOST_LATENCY_MS, MOST_MBIT_S
from edgebed.typed import nearest

COLUMNS = ("uplink_mbit_s", "downlink_mbit_s", "latency_ms", "present")
MOST_ROWS = 1_000_000
PACKET_BYTES = 1504
MOST = {
    "uplink_mbit_s": MOST_MBIT_S,
    "downlink_mbit_s": MOST_MBIT_S,
    "latency_ms": MOST_LATENCY_MS,
    "present": 1.0,
}


class Sample(msgspec.Struct, frozen=True):
    """The link at a time; None: as without the trace."""

    uplink_mbit_s: float | None = None
    downlink_mbit_s: float | None = None
    latency_ms: float | None = None
    present: bool = True

    def named(self) -> dict[str, float]:
        """The limits that are not as without the trace, by key."""
        pairs = ((key, getattr(self, key)) for key in COLUMNS if key != "present")
        return {key: value for key, value in pairs if value is not None}


class Trace(msgspec.Struct, frozen=True):
    """Samples, each from its time until the next one's. The first time is 0; the last sample holds until `length_s`."""

    times: tuple[float, ...]
    samples: tuple[Sample, ...]
    length_s: float


class Playback(msgspec.Struct, frozen=True):
    """A trace that plays on a device. Step n is sample n modulo their number."""

    trace: Trace
    start_s: float  # when it begins to play
    offset_s: float = 0.0  # where in the trace it begins; less than its length
    loop: bool = True  # whether it begins again at its end

    @property
    def first_step(self) -> int:
        return bisect_right(self.trace.times, self.offset_s) - 1

    def begins_s(self, step: int) -> float:
        """When a step begins. The first one has begun earlier, if the offset is within it."""
        cycle, index = divmod(step, len(self.trace.times))
        return self.start_s - self.offset_s + cycle * self.trace.length_s + self.trace.times[index]

    def sample(self, step: int) -> Sample | None:
        """None: the trace has ended."""
        count = len(self.trace.samples)
        return self.trace.samples[step % count] if self.loop or step < count else None


def trace_of(times: Sequence[float], samples: Sequence[Sample], length_s: float) -> Trace:
    """A trace in which equal neighbours are one sample."""
    kept = [i for i, sample in enumerate(samples) if not i or sample != samples[i - 1]]
    return Trace(tuple(times[i] for i in kept), tuple(samples[i] for i in kept), length_s)


# ---- CSV -------------------------------------------------------------------------------------------------------------


def parse_csv(text: str, name: str) -> Trace:
    """Parse a CSV file. `name`: of the file, for messages. Raises UsageError: with the line."""
    lines = _lines(text)
    header = next(lines, None)
    if header is None:
        raise UsageError(f"{name} has no lines", hint=f"begin with a header such as: time_s,{','.join(COLUMNS[:2])}")
    columns = _columns(header, name)
    times, samples = list[float](), list[Sample]()
    for number, line in lines:
        place = f"{name}:{number}"
        values = _values(line, columns, place)
        time_s = values.pop("time_s")
        _check_time(time_s, times, place)
        times.append(time_s)
        samples.append(_sample(values))
        if len(times) > MOST_ROWS:
            raise UsageError(f"{place}: more than {MOST_ROWS} rows", hint="write one row per second")
    if len(times) < 2:
        raise UsageError(f"{name} has {len(times)} rows of values", hint="a trace needs two rows at least")
    return trace_of(times, samples, 2 * times[-1] - times[-2])


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of the lines that say something."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _columns(header: tuple[int, str], name: str) -> list[str]:
    number, line = header
    place, columns, known = f"{name}:{number}", [each.strip() for each in line.split(",")], ("time_s", *COLUMNS)
    for column in columns:
        if column not in known:
            raise UsageError(
                f"{place}: there is no column {column[:60]!r}{nearest(column[:60], known)}",
                hint=f"columns and their units are: {', '.join(known)}",
            )
    if len(set(columns)) != len(columns):
        raise UsageError(f"{place}: a column is there twice", hint="remove one of the two")
    if "time_s" not in columns or len(columns) < 2:
        raise UsageError(f"{place}: the header is {line[:60]!r}", hint=f"name time_s and one of {', '.join(COLUMNS)}")
    return columns


def _values(line: str, columns: Sequence[str], place: str) -> dict[str, float]:
    cells = line.split(",")
    if len(cells) != len(columns):
        raise UsageError(f"{place}: {len(cells)} values under {len(columns)} columns", hint="give each column a value")
    return {column: _number(cell, column, place) for column, cell in zip(columns, cells, strict=True)}


def _number(cell: str, column: str, place: str) -> float:
    most = MOST.get(column, 1e9)
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most or (column == "present" and value not in (0, 1)):
        wanted = "0 or 1" if column == "present" else f"a number from 0 to {most:.0f}"
        raise UsageError(f"{place}: {column} is {cell.strip()[:60]!r}", hint=f"write {wanted}")
    return value


def _check_time(time_s: float, before: Sequence[float], place: str) -> None:
    if not before and time_s:
        raise UsageError(f"{place}: the first time is {time_s:g} s", hint="begin at 0: a device's offset comes on top")
    if before and time_s <= before[-1]:
        raise UsageError(f"{place}: {time_s:g} s comes after {before[-1]:g} s", hint="times must rise from row to row")


def _sample(values: dict[str, float]) -> Sample:
    # A rate of 0 becomes the least one: tc has no rate of 0, and packets wait in the queue as they would.
    up, down = (max(LEAST_MBIT_S, values[key]) if key in values else None for key in COLUMNS[:2])
    return Sample(up, down, values.get("latency_ms"), bool(values.get("present", 1)))


# ---- mahimahi --------------------------------------------------------------------------------------------------------


def parse_mahimahi(text: str, name: str, direction: str, interval_s: float) -> Trace:
    """Parse a mahimahi trace: packets are counted per interval. The last interval may be shorter.

    Args:
        name: of the file, for messages.
        direction: uplink or downlink.

    Raises:
        UsageError: with the line.
    """
    packets_ms = list[int]()
    for number, line in _lines(text):
        place = f"{name}:{number}"
        if not (line.isascii() and line.isdecimal()) or len(line) > 12:
            raise UsageError(f"{place}: {line[:60]!r} is no time", hint="write whole milliseconds, one per packet")
        if packets_ms and int(line) < packets_ms[-1]:
            raise UsageError(f"{place}: {line} ms comes after {packets_ms[-1]} ms", hint="times must not fall")
        packets_ms.append(int(line))
    if not packets_ms or not packets_ms[-1]:
        raise UsageError(f"{name} lasts 0 ms", hint="a trace needs a packet after 0 ms")
    return _rates(packets_ms, name, direction, interval_s)


def _rates(packets_ms: Sequence[int], name: str, direction: str, interval_s: float) -> Trace:
    length_s = packets_ms[-1] / 1000
    count = math.ceil(length_s / interval_s - 1e-9)
    if count > MOST_ROWS:
        raise UsageError(f"{name} has {count} intervals of {interval_s:g} s", hint="raise interval_s")
    packets = [0] * count
    for at_ms in packets_ms:
        packets[min(count - 1, int(at_ms / 1000 / interval_s))] += 1
    times = [index * interval_s for index in range(count)]
    ends = [*times[1:], length_s]
    rates = [n * PACKET_BYTES * 8 / 1e6 / (end - begin) for n, begin, end in zip(packets, times, ends, strict=True)]
    return trace_of(times, [_sample({f"{direction}_mbit_s": rate}) for rate in rates], length_s)
