"""Several rounds at once: each has a round driver, which gets what comes from its devices."""

from __future__ import annotations

from collections.abc import Callable

from edgebed.errors import RunError
from orchestrator.fleet.control.run_fleet import RunFleet
from orchestrator.rounds.driver import RoundDriver, RoundJob, RoundResult


class DriverPool:
    """Lends a round driver to every round.

    Args:
        make: makes a round driver with a server trainer of its own; called when all others are busy.
    """

    def __init__(self, make: Callable[[], RoundDriver], fleet: RunFleet) -> None:
        self._make, self._fleet = make, fleet
        self._idle: list[RoundDriver] = []

    async def run(self, job: RoundJob) -> RoundResult:
        """As `RoundDriver.run`; may be called again, for other devices, while it runs. Raises RunError when a device is
        in another round."""
        devices = job.plan.assignments
        if busy := sorted(set(devices) & set(self._fleet.drivers)):
            raise RunError(
                f"round {job.number} is to begin with {busy[0]!r}, which is in another round",
                hint="the method's lanes must have no device in common",
            )
        driver = self._idle.pop() if self._idle else self._make()
        try:
            with self._fleet.driven(devices, driver):
                return await driver.run(job)
        finally:
            self._idle.append(driver)
