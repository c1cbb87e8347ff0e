"""Scenario, seed and devices -> what happens when to which device. Pure.

`planned_events` says it before the run. `Agenda` says it step by step while the run goes on, since only then is it
known when a round begins. Times are seconds of the scenario's clock, which are reported seconds.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence

import msgspec

from orchestrator.scenario.spec import LimitChange, ScenarioEvent
from orchestrator.scenario.traces import Playback, Sample, Trace

AWAY = ("cut", "freeze", "leave")
"""What `return` ends."""


class Scenario(msgspec.Struct, frozen=True):
    """Events with the traces that they name, by the event's place in the list."""

    events: tuple[ScenarioEvent, ...]
    traces: dict[int, tuple[Trace, ...]] = {}


class Planned(msgspec.Struct, frozen=True):
    """An event on one of its devices. `after_s` counts from the first round's start, or from the start of `round`;
    None: before that round is planned. `offset`: where its traces begin, as a share of their lengths; None: at
    `offset_s`."""

    device: str
    event: int
    after_s: float | None
    round: int | None = None
    offset: float | None = None


class Condition(msgspec.Struct, frozen=True):
    """What the effects in force make of a device: other limits than its own, and what else is the matter with it."""

    profile: str = ""  # its own
    limits: LimitChange | None = None
    link: bool = True
    running: bool = True
    present: bool = True
    rival_cpus: float = 0.0

    def share(self, cpus: float, threads: int) -> float:
        """Of a device's CPUs that its agent has: none while it is frozen, else what a rival leaves, or its share of all
        that is runnable, since the kernel divides a quota evenly.

        Args:
            cpus: of the device, before dilation; `threads`: of its agent. A rival has one for each CPU that it wants.
        """
        fair = threads / (threads + math.ceil(self.rival_cpus))
        return max(1 - self.rival_cpus / cpus, fair) if self.running else 0.0


class DueStep(msgspec.Struct, frozen=True):
    """An event begins on a device, goes on to the next sample of its trace, or is undone. `condition` holds from now
    on."""

    at_s: float
    device: str
    event: int
    kind: str  # as ScenarioEvent.kind; `rate`: a trace goes on
    begins: bool
    condition: Condition


def planned_events(scenario: Scenario, seed: int, profiles: Mapping[str, str]) -> tuple[Planned, ...]:
    """Every event on every device that it happens to, in the order of the events. `profiles`: by device, the name of
    its profile."""
    planned = []
    for number, event in enumerate(scenario.events):
        rng = random.Random(f"{seed}/scenario/{number}")
        for device in _devices(event, profiles, rng):
            offset = rng.random() if event.trace is not None and event.trace.offset_s == "random" else None
            planned.append(
                Planned(device, number, event.after_s if event.at_s is None else event.at_s, event.round, offset)
            )
    return tuple(planned)


def _devices(event: ScenarioEvent, profiles: Mapping[str, str], rng: random.Random) -> list[str]:
    if event.device is not None:
        return list(dict.fromkeys(event.named_devices))
    if event.profile is not None:
        return [name for name, profile in profiles.items() if profile == event.profile]
    count = max(1, int((event.share or 1.0) * len(profiles) + 0.5))
    return sorted(rng.sample(sorted(profiles), count))


class _Effect:
    """An event in force on a device."""

    def __init__(self, event: int, kind: str) -> None:
        self.event, self.kind = event, kind
        self.samples: dict[int, Sample | None] = {}  # of its traces, by their place


class Agenda:
    """What is still to come, and the effects in force.

    Args:
        planned: what `planned_events` gave.
        now_s: where the clock begins. What is over by then is left out.
        rounds: that are over: what they began and nothing ends is in force.

    Attributes:
        begun: rounds that have begun something: whether it was before they were planned, number, and when. With the
            same agenda and `go_on` it is as it was.
    """

    def __init__(self, scenario: Scenario, planned: Sequence[Planned], *, now_s: float = 0.0, rounds: int = 0) -> None:
        self._scenario = scenario
        self._rounds: dict[int, list[Planned]] = {}
        self._effects: dict[str, list[_Effect]] = {}
        self._heap: list[tuple[float, int, _Action]] = []
        self._count = 0
        self.begun: list[tuple[bool, int, float]] = []
        for one in planned:
            if one.round is None:
                self._push(one.after_s or 0.0, one)
            elif one.round > rounds:
                self._rounds.setdefault(one.round, []).append(one)
            elif scenario.events[one.event].for_s is None:
                self._push(0.0, one)
        self.caught_up = tuple(self._caught_up(now_s))

    def _caught_up(self, now_s: float) -> list[DueStep]:
        """The last step of every device until now: the conditions to begin with."""
        last = {step.device: step for step in self.due(now_s)} if now_s > 0 else {}
        return [step for step in last.values() if step.condition != Condition()]

    @property
    def next_s(self) -> float | None:
        """When something is due; None: nothing is, until another round begins."""
        return self._heap[0][0] if self._heap else None

    def before_round(self, number: int, now_s: float) -> list[DueStep]:
        """What happens before a round (from 1) is planned, including what is due by now. Concurrent rounds prepare
        a round several times before it begins; each event happens once."""
        self._take_round(True, number, now_s)
        return self.due(now_s)

    def round_began(self, number: int, now_s: float) -> None:
        self._take_round(False, number, now_s)

    def go_on(self, begun: Sequence[tuple[bool, int, float]], now_s: float) -> None:
        """Bring a new agenda to where another one was at `now_s`, whose `begun` is given."""
        for each in begun:
            self._take_round(*each)
        self.due(now_s)

    def _take_round(self, before: bool, number: int, now_s: float) -> None:
        """Plan what happens before a round is planned, or what follows its start."""
        waiting = self._rounds.pop(number, [])
        self._rounds[number] = [one for one in waiting if before and one.after_s is not None]
        if waiting:
            self.begun.append((before, number, now_s))
        for one in waiting:
            if before == (one.after_s is None):
                self._push(now_s + (one.after_s or 0.0), one)

    def due(self, now_s: float) -> list[DueStep]:
        """The steps until now, in the order of time; of equal times in the order of the events."""
        steps = []
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, action = heapq.heappop(self._heap)
            steps += self._take(at_s, action)
        return steps

    def _push(self, at_s: float, action: _Action) -> None:
        heapq.heappush(self._heap, (at_s, self._count, action))
        self._count += 1

    def _take(self, at_s: float, action: _Action) -> list[DueStep]:
        match action:
            case Planned():
                return self._begin(at_s, action)
            case _Turn(device, effect) if effect in self._effects.get(device, ()):
                self._turn(action)
                return [self._step(at_s, device, effect.event, "rate", True)]
            case _End(device, effect) if effect in self._effects.get(device, ()):
                self._effects[device].remove(effect)
                return [self._step(at_s, device, effect.event, effect.kind, False)]
        return []

    def _begin(self, at_s: float, planned: Planned) -> list[DueStep]:
        event, device = self._scenario.events[planned.event], planned.device
        effects = self._effects.setdefault(device, [])
        if event.kind == "return":
            effects[:] = [effect for effect in effects if effect.kind not in AWAY]
        else:
            effect = _Effect(planned.event, event.kind)
            effects.append(effect)
            for place, trace in enumerate(self._scenario.traces.get(planned.event, ())):
                self._play(planned, effect, place, trace, at_s)
            if event.for_s is not None:
                self._push(at_s + event.for_s, _End(device, effect))
        return [self._step(at_s, device, planned.event, event.kind, True)]

    def _play(self, planned: Planned, effect: _Effect, place: int, trace: Trace, at_s: float) -> None:
        choice = self._scenario.events[planned.event].trace
        if choice is None:
            return
        wanted = choice.offset_s if isinstance(choice.offset_s, float | int) else 0.0
        offset_s = wanted % trace.length_s if planned.offset is None else planned.offset * trace.length_s
        playback = Playback(trace, at_s, offset_s, choice.at_end == "loop")
        self._turn(_Turn(planned.device, effect, place, playback, playback.first_step))

    def _turn(self, turn: _Turn) -> None:
        """Take the sample of a step, and plan the next one."""
        playback, step = turn.playback, turn.step
        turn.effect.samples[turn.place] = playback.sample(step)
        if playback.sample(step) is not None and (playback.loop or step < len(playback.trace.samples)):
            following = msgspec.structs.replace(turn, step=step + 1)
            if not (playback.loop and len(playback.trace.samples) == 1):
                self._push(playback.begins_s(step + 1), following)

    def _step(self, at_s: float, device: str, event: int, kind: str, begins: bool) -> DueStep:
        return DueStep(at_s, device, event, kind, begins, self.condition(device))

    def condition(self, device: str) -> Condition:
        """Later effects win over earlier ones where both set the same limit."""
        profile, limits, away, rival = "", dict[str, float](), set[str](), 0.0
        for effect in self._effects.get(device, ()):
            event = self._scenario.events[effect.event]
            if isinstance(event.limits, str):
                profile, limits = event.limits, {}
            elif event.limits is not None:
                limits |= event.limits.named()
            for sample in effect.samples.values():
                if sample is not None:
                    limits |= sample.named()
                    away |= set() if sample.present else {"leave"}
            away |= {effect.kind} & set(AWAY)
            rival += event.compete_cpus or 0.0
        change = msgspec.convert(limits, LimitChange) if limits else None
        return Condition(profile, change, "cut" not in away, "freeze" not in away, "leave" not in away, rival)


class _Turn(msgspec.Struct, frozen=True):
    """A trace goes on to a step."""

    device: str
    effect: _Effect
    place: int
    playback: Playback
    step: int


class _End(msgspec.Struct, frozen=True):
    device: str
    effect: _Effect


_Action = Planned | _Turn | _End
