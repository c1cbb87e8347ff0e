"""Fits a calibration to the records of real runs. Only the reference laws are measured, on this host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median

import msgspec
import numpy as np
from scipy.optimize import nnls

from edgebed.errors import UsageError
from edgebed.methods.base import CutCost, real_work
from edgebed.wire.messages import Assignment, Codec, Phase
from edgebed.wire.order import batch_bounds
from orchestrator.fleet.profile import Limits
from orchestrator.records.run_index import Clock, RoundFacts, RunFacts, Session
from orchestrator.records.types import LimitsSet, TaskDelivered, TaskSent, UpdateReceived
from orchestrator.simulation.calibration import Calibration, LinkFit, ProfileCosts
from orchestrator.simulation.reference import Reference, SizeLaw, server_key, work_key

STRETCH = 1.046
"""Bytes on the wire per payload byte in full Ethernet frames, which gives the shortest time of a transfer."""


class Seen(msgspec.Struct, frozen=True):
    """The measured work of one device in one round."""

    profile: str
    assignment: Assignment
    first: bool  # the agent had not built a model before
    limits: Limits
    batches: tuple[int, ...]
    compute_cpu_s: float
    other_cpu_s: float  # of all phases except decode, without the training thread's
    decode_cpu_s: float
    replies: int
    uploads: int
    upload_bytes: int
    update_bytes: int
    sent_bytes: int
    down_s: float
    up_s: float | None  # of the update; None if another transfer was on the link before it
    received: list[tuple[int, float]]  # (bytes, seconds from arrival to use) of transfers that did not wait for others


def fit(runs: Sequence[RunFacts], reference: Reference, *, by_bytes: bool = False) -> Calibration:
    """Fit a calibration. Raises UsageError if the runs hold nothing to calibrate from, or are simulations.

    Args:
        by_bytes: the agent's work also depends on the bytes of transfers, so that it is known for other models. This
            needs runs with uploads and tasks of several sizes.
    """
    for run in runs:
        if run.enforcement == "simulated":
            raise UsageError(f"{run.started.run} is a simulation", hint="calibrate from runs on a real fleet")
    seen = [work for run in runs for work in _seen(run)]
    if not seen:
        raise UsageError("the runs hold no finished work", hint="calibrate from runs of at least three rounds")
    names = sorted({work.profile for work in seen})
    profiles = {name: profile_costs([work for work in seen if work.profile == name], reference) for name in names}
    steps, group = server_factors(runs, reference)
    return Calibration(
        runs=[run.started.run for run in runs],
        dilation=runs[0].dilation,
        profiles=with_bytes(profiles, seen, reference) if by_bytes else profiles,
        server_factor=steps,
        server_other=median(steps.values()) if steps else 1.0,
        server_group=group,
        orchestrator=_orchestrator(runs),
        receive=line_through([point for work in seen for point in work.received]),
        cuts={c.cut: _cut_cost(c) for run in runs for session in run.sessions for c in session.cuts},
        device=dict(reference.device_laws),
        server=dict(reference.server_laws),
        encode=dict(reference.encode_laws),
        model_bytes=reference.model_bytes,
    )


# ---- what was seen ----


def _seen(run: RunFacts) -> Iterable[Seen]:
    begun: set[tuple[str, str]] = set()
    for session, facts in run.rounds():
        phases = _phases_by_task(session)
        for device in sorted(facts.done):
            work = _one(session, facts, device, phases, begun)
            if work is not None:
                yield work


def _phases_by_task(session: Session) -> dict[str, list[Phase]]:
    found: dict[str, list[Phase]] = {}
    for device in session.devices.values():
        for _, phase in device.phases:
            if phase.task:
                found.setdefault(phase.task, []).append(phase)
    return found


def _one(
    session: Session,
    facts: RoundFacts,
    device: str,
    by_task: dict[str, list[Phase]],
    begun: set[tuple[str, str]],
) -> Seen | None:
    sent, delivered, update = facts.sent.get(device), facts.delivered.get(device), facts.updates.get(device)
    limits = _limits_at(session, device, facts.start_ns)
    if sent is None or delivered is None or update is None or limits is None:
        return None
    phases, report = by_task.get(sent.task, []), update.report
    incarnation = next((i for i, p in reversed(session.devices[device].phases) if p.task == sent.task), "")
    first = (device, incarnation) not in begun
    begun.add((device, incarnation))
    planned = facts.started.assignments[device]
    assignment = real_work(msgspec.structs.replace(planned, cpus=limits.cpus))
    decode = sum(p.cpu_ns for p in phases if p.name == "decode") / 1e9
    cpu = sum(p.cpu_ns for p in phases if p.name != "download") / 1e9
    uploads = facts.uploads.get(device, [])
    return Seen(
        profile=limits.profile,
        assignment=assignment,
        first=first,
        limits=Limits(limits.cpus, limits.uplink_bit_s, limits.downlink_bit_s, 0),
        batches=_batches(assignment, report.samples, report.batches),
        compute_cpu_s=report.compute_cpu_s,
        other_cpu_s=max(0.0, cpu - decode - report.compute_cpu_s),
        decode_cpu_s=decode,
        replies=len(facts.replies.get(device, [])),
        uploads=len(uploads),
        upload_bytes=sum(upload.bytes for upload in uploads),
        update_bytes=update.bytes,
        sent_bytes=sent.bytes,
        down_s=_down_s(session, device, sent, delivered, phases),
        up_s=_up_s(session, device, update, phases, max((u.at_ns for u in uploads), default=0)),
        received=_received(facts, device, update),
    )


def _limits_at(session: Session, device: str, at_ns: int) -> LimitsSet | None:
    known = [each for each in session.limits if each.device == device and each.at_ns <= at_ns]
    return known[-1] if known else None


def _batches(assignment: Assignment, samples: int, count: int) -> tuple[int, ...]:
    bounds = batch_bounds(samples, assignment.batch_size, assignment.max_batches)
    sizes = [stop - start for start, stop in bounds]
    return tuple(sizes[i % len(sizes)] for i in range(count))


def _down_s(session: Session, device: str, sent: TaskSent, delivered: TaskDelivered, phases: Sequence[Phase]) -> float:
    """Seconds until the device began to decode. The acknowledgement may be later, if the orchestrator is busy."""
    clock = _clock(session, device)
    begun = [p.start_ns for p in phases if p.name == "decode"]
    arrived = clock.to_orchestrator(min(begun)) if clock is not None and begun else delivered.at_ns
    return max(0, min(arrived, delivered.at_ns) - sent.at_ns) / 1e9


def _clock(session: Session, device: str) -> Clock | None:
    return next(reversed(session.devices[device].clocks.values()), None)


def _received(facts: RoundFacts, device: str, update: UpdateReceived) -> list[tuple[int, float]]:
    """(bytes, seconds) of the update, if it did not wait for a server half, and of the uploads that found the server
    idle. The first upload is left out, because it may have waited for its server half to be created."""
    uploads = facts.uploads.get(device)
    if not uploads:
        return [(update.bytes, (facts.done[device].at_ns - update.at_ns) / 1e9)]
    starts = {step.batch: step.start_ns for step in facts.steps if step.devices == (device,)}
    busy = [(step.start_ns, step.end_ns) for step in facts.steps]
    return [
        (u.bytes, (starts[u.batch] - u.at_ns) / 1e9)
        for u in uploads
        if u.batch > 0
        and u.batch in starts
        and not any(start < starts[u.batch] and end > u.at_ns for start, end in busy)
    ]


def _up_s(
    session: Session, device: str, update: UpdateReceived, phases: Sequence[Phase], last_upload_ns: int
) -> float | None:
    """Seconds from the update's start on the device to its arrival; None if an upload was still under way."""
    clock = _clock(session, device)
    tails = [p.start_ns for p in phases if p.name == "upload_tail"]
    if clock is None or not tails:
        return None
    start = clock.to_orchestrator(min(tails))
    return (update.at_ns - start) / 1e9 if last_upload_ns < start < update.at_ns else None


# ---- laws ----


def with_bytes(
    profiles: Mapping[str, ProfileCosts], seen: Sequence[Seen], reference: Reference
) -> dict[str, ProfileCosts]:
    """The agent's CPU seconds as sums of parts, none negative, that fit all its tasks best (least squares): per task,
    per upload, per reply and per byte. They are the same for all profiles, so that few tasks suffice."""
    settled = [work for work in seen if not work.first] or list(seen)
    sent = [(1.0, w.uploads, w.replies, w.upload_bytes + w.update_bytes) for w in settled]
    task, upload, heard, byte = _parts(sent, [_agent_cpu_s(work, reference) for work in settled])
    whole = [work for work in settled if not work.assignment.keep] or settled
    decode, decoded, decode_byte = _parts(
        [(1.0, w.replies, w.sent_bytes) for w in whole], [w.decode_cpu_s for w in whole]
    )
    return {
        name: msgspec.structs.replace(
            costs,
            update_cpu_s=task,
            upload_cpu_s=upload,
            reply_cpu_s=heard + decoded,
            send_byte_cpu_s=byte,
            decode_cpu_s=decode,
            decode_byte_cpu_s=decode_byte,
        )
        for name, costs in profiles.items()
    }


def _parts(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Factors of the columns, none negative, by least squares."""
    matrix = np.array(rows)
    most = np.maximum(matrix.max(axis=0), 1e-12)
    found, _ = nnls(matrix / most, np.maximum(0.0, seconds))
    return [float(value) for value in found / most]


def profile_costs(own: Sequence[Seen], reference: Reference) -> ProfileCosts:
    """The costs of one device profile, from the work of its devices."""
    settled = [work for work in own if not work.first] or list(own)
    work = _factors(settled, reference)
    agent, reply = _agent_laws(settled, reference)
    plain = [each for each in settled if not each.replies and not each.assignment.keep] or settled
    decode = median(each.decode_cpu_s for each in plain)
    build = max(0.0, max((w.decode_cpu_s for w in own if w.first), default=0.0) - decode)
    return ProfileCosts(
        work=work,
        other=median(work.values()),
        upload_cpu_s=agent.byte_s,
        update_cpu_s=agent.fixed_s,
        reply_cpu_s=reply + _beyond(decode, [(w.decode_cpu_s, w.replies) for w in settled if w.replies], 0.0),
        decode_cpu_s=decode,
        build_cpu_s=build,
        narrow_cpu_s=_beyond(decode, [(w.decode_cpu_s, 1) for w in settled if w.assignment.keep], build),
        uplink=link_fit([(w.update_bytes, w.up_s, w.limits.uplink_bit_s) for w in settled if w.up_s is not None]),
        downlink=link_fit([(w.sent_bytes, w.down_s, w.limits.downlink_bit_s) for w in settled]),
    )


def _beyond(base: float, points: Sequence[tuple[float, int]], unseen: float) -> float:
    """Median of (seconds − base) ÷ count over the points; `unseen` if there are none."""
    return max(0.0, median((seconds - base) / times for seconds, times in points)) if points else unseen


def _factors(seen: Sequence[Seen], reference: Reference) -> dict[str, float]:
    """Median of measured ÷ reference CPU seconds, by kind of work."""
    ratios: dict[str, list[float]] = {}
    for work in seen:
        law = reference.device_law(work.assignment)
        expected = sum(law.seconds(samples) for samples in work.batches)
        if expected > 0 and work.compute_cpu_s > 0:
            ratios.setdefault(work_key(work.assignment), []).append(work.compute_cpu_s / expected)
    return {key: median(values) for key, values in ratios.items()}


def _agent_laws(seen: Sequence[Seen], reference: Reference) -> tuple[SizeLaw, float]:
    """CPU seconds of the agent: for a task with n uploads, `fixed_s` + n × `byte_s`; and for each reply. If all tasks
    have the same number of uploads, the update is assumed to cost as much as an upload."""
    silent = [work for work in seen if not work.replies] or seen
    points = [(float(work.uploads), _agent_cpu_s(work, reference)) for work in silent]
    if len({count for count, _ in points}) > 1:
        law = line_through(points)
    else:
        each = median(max(0.0, seconds) / (count + 1) for count, seconds in points)
        law = SizeLaw(each, each)
    rest = [(_agent_cpu_s(w, reference) - law.seconds(w.uploads), w.replies) for w in seen if w.replies]
    return law, _beyond(0.0, rest, 0.0)


def _agent_cpu_s(work: Seen, reference: Reference) -> float:
    """CPU seconds of the agent in a task, without training, encoding and decoding."""
    encoding = reference.encode_law(Codec()).seconds(work.update_bytes)
    if work.uploads:
        raw = reference.upload_bytes(work.assignment, work.batches)
        law = reference.encode_law(work.assignment.codec)
        encoding += sum(law.seconds(size) for size in raw)
    return work.other_cpu_s - encoding


def link_fit(points: Sequence[tuple[int, float, int]]) -> LinkFit:
    """A line through (bytes, seconds, rate). If all sizes are equal, all time beyond the wire's own is latency."""
    scaled = [(8 * size / rate, seconds) for size, seconds, rate in points]
    if not scaled:
        return LinkFit(0.0, STRETCH)
    line = line_through(scaled)
    stretch = min(max(line.byte_s, STRETCH), 3.0)
    return LinkFit(max(0.0, median(seconds - stretch * x for x, seconds in scaled)), stretch)


def line_through(points: Sequence[tuple[float, float]]) -> SizeLaw:
    """Least squares with both coefficients >= 0, over the medians of similar sizes."""
    if not points:
        return SizeLaw(0.0, 0.0)
    groups: dict[int, list[tuple[float, float]]] = {}
    for x, y in points:
        groups.setdefault(round(x * 50) if x < 1000 else round(x / 200), []).append((x, y))
    middles = [(median(x for x, _ in group), median(y for _, y in group)) for group in groups.values()]
    x_mean, y_mean = mean(x for x, _ in middles), mean(y for _, y in middles)
    spread = sum((x - x_mean) ** 2 for x, _ in middles)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in middles) / spread if spread > 0 else 0.0
    if slope <= 0:
        return SizeLaw(max(0.0, median(y for _, y in points)), 0.0)
    return SizeLaw(max(0.0, y_mean - slope * x_mean), slope)


def server_factors(runs: Sequence[RunFacts], reference: Reference) -> tuple[dict[str, float], float]:
    """Medians of measured ÷ reference seconds: by cut, of steps with one device (a median, because the host may delay
    single steps); and of steps with a group, compared with the sum of its devices' expected seconds."""
    single: dict[str, list[float]] = {}
    groups: list[tuple[float, list[Assignment]]] = []
    for run in runs:
        for _, facts in run.rounds():
            for step in facts.steps:
                work = [facts.started.assignments[d] for d in step.devices if d in facts.started.assignments]
                seconds = (step.end_ns - step.start_ns) / 1e9
                if len(work) > 1:
                    groups.append((seconds, work))
                elif work and (expected := reference.server_law(work[0]).seconds(work[0].batch_size)) > 0:
                    single.setdefault(server_key(work[0]), []).append(seconds / expected)
    factors = {key: median(values) for key, values in single.items()}
    other = median(factors.values()) if factors else 1.0

    def expected_s(work: Assignment) -> float:
        return reference.server_law(work).seconds(work.batch_size) * factors.get(server_key(work), other)

    ratios = [seconds / sum(map(expected_s, work)) for seconds, work in groups if sum(map(expected_s, work)) > 0]
    return factors, median(ratios) if ratios else 1.0


def _orchestrator(runs: Sequence[RunFacts]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for run in runs:
        for _, facts in run.rounds():
            for phase in facts.own:
                seconds.setdefault(phase.name, []).append((phase.end_ns - phase.start_ns) / 1e9)
                if phase.name == "plan" and facts.sent:
                    first = min(sent.at_ns for sent in facts.sent.values())
                    seconds.setdefault("dispatch", []).append(max(0.0, (first - phase.end_ns) / 1e9))
    return {name: median(values) for name, values in seconds.items()}


def _cut_cost(record: object) -> CutCost:
    return msgspec.convert({f: getattr(record, f) for f in CutCost.__struct_fields__}, CutCost)
