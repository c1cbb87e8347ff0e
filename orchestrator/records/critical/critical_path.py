"""What bounded a round: the seconds of its critical path by what they were spent on. Pure.

The path goes backwards from the end of a round, through whatever each step waited for (`round_graph`). Its seconds add
up to the round. Words for the bounds are in `vocabulary.BOUNDS`:

    cpu, uplink, downlink    of one device; cpu also while its quota held up a transfer
    server, turn             a server half worked; another half had the trainer's slot, or the step was handed over
    host                     the orchestrator: planning, decoding, merging; and CPU that a device did not get
    broker                   of a transfer, what neither its link nor its device explains
    deadline                 the round lasted until a deadline, whatever the devices did
    lost                     a device that left, until it was noticed
    unknown                  a device reported nothing for this time
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from orchestrator.records.critical.event_graph import Bound, EventGraph, sums
from orchestrator.records.critical.round_graph import graph_of
from orchestrator.records.critical.round_jobs import SessionFacts
from orchestrator.records.run_index import RoundFacts, RunFacts
from orchestrator.records.timeline.timeline import RoundTimeline

NEAR = 0.05
"""A path that would have ended so much of the round earlier is a near-tie; a shorter gap makes no straggler."""

LEAST = 0.01
"""[ours] A bound of a smaller share of a round is not followed up: no what-if, no near-tie."""

SERVERS = ("server", "turn")


class RoundPath(msgspec.Struct):
    """The critical path of one round.

    Attributes:
        bounds: nanoseconds; they add up to the round.
        near: bounds of near-ties that are not on the path with as much.
        rule: what released the round: "" (all were done), `enough`, `deadline`, `quorum` or `budget`.
    """

    graph: EventGraph
    bounds: dict[Bound, int]
    near: list[Bound]
    rule: str

    def share(self, bound: Bound) -> float:
        whole = sum(self.bounds.values())
        return self.bounds.get(bound, 0) / whole if whole else 0.0


class Paths:
    """Finds the paths of a run's rounds."""

    def __init__(self, run: RunFacts) -> None:
        self._sessions = {id(facts): session for session, facts in run.rounds()}
        self._facts: dict[int, SessionFacts] = {}

    def of(self, timeline: RoundTimeline) -> RoundPath | None:
        """None where the records do not tell: `round_graph.lacks` says why."""
        session = self._sessions[id(timeline.facts)]
        if id(session) not in self._facts:
            self._facts[id(session)] = SessionFacts(session)
        graph = graph_of(timeline, self._facts[id(session)])
        return None if graph is None else path_of(graph, timeline.facts)


def path_of(graph: EventGraph, facts: RoundFacts) -> RoundPath:
    bounds = sums(graph.path())
    whole = max(1, graph.end_ns - graph.start_ns)
    beside = graph.near(round(NEAR * whole))
    near = [bound for bound, length in beside.items() if length >= NEAR * whole and bounds.get(bound, 0) < length]
    near.sort(key=lambda bound: -beside[bound])
    return RoundPath(graph, bounds, near, _rule(facts, bounds))


def _rule(facts: RoundFacts, bounds: Mapping[Bound, int]) -> str:
    why = facts.finished.why if facts.finished is not None else ""
    if why == "deadline" and not any(bound.what == "deadline" for bound in bounds):
        return "quorum"
    return why if why in ("deadline", "enough", "budget") else ""


def with_lost_cpu(
    bounds: Mapping[Bound, int], worked_ns: Mapping[str, int], lost_s: Mapping[str, float | None]
) -> dict[Bound, int]:
    """The bounds with the CPU that devices did not get as the host's.

    Args:
        worked_ns: of each device in its own work.
        lost_s: by how much each was later, as `disturbance.HostOfRound`.
    """
    found = dict(bounds)
    for bound, length in bounds.items():
        lost, worked = lost_s.get(bound.whose), worked_ns.get(bound.whose, 0)
        if bound.what == "cpu" and lost and worked:
            moved = round(length * min(1.0, lost * 1e9 / worked))
            found[bound] -= moved
            found[Bound("host")] = found.get(Bound("host"), 0) + moved
    return found


# ---- why a device was late ----


def reason(path: RoundPath, device: str) -> str:
    """What the path of a round spent most on, of what belongs to the device or to its server half: cpu, uplink,
    downlink or server; "" where others were more than those."""
    causes: dict[str, int] = {}
    for bound, length in path.bounds.items():
        cause = "server" if bound.what in SERVERS else bound.what if bound.whose == device else ""
        causes[cause] = causes.get(cause, 0) + length
    why = max(causes, key=lambda cause: causes[cause], default="")
    return why if why in ("cpu", "uplink", "downlink", "server") else ""


# ---- what devices waited for ----

WAITS = ("server", "link", "others", "host", "cpu", "unknown")
"""Causes of a device's waits. `cpu`: its own quota held up a transfer."""

_PLAIN = {
    "server_wait": "server",
    "wait_for_others": "others",
    "left_out": "others",
    "dispatch": "host",
    "plan": "host",
    "merge": "host",
    "orchestrator": "host",
}
_FOLLOWED = ("reply_wait", "blocked", "upload_tail")


def waits_of(timeline: RoundTimeline, device: str, path: RoundPath | None, end_ns: int) -> dict[str, int]:
    """Nanoseconds that a device waited in a round until `end_ns`, by cause: its waits for replies, for a place in the
    upload queue and for the end of its uploads by what their own paths were spent on; the others by their names."""
    found: dict[str, int] = {}
    own = timeline.devices[device]
    for index, segment in enumerate(own.segments):
        end = min(segment.end_ns, end_ns)
        if segment.start_ns >= end:
            break
        if segment.name in _FOLLOWED:
            name = ("update", device) if segment.name == "upload_tail" else (segment.name, device, index)
            _add(found, _followed(path, name, device, segment.start_ns, end))
        elif segment.name in _PLAIN:
            _add(found, [(_PLAIN[segment.name], end - segment.start_ns)])
    return found


def _followed(
    path: RoundPath | None, name: tuple[object, ...], device: str, start: int, end: int
) -> Iterable[tuple[str, int]]:
    left = end - start
    for part in path.graph.path(name, start) if path is not None else ():
        length = min(part.end_ns, end) - part.start_ns
        if length > 0:
            left -= length
            yield _wait(part.bound, device), length
    yield "unknown", left


def _wait(bound: Bound, device: str) -> str:
    if bound.what in SERVERS:
        return "server"
    if bound.whose not in ("", device) or bound.what == "deadline":
        return "others"
    return {"uplink": "link", "downlink": "link", "cpu": "cpu", "unknown": "unknown"}.get(bound.what, "host")


def _add(into: dict[str, int], more: Iterable[tuple[str, int]]) -> None:
    for name, length in more:
        if length > 0:
            into[name] = into.get(name, 0) + length
