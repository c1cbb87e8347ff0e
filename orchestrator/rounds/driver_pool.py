"""Several rounds at once: a round driver for each; events of a device go to the driver of its round."""

from __future__ import annotations

from collections.abc import Callable

from edgebed.errors import RunError, TransferRefused
from edgebed.link.endpoint import ReceivedTransfer
from edgebed.wire.messages import Header
from orchestrator.rounds.driver import RoundDriver, RoundJob, RoundResult


class RoundRouter:
    """A `Driver` whose `run` may be called again, for other devices, while it runs.

    Args:
        make: makes a round driver with a server trainer of its own; called when all others are busy.
    """

    def __init__(self, make: Callable[[], RoundDriver]) -> None:
        self._make = make
        self._idle: list[RoundDriver] = []
        self._at_work: dict[str, RoundDriver] = {}  # by device

    async def run(self, job: RoundJob) -> RoundResult:
        """As `RoundDriver.run`. Raises RunError when a device is in another round."""
        devices = job.plan.assignments
        if busy := sorted(set(devices) & set(self._at_work)):
            raise RunError(
                f"round {job.number} is to begin with {busy[0]!r}, which is in another round",
                hint="the method's lanes must have no device in common",
            )
        driver = self._idle.pop() if self._idle else self._make()
        self._at_work |= dict.fromkeys(devices, driver)
        try:
            return await driver.run(job)
        finally:
            for device in devices:
                del self._at_work[device]
            self._idle.append(driver)

    # ---- events of the fleet ----

    def admit(self, peer: str, header: Header, size: int) -> None:
        driver = self._at_work.get(peer)
        if driver is None:
            raise TransferRefused(f"no round of {peer} is open: its task is over")
        driver.admit(peer, header, size)

    async def deliver(self, inbound: ReceivedTransfer) -> None:
        if (driver := self._at_work.get(inbound.peer)) is not None:
            await driver.deliver(inbound)

    def progress(self, device: str) -> None:
        if (driver := self._at_work.get(device)) is not None:
            driver.progress(device)

    def heard(self, device: str, moved: bool, task: str, phase: str) -> None:
        if (driver := self._at_work.get(device)) is not None:
            driver.heard(device, moved, task, phase)

    def lost(self, device: str, why: str) -> None:
        if (driver := self._at_work.get(device)) is not None:
            driver.lost(device, why)
