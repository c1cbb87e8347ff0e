"""Plays the scenario of a run: a clock, the steps that are due, and what became of them as records. The same code plays
on a real fleet and on a simulated one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from edgebed.errors import EdgebedError, in_words
from orchestrator.clock import now_ns
from orchestrator.fleet.control.run_fleet import Applied, RunFleet
from orchestrator.records.types import Fault, OrchestratorPhase, Record, RoundFinished, RoundStarted, ScenarioStep
from orchestrator.scenario.agenda import Agenda, Condition, DueStep, Scenario, planned_events
from orchestrator.scenario.spec import LimitChange, ScenarioEvent

CHANGES_RATES = ("limits", "trace", "rate")


class Clock:
    """Reported seconds of the run's own work: it stands still while the orchestrator evaluates and saves a round."""

    def __init__(self, dilation: float, elapsed_s: float) -> None:
        self._dilation, self._elapsed_s = dilation, elapsed_s
        self._since_ns: int | None = None

    @property
    def runs(self) -> bool:
        return self._since_ns is not None

    def start(self, at_ns: int) -> None:
        if self._since_ns is None:
            self._since_ns = at_ns

    def stop(self) -> None:
        self._elapsed_s, self._since_ns = self.now_s(), None

    def state(self) -> tuple[float, int | None]:
        return self._elapsed_s, self._since_ns

    def restore(self, state: tuple[float, int | None]) -> None:
        self._elapsed_s, self._since_ns = state

    def now_s(self) -> float:
        since = 0 if self._since_ns is None else now_ns() - self._since_ns
        return self._elapsed_s + since / 1e9 / self._dilation

    def at_ns(self, at_s: float) -> int:
        """When the clock shows `at_s`, if it goes on."""
        return now_ns() + round((at_s - self.now_s()) * self._dilation * 1e9)

    def loop_s(self, at_s: float) -> float:
        """The event loop's clock when this one, which runs, shows `at_s`."""
        return (self._since_ns or 0) / 1e9 + (at_s - self._elapsed_s) * self._dilation


class PlayerState(msgspec.Struct, frozen=True):
    """Where a scenario is, in a simulation that is saved and goes on: its clock, what rounds have begun of it, the
    rounds in hand, and the devices that it has touched."""

    clock: tuple[float, int | None]
    begun: list[tuple[bool, int, float]]
    lanes: int
    touched: list[str]


class ScenarioPlayer:
    """Plays a scenario on the devices of one run.

    Args:
        profiles: by device, the name of its profile in the fleet file.
        elapsed_s: of the rounds that an earlier session has done, not divided by the dilation.
        rounds: that an earlier session has done.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        profiles: Mapping[str, str],
        devices: RunFleet,
        record: Callable[[Record], None],
        *,
        elapsed_s: float = 0.0,
        rounds: int = 0,
    ) -> None:
        elapsed_s /= devices.dilation
        self._scenario, self._devices, self._record = scenario, devices, record
        self._planned = planned_events(scenario, seed, profiles)
        self._agenda = Agenda(scenario, self._planned, now_s=elapsed_s, rounds=rounds)
        self._clock = Clock(devices.dilation, elapsed_s)
        self._caught_up = list(self._agenda.caught_up)
        self._lanes = 0
        self._changed = asyncio.Event()
        self._waiting: dict[str, list[DueStep]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._touched: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._paused = False

    def state(self) -> PlayerState:
        return PlayerState(self._clock.state(), list(self._agenda.begun), self._lanes, sorted(self._touched))

    def restore(self, state: PlayerState) -> None:
        """Take back what `state` gave: on a simulated fleet whose devices are in their conditions already."""
        self._clock.restore(state.clock)
        self._agenda = Agenda(self._scenario, self._planned)
        self._agenda.go_on(state.begun, self._clock.now_s())
        self._caught_up, self._lanes, self._touched = [], state.lanes, set(state.touched)
        if self._clock.runs:
            self._task = asyncio.ensure_future(self._play())

    async def before_round(self, number: int) -> None:
        """Do what happens before a round (from 0) is planned. Returns when it is in force."""
        await self._go_on()
        steps, self._caught_up = self._caught_up, []
        self._take([*steps, *self._agenda.before_round(number + 1, self._clock.now_s())])
        await self.settled()
        self._clock.start(now_ns())
        self._task = self._task or asyncio.ensure_future(self._play())

    def on_record(self, record: Record) -> None:
        """The clock follows the records of the rounds."""
        match record:
            case RoundStarted():
                self._clock.start(record.at_ns)
                self._lanes += 1
                self._agenda.round_began(record.round + 1, self._clock.now_s())
            case RoundFinished():
                self._lanes -= 1
                if not self._lanes:
                    self._clock.stop()
            case OrchestratorPhase(name="checkpoint"):
                self._clock.start(record.end_ns)
            case _:
                return
        self._changed.set()

    async def _play(self) -> None:
        reached_s = 0.0  # the clock may be a rounding behind it
        while True:
            self._changed.clear()
            if self._clock.runs:
                self._take(self._agenda.due(max(self._clock.now_s(), reached_s)))
            due_s = self._agenda.next_s if self._clock.runs else None
            try:
                async with asyncio.timeout_at(None if due_s is None else self._clock.loop_s(due_s)):
                    await self._changed.wait()
            except TimeoutError:
                reached_s = due_s or 0.0

    def _take(self, steps: list[DueStep]) -> None:
        """Hand steps to the workers of their devices: one device may take long without delaying the others."""
        for step in steps:
            self._touched.add(step.device)
            self._waiting.setdefault(step.device, []).append(step)
            if step.device not in self._workers:
                self._workers[step.device] = asyncio.ensure_future(self._work(step.device))

    async def _work(self, device: str) -> None:
        try:
            await self._carry_out(device)
        finally:
            del self._workers[device]

    async def _carry_out(self, device: str) -> None:
        """Bring a device into the condition of its last step that waits: conditions are whole, so none is missed."""
        while steps := self._waiting.pop(device, []):
            applied, error = await self._put(device, steps[-1].condition)
            at_ns = now_ns()
            for step in steps:
                late = step.at_s < steps[-1].at_s and not error
                self._record(self._told(step, at_ns, applied, TOO_LATE if late else error))
            if error:
                self._record(Fault(at_ns, device, f"the scenario could not be carried out: {error}"))

    async def _put(self, device: str, condition: Condition) -> tuple[Applied, str]:
        try:
            return await self._devices.put(device, condition), ""
        except EdgebedError as error:
            return Applied(), in_words(error)

    def _told(self, step: DueStep, at_ns: int, applied: Applied, error: str) -> ScenarioStep:
        limits = self._devices.limits[step.device] if step.kind in CHANGES_RATES else None
        return ScenarioStep(
            at_ns=at_ns,
            asked_ns=min(at_ns, self._clock.at_ns(step.at_s)),
            device=step.device,
            event=step.event,
            kind=step.kind,
            begins=step.begins,
            asked=in_short(self._scenario.events[step.event], step),
            held=applied.held,
            error=error,
            uplink_bit_s=limits.uplink_bit_s if limits else None,
            downlink_bit_s=limits.downlink_bit_s if limits else None,
            held_uplink_bit_s=applied.uplink_bit_s,
            held_downlink_bit_s=applied.downlink_bit_s,
        )

    async def pause(self) -> None:
        """Give the fleet back as it was, for the rounds of other runs. The next round of this run goes on from here."""
        self._clock.stop()
        self._changed.set()
        await self.settled()
        await self._undo()
        self._paused = True

    async def _go_on(self) -> None:
        """After a pause: the conditions that the effects in force ask for."""
        if self._paused:
            self._paused = False
            await asyncio.gather(*(self._put_or_tell(name, self._agenda.condition(name)) for name in self._touched))

    async def settled(self) -> None:
        """Returns when every step that was due is in force, or has failed."""
        while self._workers:
            await asyncio.gather(*self._workers.values())

    async def close(self) -> None:
        """End the scenario, and undo what is in force, so that the next run finds the fleet as it was."""
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()
        await asyncio.gather(*self._workers.values(), return_exceptions=True)
        if not self._paused:
            await self._undo()

    async def _undo(self) -> None:
        await asyncio.gather(*(self._put_or_tell(name, Condition()) for name in sorted(self._touched)))
        await self._devices.all_back()

    async def _put_or_tell(self, device: str, condition: Condition) -> None:
        _, error = await self._put(device, condition)
        if error:
            self._record(Fault(now_ns(), device, f"the scenario could not be carried out: {error}"))


TOO_LATE = "a later step was due before this one could be done"


def in_short(event: ScenarioEvent, step: DueStep) -> str:
    """A step in words, with what is asked before dilation."""
    if not step.begins:
        return f"{WORDS[event.kind]} is over"
    limits = step.condition.limits
    words = WORDS[event.kind]
    if event.kind == "compete":
        words = f"{words} {event.compete_cpus:g} CPUs"
    elif event.kind == "trace" or (event.kind == "limits" and not isinstance(event.limits, str)):
        words = f"{words}: {_named(limits)}" if limits is not None else words
    elif event.kind == "limits":
        words = f"{words}: profile {event.limits}"
    return words if event.for_s is None or event.kind == "trace" else f"{words}, for {event.for_s:g} s"


WORDS = {
    "cut": "link cut",
    "freeze": "frozen",
    "leave": "left",
    "return": "return",
    "limits": "other limits",
    "compete": "a rival that wants",
    "trace": "trace",
}

UNITS = {"cpus": "CPU", "uplink_mbit_s": "Mbit/s up", "downlink_mbit_s": "Mbit/s down", "memory_mib": "MiB"}


def _named(limits: LimitChange) -> str:
    return ", ".join(f"{value:.4g} {UNITS.get(key, 'ms')}" for key, value in limits.named().items())
