"""Several rounds at once: each has a round driver, which gets what comes from its devices."""

from __future__ import annotations

from collections.abc import Callable

from edgebed.errors import RunError
from orchestrator.fleet.control.run_fleet import RunFleet
from orchestrator.rounds.driver import RoundDriver
from orchestrator.rounds.job import RoundJob, RoundResult
from orchestrator.training.server import HalfTrainer


class DriverPool:
    """Makes a round driver for every round, with a server trainer that has no other round meanwhile. `make_trainer`:
    called when all trainers have a round."""

    def __init__(
        self,
        make_trainer: Callable[[], HalfTrainer],
        make_driver: Callable[[HalfTrainer, RoundJob], RoundDriver],
        fleet: RunFleet,
    ) -> None:
        self._make_trainer, self._make_driver, self._fleet = make_trainer, make_driver, fleet
        self._idle: list[HalfTrainer] = []

    async def run(self, job: RoundJob) -> RoundResult:
        """As `RoundDriver.run`; may be called again, for other devices, while it runs. Raises RunError when a device is
        in another round."""
        devices = job.plan.assignments
        if busy := sorted(set(devices) & set(self._fleet.drivers)):
            raise RunError(
                f"round {job.number} is to begin with {busy[0]!r}, which is in another round",
                hint="the method's lanes must have no device in common",
            )
        trainer = self._idle.pop() if self._idle else self._make_trainer()
        driver = self._make_driver(trainer, job)
        try:
            with self._fleet.driven(devices, driver):
                return await driver.run()
        finally:
            self._idle.append(trainer)
