"""What a device measures during a task, and the report that it makes of it. Pure."""

from __future__ import annotations

from edgebed.device.core import Result
from edgebed.device.pieces import Pieces
from edgebed.wire.messages import Report


class TaskMetrics:
    """Bytes and seconds of one task on the device's clock; the fields are those of `Report`. The drivers of the core
    and `uploads.UploadAccount` add to them."""

    def __init__(self, download_bytes: int = 0, download_s: float = 0.0) -> None:
        self.download_bytes, self.download_s = download_bytes, download_s
        self.compute_s = self.compute_cpu_s = self.encode_s = self.encode_cpu_s = 0.0
        self.blocked_s = self.reply_s = self.upload_s = 0.0
        self.upload_bytes = 0
        self.cpu_s = self.quota_s = 0.0
        self.pieces = self.pieces_in_quota = 0

    def count_piece(self, cpu_s: float, quota_s: float) -> None:
        """A batch or a request is done, with so much CPU time of all threads. `quota_s`: what one period gives."""
        self.cpu_s += cpu_s
        self.quota_s = quota_s
        self.pieces += 1
        self.pieces_in_quota += cpu_s <= quota_s

    def report(
        self,
        result: Result,
        throttled_s: float | None = None,
        memory_mib: float = 0.0,
        delayed_s: float | None = None,
        work: Pieces | None = None,
        late_s: float = 0.0,
    ) -> Report:
        """Call it when every upload has been acknowledged, so that bytes and seconds of the link belong together.

        Args:
            throttled_s: seconds for which the quota stopped the device; None where it cannot be read.
            memory_mib: resident memory; 0 where it cannot be read.
            delayed_s: seconds for which its threads were ready and did not run; None where it cannot be read.
            work: the pieces of the task; None where nobody measures them.
            late_s: by which the update came later than from a device of the reference's speed.
        """
        return Report(
            samples=result.samples,
            batches=result.batches,
            loss=result.loss,
            notes=result.notes,
            throttled_s=throttled_s,
            memory_mib=memory_mib,
            delayed_s=delayed_s,
            work=work.times() if work is not None else (),
            reference_s=work.reference_s if work is not None else {},
            late_s=late_s,
            **vars(self),
        )
