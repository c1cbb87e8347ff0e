"""The account of the uploads of one task: which are held back, what failed, and the time on the link. Pure.

The queues of the agent (threads) and of the simulator (virtual time) wait for free slots, each in its own way. All else
is here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgebed.device.core import Cancelled
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.errors import EdgebedError, TransferError
from edgebed.wire.messages import Upload

Encoded = tuple[Upload, bytes | bytearray]


class UploadAccount:
    """The uploads of one task.

    Args:
        metrics: bytes, seconds on the link and seconds blocked are added here.
        hold: keep all uploads until the task has computed.
        now_s: seconds of the device's clock.

    Attributes:
        held: uploads that are kept back, in order.
    """

    def __init__(self, metrics: TaskMetrics, phases: PhaseLog, hold: bool, now_s: Callable[[], float]) -> None:
        self._metrics, self._phases, self._hold, self._now_s = metrics, phases, hold, now_s
        self.held = deque[Encoded]()
        self._error: EdgebedError | None = None
        self._sending, self._since = 0, 0.0

    def keep(self, header: Upload, body: bytes | bytearray) -> bool:
        """Keep the upload if the task holds its uploads back. Returns whether it was kept."""
        if self._hold:
            self.held.append((header, body))
        return self._hold

    def check(self) -> None:
        """Raises Cancelled or TransferError if an upload could not be sent."""
        if isinstance(self._error, Cancelled):
            raise self._error
        if self._error is not None:
            raise TransferError(f"an upload could not be delivered: {self._error}")

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """While the training waits for a free slot."""
        start, before = self._now_s(), self._phases.enter("blocked")
        try:
            yield
        finally:
            self._phases.enter(before)
            self._metrics.blocked_s += self._now_s() - start

    @contextmanager
    def sending(self) -> Iterator[None]:
        """While an upload is being sent. Its error is kept for `check`. Uploads may overlap; the seconds in which any
        is being sent count once."""
        if self._sending == 0:
            self._since = self._now_s()
        self._sending += 1
        try:
            yield
        except EdgebedError as error:
            self._error = self._error or error
        finally:
            self._sending -= 1
            if self._sending == 0:
                self._metrics.upload_s += self._now_s() - self._since

    def sent(self, size: int) -> None:
        """An upload of `size` bytes was acknowledged."""
        self._metrics.upload_bytes += size
