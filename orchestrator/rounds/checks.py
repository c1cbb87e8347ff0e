"""Checks what a device sends: a transfer before its bytes come, an update before it is merged."""

from __future__ import annotations

import math

from edgebed.errors import EdgebedError, RunError
from edgebed.methods.base import Method
from edgebed.methods.parts.aggregation import fault, impossible, moved, not_finite
from edgebed.models.staged import EXTRA, Weights, without_prefix
from edgebed.wire.messages import Assignment, Failure, Report, Update, Upload
from orchestrator.clock import now_ns
from orchestrator.rounds.bounds import extra_fault, report_fault, traffic_fault, update_bytes, upload_fault
from orchestrator.rounds.device_work import DeviceWork

MAY_NOT = "its update may not be merged"


def transfer_fault(
    method: Method, weights: Weights, work: DeviceWork, header: Upload | Update | Failure, size: int
) -> str:
    """Why this task cannot send such a transfer of `size` bytes, or ""."""
    match header:
        case Upload(_, _, batch):
            return upload_fault(work.bounds, batch, size)
        case Update(_, _, report):
            elapsed_s = (now_ns() - work.started_ns) / 1e9
            return report_fault(work.bounds, report, elapsed_s) or _size_fault(method, weights, work, report, size)
        case _:
            return f"it sent {size} bytes with the message that it failed" if size else ""


def _size_fault(method: Method, weights: Weights, work: DeviceWork, report: Report, size: int) -> str:
    try:
        most = most_bytes(method, weights, work, report)
    except EdgebedError as error:
        return str(error)
    return f"its update has {size} bytes; the weights asked for have at most {most}" if size > most else ""


def most_bytes(method: Method, weights: Weights, work: DeviceWork, report: Report) -> int:
    """Most bytes of the body of an update with this report. `weights`: the global ones at the start of the round."""
    names = method.update_names(work.task.assignment, report.notes)
    extra = method.extra(work.task.assignment).items()
    return update_bytes(
        [(n, work.sizes[n] if n in work.sizes else weights[n].nbytes) for n in names]
        + [(EXTRA + n, math.prod(stream.shape) * stream.dtype.itemsize) for n, stream in extra]
    )


def update_fault(
    method: Method, weights: Weights, work: DeviceWork, report: Report, tensors: Weights, most_moved: float | None
) -> tuple[str, str] | None:
    """Why an update may not be merged: how its device is out, and the reason. None where it may be merged; the weights
    and the extra of the update are in `work` then.

    Args:
        weights: the global ones at the start of the round.
        most_moved: `settings.RoundSettings.max_update_norm`.
    """
    assignment = work.task.assignment
    streams = "features" in assignment.uploads
    expected = method.count_uploads(assignment, report.batches) if streams else work.uploads
    if work.uploads != expected:
        return "refused", f"of its {expected} uploads {work.uploads} came"
    if why := traffic_fault(report, work.upload_bytes, work.download_bytes):
        return "refused", why
    # What the device was sent; for all other names, the global weights.
    reference = {**weights, **method.task_weights(weights, assignment)}
    try:
        update, work.extra = opened(method, reference, assignment, report, tensors)
    except EdgebedError as error:
        return ("diverged" if not_finite(tensors) else "refused"), f"{MAY_NOT}: {error}"
    if why := impossible(reference, update, work.bounds.batches):
        return "refused", f"{MAY_NOT}: {why}"
    work.weights = update
    far = moved(reference, update)
    work.moved = far if far < math.inf else None  # a model of zeros has no such measure, and no such limit
    if most_moved is not None and most_moved < far < math.inf:
        why = f"it is {far:.3g} times the norm of the weights away from them, max_update_norm is {most_moved:g}"
        return "refused", f"{MAY_NOT}: {why}"
    return None


def opened(
    method: Method, reference: Weights, assignment: Assignment, report: Report, tensors: Weights
) -> tuple[Weights, Weights]:
    """The weights of an update, and what it holds beside them. `reference`: what the device was sent; for all other
    names, the global weights. Raises EdgebedError: it does not hold what it must."""
    update = {name: value for name, value in tensors.items() if not name.startswith(EXTRA)}
    extra, names = without_prefix(tensors, EXTRA), method.update_names(assignment, report.notes)
    why = fault(reference, update, names) or extra_fault(method.extra(assignment), extra)
    if not why:
        encoded, update = update, method.decode_update(assignment, report, reference, update, extra)
        why = "" if update is encoded else fault(reference, update, reference.keys() & update)
    if why:
        raise RunError(why)
    return update, extra
