"""What a device may send in one task, as its assignment has it: checked before memory or time is spent on it. Pure.

A device is given a shard, a cut and a schedule, so the number of its uploads, the shape of each and the bytes of its
update are known before it begins. What does not fit is refused with the reason, and costs that device its round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from edgebed.errors import short
from edgebed.methods.base import Method, Stream
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment, Report
from edgebed.wire.order import batch_bounds

HEADER_BYTES = 4096
TENSOR_BYTES = 512
"""For the header of a body, and for the entry of one tensor in it, beside the name."""

MOST_CORES = 1024
"""CPU seconds of a device are at most so many times the seconds on the wall."""

MOST_NOTES = 64
MOST_TEXT = 500
"""Characters that are kept of a text that a device sends."""

MOST_MEMORY_MIB = float(1 << 24)

_CHECKED = ("samples", "batches", "loss", "notes")
"""Numbers of a report that `report_fault` looks at by themselves."""


class Bounds(msgspec.Struct, frozen=True):
    """Of one device in one task.

    Attributes:
        samples: of its shard, as the orchestrator cut it.
        batches: that it trains on.
        uploads: that it makes; 0 where it sends nothing but its update.
        rows: samples of one upload, at most.
        rows_of: samples of the upload of this number.
        streams: the tensors of an upload, by name.
        upload_bytes: of one upload, encoded or decoded.
    """

    samples: int
    batches: int
    uploads: int
    rows: int
    rows_of: Callable[[int], int]
    streams: Mapping[str, Stream]
    upload_bytes: int


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
    return bare + bare // 64  # what does not compress grows a little


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
    """Why the tensors of this upload are none that its cut can give, or ""."""
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


def _names(names: Iterable[str]) -> str:
    return short(", ".join(sorted(names))) or "nothing"


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
    if not math.isfinite(report.loss):
        return f"it reports a loss of {report.loss}"
    return _amount_fault(report, elapsed_s) or _note_fault(report.notes)


def _amount_fault(report: Report, elapsed_s: float) -> str:
    """Every number of the report but counts and loss; what it is stands at the end of its name."""
    wall_s = 1.05 * elapsed_s + 1  # clocks differ a little
    most = {"_cpu_s": MOST_CORES * wall_s, "throttled_s": MOST_CORES * wall_s, "_s": wall_s, "_mib": MOST_MEMORY_MIB}
    for name in report.__struct_fields__:
        value = getattr(report, name)
        if name in _CHECKED or value is None:
            continue
        limit = next((most[ending] for ending in most if name.endswith(ending)), math.inf)
        if not (math.isfinite(value) and 0 <= value <= limit):
            return f"it reports {name} = {value:g}, {elapsed_s:.1f} s after it was sent the task"
    return ""


def _note_fault(notes: Mapping[str, float]) -> str:
    if len(notes) > MOST_NOTES or any(len(name) > MOST_TEXT for name in notes):
        return f"it reports {len(notes)} notes; {MOST_NOTES} of {MOST_TEXT} characters are allowed"
    for name, value in notes.items():
        if not math.isfinite(value):
            return f"it reports {name} = {value}"
    return ""


def traffic_fault(report: Report, came_bytes: int, went_bytes: int) -> str:
    """Why the bytes of a report cannot be true, or "".

    Args:
        came_bytes: what its uploads had on the wire.
        went_bytes: what its task had on the wire.
    """
    for name, value, seen in (
        ("upload_bytes", report.upload_bytes, came_bytes),
        ("download_bytes", report.download_bytes, went_bytes),
    ):
        if value > 2 * seen + (1 << 20):
            return f"it reports {name} = {value}, {seen} were seen"
    return ""
