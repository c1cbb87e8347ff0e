"""Puts a device's phases on the orchestrator's clock, and says when the device was away. Pure."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from orchestrator.records.run_index import FOREVER, Clock, DeviceFacts


class Piece(msgspec.Struct, gc=False):
    """A reported phase: start and end on the orchestrator's clock, `length_ns` on the device's."""

    start_ns: int
    end_ns: int
    length_ns: int
    name: str
    task: str
    cpu_ns: int = 0
    throttled_ns: int = 0

    def share(self, start_ns: int, end_ns: int) -> int:
        """Device nanoseconds of the part between two orchestrator times within the piece."""
        whole = self.end_ns - self.start_ns
        return self.length_ns if end_ns - start_ns == whole else self.length_ns * (end_ns - start_ns) // whole


class TaskSpan(msgspec.Struct):
    """When a task's download began and its upload tail began and ended; None where no such phase was reported."""

    download_ns: int | None = None
    tail_ns: int | None = None
    tail_end_ns: int | None = None


class Placed(msgspec.Struct):
    """One device in one session.

    Attributes:
        pieces: in the order of their starts. Phases of an incarnation whose clock was never measured are
            left out: their times are not known.
        away: (from, to) when the device was away: from its last report, if that incarnation did not come back.
        tasks: what is known of the start and end of each task.
    """

    pieces: list[Piece]
    away: list[tuple[int, int]]
    tasks: dict[str, TaskSpan]
    uncertainty_ns: int


def place(device: DeviceFacts) -> Placed:
    """All phases of a device in a session, on the orchestrator's clock. The result is kept on the device."""
    made_from = (len(device.phases), len(device.presence), sum(len(clock.knots) for clock in device.clocks.values()))
    if device.placed is not None and device.placed[0] == made_from and isinstance(device.placed[1], Placed):
        return device.placed[1]
    placed = _place(device)
    device.placed = made_from, placed
    return placed


def _place(device: DeviceFacts) -> Placed:
    """Most phases begin where the last one ended; such a moment is converted once."""
    pieces: list[Piece] = []
    last_word: dict[str, int] = {}
    at, was, seen, end = -1, 0, None, 0
    clock: Clock | None = None
    for incarnation, phase in device.phases:
        if incarnation != seen:
            seen, clock, at = incarnation, _clock_of(device, incarnation), -1
        if clock is None:
            continue
        start_ns, end_ns = phase.start_ns, phase.end_ns
        start = was if start_ns == at else clock.to_orchestrator(start_ns)
        at, was = end_ns, clock.to_orchestrator(end_ns)
        end = was if was > start else start
        pieces.append(Piece(start, end, end_ns - start_ns, phase.name, phase.task, phase.cpu_ns, phase.throttled_ns))
        if end > last_word.get(incarnation, 0):
            last_word[incarnation] = end
    pieces.sort(key=attrgetter("start_ns"))
    away = _away(device, last_word, pieces[0].start_ns if pieces else FOREVER)
    uncertainty = max((clock.uncertainty_ns for clock in device.clocks.values()), default=0)
    return Placed(pieces, away, _tasks(pieces), uncertainty)


def _clock_of(device: DeviceFacts, incarnation: str) -> Clock | None:
    if incarnation in device.clocks:
        return device.clocks[incarnation]
    return next(reversed(device.clocks.values()), None)


def _away(device: DeviceFacts, last_word: dict[str, int], first_ns: int) -> list[tuple[int, int]]:
    """When the device was away. Before its first join, or its first report, it is away too."""
    away: list[tuple[int, int]] = []
    events = device.presence
    online = bool(events) and not events[0][1]
    left, incarnation = 0, ""
    for index, (at, joined) in enumerate(events):
        if joined:
            if not online:
                away.append((left, min(at, first_ns) if left == 0 else at))
            elif incarnation not in ("", joined):
                away.append((min(at, last_word.get(incarnation, at)), at))
            online, incarnation = True, joined
        elif online:
            back = any(later == incarnation for _, later in events[index + 1 :])
            left, online = at if back else min(at, last_word.get(incarnation, at)), False
    if not online:
        away.append((left, FOREVER if events else first_ns))
    return away


def _tasks(pieces: list[Piece]) -> dict[str, TaskSpan]:
    tasks: dict[str, TaskSpan] = {}
    for piece in pieces:
        if piece.name not in ("download", "upload_tail"):
            continue
        span = tasks.setdefault(piece.task, TaskSpan())
        if piece.name == "upload_tail":
            span.tail_ns = piece.start_ns if span.tail_ns is None else span.tail_ns
            span.tail_end_ns = piece.end_ns
        elif span.download_ns is None:
            span.download_ns = piece.start_ns
    return tasks
