"""Fits what the server of a calibration takes to the records of real runs: steps, turns, the orchestrator's work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median

from edgebed.wire.messages import Assignment
from orchestrator.records.run_index import RoundFacts, RunFacts
from orchestrator.records.types import ServerStep, UploadReceived
from orchestrator.references.layer_costs import WidthLaw
from orchestrator.references.lines import ratio, relative_law
from orchestrator.references.work_laws import WorkLaws, server_key
from orchestrator.simulation.costs import ServerTurns

WAITED_NS = 5_000_000
"""An upload that waited longer than this at the start of a round waited for its server half."""


def server_factors(runs: Sequence[RunFacts], reference: WorkLaws) -> tuple[dict[str, float], WidthLaw, float]:
    """Measured and reference seconds of server steps, each of all steps together, since a round waits for their sum.

    Returns measured ÷ reference by cut, of steps with one device, where the reference was timed; the law of all of
    them, for other cuts; and measured ÷ expected of steps with a group.
    """
    single: dict[str, list[tuple[float, float]]] = {}
    groups: list[tuple[float, list[Assignment]]] = []
    for run in runs:
        for _, facts in run.rounds():
            for step in facts.steps:
                work = [facts.started.assignments[d] for d in step.devices if d in facts.started.assignments]
                seconds = (step.end_ns - step.start_ns) / 1e9
                if len(work) > 1:
                    groups.append((seconds, work))
                elif work and (expected := reference.server_law(work[0]).seconds(work[0].batch_size)) > 0:
                    single.setdefault(server_key(work[0]), []).append((seconds, expected))
    factors = {} if reference.layers else {key: ratio(pairs) for key, pairs in single.items()}
    sums = [(sum(taken for taken, _ in pairs), sum(law for _, law in pairs), len(pairs)) for pairs in single.values()]
    other = relative_law([(1.0, law / count, taken / count) for taken, law, count in sums])

    def expected_s(work: Assignment) -> float:
        known = reference.server_law(work).seconds(work.batch_size)
        factor = factors.get(server_key(work))
        return other.call_s + known * other.unit_s if factor is None else known * factor

    pairs = [(seconds, sum(map(expected_s, work))) for seconds, work in groups]
    return factors, other, ratio(pairs) if sum(expected for _, expected in pairs) > 0 else 1.0


def server_turns(runs: Sequence[RunFacts]) -> ServerTurns:
    """Seconds to make a half: from the first task sent to the first step, over the number of halves, where an upload
    waited for that. Seconds of a turn: mean of the gaps between two steps where the second one had waited."""
    making, gaps = [], []
    for run in runs:
        for _, facts in run.rounds():
            steps = sorted(facts.steps, key=lambda step: step.start_ns)
            if not steps:
                continue
            gaps += [
                (b.start_ns - a.end_ns) / 1e9 for a, b in pairwise(steps) if 0 < b.ready_ns < a.end_ns < b.start_ns
            ]
            sent, ready = min(each.at_ns for each in facts.sent.values()), steps[0].ready_ns
            if ready - min(each.at_ns for ups in facts.uploads.values() for each in ups) > WAITED_NS:
                making.append((ready - sent) / 1e9 / len({step.devices for step in steps}))
    return ServerTurns(median(making) if making else 0.0, mean(gaps) if gaps else 0.0)


def found_idle(facts: RoundFacts, device: str) -> list[tuple[UploadReceived, ServerStep]]:
    """A device's uploads that found the server idle, each with its step. The first upload is left out, because it may
    have waited for its server half to be created."""
    steps = {step.batch: step for step in facts.steps if step.devices == (device,)}
    pairs = [(upload, steps[upload.batch]) for upload in facts.uploads.get(device, ()) if upload.batch in steps]
    return [
        (upload, step)
        for upload, step in pairs
        if upload.batch > 0
        and not any(other.start_ns < step.start_ns and other.end_ns > upload.at_ns for other in facts.steps)
    ]


def orchestrator_work(runs: Sequence[RunFacts]) -> dict[str, float]:
    """Median seconds by kind. `encode`: from the end of a step to the start of its reply's transfer; where there was no
    reply, from the arrival of an upload to its tensors, since both are one small job in a worker thread."""
    seconds: dict[str, list[float]] = {}
    decoded: list[float] = []
    for run in runs:
        for _, facts in run.rounds():
            for phase in facts.own:
                seconds.setdefault(phase.name, []).append((phase.end_ns - phase.start_ns) / 1e9)
                if phase.name == "plan" and facts.sent:
                    first = min(sent.at_ns for sent in facts.sent.values())
                    seconds.setdefault("dispatch", []).append(max(0.0, (first - phase.end_ns) / 1e9))
            ends = {(device, step.batch): step.end_ns for step in facts.steps for device in step.devices}
            for reply in (reply for replies in facts.replies.values() for reply in replies):
                if (reply.device, reply.batch) in ends:
                    seconds.setdefault("encode", []).append((reply.first_ns - ends[reply.device, reply.batch]) / 1e9)
            pairs = [pair for device in facts.uploads for pair in found_idle(facts, device)]
            decoded += [(step.ready_ns - upload.at_ns) / 1e9 for upload, step in pairs if step.ready_ns]
    if decoded:
        seconds.setdefault("encode", decoded)
    return {name: median(values) for name, values in seconds.items()}
