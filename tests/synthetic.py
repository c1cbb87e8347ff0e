"""A run that never took place, as records: known phase lengths, clocks that differ, a device that is lost and returns.

Pure: the same arguments give the same records. Times are nanoseconds; one millisecond is `MS`.
"""

from __future__ import annotations

import msgspec

from edgebed.wire.messages import Assignment, Report
from edgebed.wire.piece_times import Phase
from orchestrator.records import types as t
from orchestrator.records.host_records import ServerStep

MS = 1_000_000
START = 10_000 * MS
TICK = 5 * MS  # how long the orchestrator takes for anything


class Speed(msgspec.Struct, frozen=True):
    """What one device needs in a round, in milliseconds. `compute` and `encode` per batch; `blocked` once."""

    download: int = 100
    decode: int = 20
    compute: int = 100
    encode: int = 5
    blocked: int = 0
    tail: int = 50
    server: int = 30  # after the update, until its server half is done
    held: int = 0  # of `blocked` and `tail`, what the server half held the link back for


WEAK, MIDDLE, STRONG = Speed(compute=400, tail=100), Speed(compute=200, blocked=60), Speed()
FLEET = {"weak": WEAK, "middle": MIDDLE, "strong": STRONG}
BATCHES = 3
FEATURES, WEIGHTS, TASK, FRAMES = 1000, 5000, 4000, 60  # bytes; FRAMES: what frames add to a task


class Synthetic:
    """Builds the records of one run. `records` is the result."""

    def __init__(
        self,
        fleet: dict[str, Speed] | None = None,
        rounds: int = 4,
        *,
        method: str = "dtfl",
        dilation: float = 1.0,
        drift: float = 0.0,
        clock_every_round: bool = True,
        lost: tuple[int, str] | None = None,
        drawn: dict[int, tuple[str, ...]] | None = None,
        first_round: int = 0,
        finish: bool = True,
        accuracy: float = 0.2,
        target: float = 0.75,
        facts: bool = False,
    ) -> None:
        """`facts`: with what the records did not say in version 0.2: when uploads were taken and steps could begin."""
        self.fleet = FLEET if fleet is None else fleet
        self.records: list[t.Record] = []
        self.starts: list[int] = []
        self._drift, self._lost, self._drawn = drift, lost, drawn or {}
        self._offsets = {name: (index + 1) * 777_000 * MS for index, name in enumerate(self.fleet)}
        self._lives = dict.fromkeys(self.fleet, 1)
        self._cursor = dict.fromkeys(self.fleet, START - 500 * MS)  # start of the open phase, orchestrator's clock
        self._phases: dict[str, list[Phase]] = {name: [] for name in self.fleet}
        self._accuracy, self._facts = accuracy, facts
        self._begin(method, dilation, first_round, target)
        now = START
        for number in range(first_round, first_round + rounds):
            if clock_every_round and number > first_round:
                self._measure_clocks(now)
            now = self._round(number, now)
        if finish:
            self._put(t.RunFinished(now, "rounds done"))
            for name in self.fleet:
                self._phase(name, "waiting", "", now + TICK)
                self._report(name, now + TICK)

    # ---- small ----

    def _put(self, record: t.Record) -> None:
        self.records.append(record)

    def on_device(self, name: str, at: int) -> int:
        """The device's clock at an orchestrator's time."""
        return at + self._offsets[name] + int((at - START) * self._drift)

    def _incarnation(self, name: str) -> str:
        return f"{name}#{self._lives[name]}"

    def _phase(self, name: str, phase: str, task: str, until: int) -> None:
        start, end = self.on_device(name, self._cursor[name]), self.on_device(name, until)
        self._phases[name].append(Phase(phase, task, start, end, (end - start) // 2))
        self._cursor[name] = until

    def _report(self, name: str, at: int) -> None:
        phases, self._phases[name] = tuple(self._phases[name]), []
        self._put(t.DevicePhases(at, name, self._incarnation(name), phases))

    def _measure_clocks(self, at: int) -> None:
        for name in self.fleet:
            self._put(t.ClockOffset(at, name, self.on_device(name, at) - at, 2 * MS))

    def waiting_until(self, end: int) -> list[t.Record]:
        """More records: what the devices report when they waited on until `end`."""
        done = len(self.records)
        for name in self.fleet:
            if self._cursor[name] < end:
                self._phase(name, "waiting", "", end)
                self._report(name, end)
        more, self.records = self.records[done:], self.records[:done]
        return more

    # ---- the run ----

    def _begin(self, method: str, dilation: float, first_round: int, target: float) -> None:
        infos = tuple(
            t.DeviceInfo(name, f"profile-{name}", 0.5, 30_000_000, 30_000_000, 1024, 100, (60, 40))
            for name in self.fleet
        )
        self._put(
            t.RunStarted(
                at_ns=START - 400 * MS,
                wall="2026-01-02T03:04:05+00:00",
                run=f"synthetic-{method}",
                experiment="synthetic",
                method=method,
                seed=7,
                backend="local",
                enforcement="kernel",
                dilation=dilation,
                calibrated=True,
                resumed_from=first_round,
                target_accuracy=target,
                host={"cores": "2"},
                devices=infos,
            )
        )
        for name in self.fleet:
            self._join(name, START - 300 * MS, False)
            for quantity, error, passed in (("cpu busy", 0.01, True), ("uplink", -0.02, True)):
                requested = 0.5 if quantity == "cpu busy" else 30e6
                measured, unit = requested * (1 + error), "CPU" if quantity == "cpu busy" else "bit/s"
                self._put(t.Calibrated(START, name, quantity, "alone", requested, measured, unit, error, True, passed))
        self._put(t.CutProfiled(START - 100 * MS, 2, TASK, FEATURES, 0.1, 0.05))

    def _join(self, name: str, at: int, again: bool) -> None:
        self._put(t.DeviceJoined(at, name, self._incarnation(name), again))
        self._put(t.ClockOffset(at + 10 * MS, name, self.on_device(name, at) - at, 2 * MS))
        why = "rejoin" if again else "start"
        limits = (0.5, 30_000_000, 30_000_000)
        self._put(t.LimitsSet(at + 20 * MS, name, why, f"profile-{name}", *limits, *limits))

    def _round(self, number: int, start: int) -> int:
        """Records of one round; returns when the next may start."""
        self.starts.append(start)
        devices = tuple(sorted(self._drawn.get(number, tuple(self.fleet))))
        assignments = {
            name: Assignment(
                name, {"name": "tiny"}, 2, (1, 8, 8), 2 + number % 2, "head", uploads=("features", "weights")
            )
            for name in devices
        }
        predicted = dict.fromkeys(devices, 1.0)
        self._put(t.RoundStarted(start, number, 0.005, 0.001, devices, assignments, predicted))
        self._put(t.OrchestratorPhase(start, start + TICK, number, "plan"))
        ends = [self._device(number, name, start + TICK) for name in devices]
        merged = tuple(name for name in devices if (number, name) != self._lost)
        barrier = max(ends)
        now = barrier + TICK
        self._put(t.OrchestratorPhase(now, now + 20 * MS, number, "merge"))
        now += 20 * MS
        self._put(t.RoundFinished(now, number, (now - start) / 1e9, merged, "all done"))
        self._put(t.OrchestratorPhase(now, now + 40 * MS, number, "evaluation"))
        self._put(t.Evaluated(now + 40 * MS, number, min(1.0, self._accuracy * (number + 1)), 1.0 / (number + 1), 0.04))
        self._put(t.OrchestratorPhase(now + 40 * MS, now + 50 * MS, number, "checkpoint"))
        return now + 50 * MS + TICK

    def _device(self, number: int, name: str, sent: int) -> int:
        """One device's work; returns when the round need not wait for it any more."""
        speed, task = self.fleet[name], f"run/{number}/{name}"
        self._put(t.TaskSent(sent, number, name, task, TASK))
        now = sent + TICK
        self._phase(name, "waiting", "", now)
        for phase in ("download", "decode"):
            now += getattr(speed, phase) * MS
            self._phase(name, phase, task, now)
        self._put(t.TaskDelivered(now - speed.decode * MS, number, name, task, TASK + FRAMES))
        for batch in range(BATCHES):
            now = self._batch(number, name, batch, now, task)
            if (number, name) == self._lost and batch == 0:
                return self._die(number, name, now)
        if speed.blocked:
            now += speed.blocked * MS
            self._phase(name, "blocked", task, now)
        first, now = now, now + speed.tail * MS
        self._phase(name, "upload_tail", task, now)
        report = Report(100, BATCHES, 0.5, 0.1, 0.05, 0.0, TASK, 0.1, BATCHES * FEATURES, 0.2, speed.blocked / 1e3)
        self._put(t.UpdateReceived(now - MS, first, number, name, task, WEIGHTS, report))
        self._report(name, now)
        done = now + speed.server * MS
        seconds = (done - sent) / 1e9
        self._put(t.DeviceDone(done, number, name, seconds, 0.2, 1e6, 0.03, speed.held / 1e3))
        return done

    def _batch(self, number: int, name: str, batch: int, now: int, task: str) -> int:
        speed = self.fleet[name]
        for phase in ("compute", "encode"):
            now += getattr(speed, phase) * MS
            self._phase(name, phase, task, now)
        taken, ready = (now + 11 * MS, now + 12 * MS) if self._facts else (0, 0)
        begin = now + 13 * MS if self._facts else now + 10 * MS
        self._put(t.UploadReceived(now + 10 * MS, now, number, name, batch, FEATURES, taken))
        self._put(ServerStep(begin, now + 15 * MS, number, (name,), batch, ready))
        return now

    def _die(self, number: int, name: str, now: int) -> int:
        """Its last word was `now`; noticed 200 ms later; a new agent joins 300 ms after that, its clock another."""
        self._report(name, now)
        self._put(t.DeviceLeft(now + 200 * MS, name, "its process ended: signal 9"))
        self._put(t.DeviceOut(now + 200 * MS, number, name, "lost", "its process ended: signal 9"))
        self._lives[name] += 1
        self._offsets[name] -= 5_000_000 * MS
        self._cursor[name] = now + 450 * MS  # its process starts, and waits
        self._join(name, now + 500 * MS, True)
        return now + 200 * MS


def without(records: list[t.Record], device: str, phase: str, nth: int = 0) -> list[t.Record]:
    """The records with the nth reported phase of that name missing."""
    return _edit(records, device, phase, nth, lambda found: [])


def doubled(records: list[t.Record], device: str, phase: str, nth: int = 0) -> list[t.Record]:
    """The records with the nth reported phase of that name reported twice."""
    return _edit(records, device, phase, nth, lambda found: [found, found])


def _edit(records, device, phase, nth, change):  # type: ignore[no-untyped-def]
    result, seen = [], 0
    for record in records:
        if isinstance(record, t.DevicePhases) and record.device == device:
            phases = []
            for p in record.phases:
                hit = p.name == phase and seen == nth
                seen += p.name == phase
                phases += change(p) if hit else [p]
            record = msgspec.structs.replace(record, phases=tuple(phases))
        result.append(record)
    assert seen > nth, f"{device} has no {phase} number {nth}"
    return result


def overlapping(lanes: dict[str, tuple[dict[str, Speed], int]], **options: float) -> list[t.Record]:
    """An asynchronous run: every lane (its fleet, its number of rounds) goes on by itself, from the same moment on.
    Rounds are numbered as they begin; the records are in the order of time."""
    parts = {lane: Synthetic(fleet, rounds, **options) for lane, (fleet, rounds) in lanes.items()}  # type: ignore[arg-type]
    starts = sorted((at, lane, own) for lane, part in parts.items() for own, at in enumerate(part.starts))
    number = {(lane, own): index for index, (_, lane, own) in enumerate(starts)}
    end = max(record.at_ns for part in parts.values() for record in part.records if isinstance(record, t.RunFinished))
    first = next(iter(parts.values())).records[0]
    assert isinstance(first, t.RunStarted)
    infos = tuple(i for p in parts.values() for r in p.records if isinstance(r, t.RunStarted) for i in r.devices)
    merged: list[t.Record] = []
    for lane, part in parts.items():
        merged += [_in_lane(r, lane, number) for r in part.records if not isinstance(r, t.RunStarted | t.RunFinished)]
        merged += part.waiting_until(end + TICK)
    merged.sort(key=lambda r: r.end_ns if isinstance(r, ServerStep | t.OrchestratorPhase) else r.at_ns)
    return [msgspec.structs.replace(first, devices=infos), *merged, t.RunFinished(end, "rounds done")]


def _in_lane(record: t.Record, lane: str, number: dict[tuple[str, int], int]) -> t.Record:
    if not hasattr(record, "round"):
        return record
    more = {"lane": lane} if isinstance(record, t.RoundStarted) else {}
    return msgspec.structs.replace(record, round=number[lane, record.round], **more)
