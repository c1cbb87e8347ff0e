"""Limits of what a device may send in one task. Checked before memory or time is spent on a transfer. Pure.

Shard, cut and schedule give the number of uploads, the shape of each, and the bytes of the update before the task
begins. What does not fit is refused with a reason, and the device is out of the round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from edgebed.device.pieces import KINDS, MOST_KEPT, ORIGINS
from edgebed.errors import printable
from edgebed.methods.base import Method, Stream
from edgebed.methods.parts.aggregation import unfit
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment, Report
from edgebed.wire.order import batch_bounds
from edgebed.wire.texts import MOST_TEXT

HEADER_BYTES = 4096
TENSOR_BYTES = 512
"""Bytes allowed for the header of a body, and for the entry of each tensor in it besides the name."""

MOST_CORES = 1024
"""Most CPU seconds that a device may report per second of the clock."""

LONGEST_PERIOD_S = 1.0
"""Longest period of a CPU quota that the kernel takes."""

MOST_NOTES = 64
MOST_MEMORY_MIB = float(1 << 24)

MOST_PIECES = 256
"""Kinds and sizes of pieces of work that a report may name."""

_CHECKED = ("samples", "batches", "loss", "notes", "work", "reference_s")
"""Fields of a report that `report_fault` checks one by one."""


class Bounds(msgspec.Struct, frozen=True):
    """The limits for one device in one task.

    Attributes:
        samples: in its shard, as the orchestrator cut it.
        batches: number of batches that it trains on.
        uploads: number of uploads; 0 where it sends only its update.
        rows: most samples of one upload.
        rows_of: gives the samples of upload 0, 1, ….
        streams: the tensors of an upload, by name.
        upload_bytes: most bytes of one upload, encoded or decoded.
        held: it keeps a reference's time, and reports what its work takes there.
    """

    samples: int
    batches: int
    uploads: int
    rows: int
    rows_of: Callable[[int], int]
    streams: Mapping[str, Stream]
    upload_bytes: int
    held: bool = False


def bounds_of(method: Method, assignment: Assignment, samples: int) -> Bounds:
    """From the assignment and the samples of the device's shard."""
    sizes = [stop - start for start, stop in batch_bounds(samples, assignment.batch_size, assignment.max_batches)]
    batches = assignment.steps or assignment.epochs * len(sizes)
    uploads = method.count_uploads(assignment, batches)
    streams = method.streams(assignment) if uploads else {}
    rows_of = partial(method.upload_samples, sizes)
    rows = max(map(rows_of, range(min(uploads, len(sizes)))), default=0)
    return Bounds(samples, batches, uploads, rows, rows_of, streams, upload_bytes(streams, rows))


def upload_bytes(streams: Mapping[str, Stream], rows: int) -> int:
    """Most bytes of an upload in any number format, compressed or not."""
    bare = HEADER_BYTES
    for name, stream in streams.items():
        channels = stream.shape[0] if stream.shape else 1
        scales = 2 * 8 * max(1, channels)  # of uint8
        bare += rows * math.prod(stream.shape) * stream.dtype.itemsize + scales + 3 * (TENSOR_BYTES + len(name))
    return bare + bare // 64  # compression makes some data slightly larger


def update_bytes(sizes: Iterable[tuple[str, int]]) -> int:
    """Most bytes of an update of the weights of these names and bytes."""
    return HEADER_BYTES + sum(size + TENSOR_BYTES + len(name) for name, size in sizes)


# ---- uploads ----


def upload_fault(bounds: Bounds, batch: int, size: int) -> str:
    """Why an upload of `size` bytes is not taken, or ""."""
    if not bounds.uploads:
        return f"it sent upload {batch}, and its assignment has none"
    if not 0 <= batch < bounds.uploads:
        return f"it sent upload {batch}; its {bounds.batches} batches make {bounds.uploads} uploads, from 0"
    if size > bounds.upload_bytes:
        return f"upload {batch} has {size} bytes; one of {bounds.rows} samples has at most {bounds.upload_bytes}"
    return ""


def misfit(bounds: Bounds, batch: int, tensors: Weights) -> str:
    """Why these tensors cannot be this upload, or ""."""
    if set(tensors) != set(bounds.streams):
        return f"it holds {_names(tensors)} instead of {_names(bounds.streams)}"
    for name, stream in bounds.streams.items():
        value = tensors[name]
        if value.ndim == 0 or tuple(value.shape[1:]) != stream.shape or value.dtype != stream.dtype:
            want = ", ".join(("B", *map(str, stream.shape)))
            return f"{name} is {value.dtype} {tuple(value.shape)} instead of {stream.dtype} ({want})"
    rows = {len(tensors[name]) for name in bounds.streams}
    if rows != {bounds.rows_of(batch)}:
        return (
            f"its tensors are of {', '.join(map(str, sorted(rows)))} samples, its batch is of {bounds.rows_of(batch)}"
        )
    return ""


def extra_fault(streams: Mapping[str, Stream], extra: Weights) -> str:
    """Why an update may not hold these tensors beside its weights, or ""."""
    if set(extra) != set(streams):
        return f"beside weights it holds {_names(extra)} instead of {_names(streams)}"
    for name, stream in streams.items():
        value = extra[name]
        if tuple(value.shape) != stream.shape or value.dtype != stream.dtype:
            return f"{name} is {value.dtype} {tuple(value.shape)} instead of {stream.dtype} {stream.shape}"
    return unfit(extra)


def _names(names: Iterable[str]) -> str:
    return printable(", ".join(sorted(names))) or "nothing"


# ---- reports ----


def report_fault(bounds: Bounds, report: Report, elapsed_s: float) -> str:
    """Why a report cannot be true, or "".

    Args:
        elapsed_s: since the task was sent.
    """
    if report.samples != bounds.samples:
        return f"it reports {report.samples} samples, its shard has {bounds.samples}"
    if not 0 <= report.batches <= bounds.batches:
        return f"it reports {report.batches} batches, its assignment has {bounds.batches}"
    return values_fault(report, elapsed_s) or _work_fault(bounds, report, elapsed_s)


def values_fault(report: Report, elapsed_s: float) -> str:
    """Why the numbers of a report cannot be true, whatever the task was, or ""."""
    if not math.isfinite(report.loss):
        return f"it reports a loss of {report.loss}"
    if len(report.work) > MOST_PIECES or not {each.kind for each in report.work} <= KINDS:
        return f"it reports {len(report.work)} pieces of work; {MOST_PIECES} of known kinds are allowed"
    if not set(report.reference_s) <= ORIGINS or any(
        not 0 <= value < math.inf for value in report.reference_s.values()
    ):
        return f"it reports {len(report.reference_s)} origins of reference seconds; {len(ORIGINS)} are known"
    return _amount_fault(report, elapsed_s) or _note_fault(report.notes)


def _amount_fault(report: Report, elapsed_s: float) -> str:
    """Checks the numbers other than counts and loss. The end of a field's name says its unit."""
    wall_s = 1.05 * elapsed_s + 1  # the device's clock may run slightly faster
    summed = dict.fromkeys(("cpu_s", "throttled_s", "delayed_s"), MOST_CORES * wall_s)  # over threads
    most = summed | {"quota_s": MOST_CORES * LONGEST_PERIOD_S, "_s": wall_s, "_mib": MOST_MEMORY_MIB}
    for name in report.__struct_fields__:
        value = getattr(report, name)
        if name in _CHECKED or value is None:
            continue
        limit = next((most[ending] for ending in most if name.endswith(ending)), math.inf)
        if not (math.isfinite(value) and 0 <= value <= limit):
            return f"it reports {name} = {value:g}, {elapsed_s:.1f} s after it was sent the task"
    return ""


def _note_fault(notes: Mapping[str, float]) -> str:
    if len(notes) > MOST_NOTES or any(len(name) > MOST_TEXT or not name.isprintable() for name in notes):
        return f"it reports {len(notes)} notes; {MOST_NOTES} of {MOST_TEXT} printable characters are allowed"
    for name, value in notes.items():
        if not math.isfinite(value):
            return f"it reports {name} = {value}"
    return ""


def _work_fault(bounds: Bounds, report: Report, elapsed_s: float) -> str:
    """Checks the pieces of work, and what they are said to take a reference."""
    most_s = 1.05 * elapsed_s + 1  # of one thread
    for each in report.work:
        if each.size < 0 or each.count < 1 or not 0 <= each.cpu_s <= most_s or len(each.each_us) > MOST_KEPT:
            return f"it reports {each.count} pieces {each.kind} of {each.size} in {each.cpu_s:g} s"
        if any(us < 0 for us in each.each_us):
            return f"it reports a piece {each.kind} of negative length"
    if bounds.held != bool(report.reference_s) or sum(report.reference_s.values()) > MOST_CORES * most_s:
        return f"it reports {sum(report.reference_s.values()):g} CPU s on a reference"
    return ""


def traffic_fault(report: Report, came_bytes: int, went_bytes: int) -> str:
    """Why the bytes of a report cannot be true, or "".

    Args:
        came_bytes: bytes of its uploads on the wire.
        went_bytes: bytes of its task on the wire.
    """
    for name, value, seen in (
        ("upload_bytes", report.upload_bytes, came_bytes),
        ("download_bytes", report.download_bytes, went_bytes),
    ):
        if value > 2 * seen + (1 << 20):
            return f"it reports {name} = {value}, {seen} were seen"
    return ""
