"""Fits a calibration to the records of real runs. Only the reference laws are measured, on this host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import CutCost, real_work
from edgebed.wire.messages import Assignment, Phase
from edgebed.wire.order import batch_bounds
from edgebed.wire.settings import Codec
from orchestrator.fleet.spec.profile import Limits
from orchestrator.records.run_index import Clock, RoundFacts, RunFacts, Session
from orchestrator.records.types import SIMULATED, LimitsSet, TaskDelivered, TaskSent, UpdateReceived
from orchestrator.references.lines import line_through, parts, relative_parts
from orchestrator.references.work_laws import SizeLaw, WorkLaws, codec_key, work_key
from orchestrator.simulation.calibration import Calibration, LinkFit, ProfileCosts
from orchestrator.simulation.server_fit import found_idle, orchestrator_work, server_factors, server_turns

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
    encode_cpu_s: float  # of its uploads, not of the update
    replies: int
    uploads: int
    upload_bytes: int
    update_bytes: int
    sent_bytes: int
    down_s: float
    up_s: float | None  # of the update; None if another transfer was on the link before it
    received: list[tuple[int, float]]  # (bytes, seconds from arrival to use) of transfers that did not wait for others


def fit(runs: Sequence[RunFacts], reference: WorkLaws, *, by_bytes: bool = False) -> Calibration:
    """Fit a calibration. Raises UsageError if the runs hold nothing to calibrate from, or are simulations.

    Args:
        by_bytes: the agent's work also depends on the bytes of transfers, so that it is known for other models. This
            needs runs with uploads and tasks of several sizes.
    """
    for run in runs:
        if run.enforcement == SIMULATED:
            raise UsageError(f"{run.started.run} is a simulation", hint="calibrate from runs on a real fleet")
    seen = [work for run in runs for work in _seen(run)]
    if not seen:
        raise UsageError("the runs hold no finished work", hint="calibrate from runs of at least three rounds")
    names = sorted({work.profile for work in seen})
    law = unseen_law(seen, reference)
    profiles = {name: profile_costs([work for work in seen if work.profile == name], reference, law) for name in names}
    steps, server, group = server_factors(runs, reference)
    return Calibration(
        runs=[run.started.run for run in runs],
        dilation=runs[0].dilation,
        profiles=with_bytes(profiles, seen, reference) if by_bytes else profiles,
        server_factor=steps,
        server_other=server.unit_s,
        server_batch_s=server.call_s,
        server_group=group,
        layers={kind: list(laws) for kind, laws in reference.layers.items()},
        orchestrator=orchestrator_work(runs),
        receive=line_through([point for work in seen for point in work.received]),
        turns=server_turns(runs),
        cuts={c.cut: _cut_cost(c) for run in runs for session in run.sessions for c in session.cuts},
        device=dict(reference.device_laws),
        server=dict(reference.server_laws),
        encode={**reference.encode_laws, **encode_laws(seen, reference)},
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
        encode_cpu_s=report.encode_cpu_s,
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
    idle."""
    if not facts.uploads.get(device):
        return [(update.bytes, (facts.done[device].at_ns - update.at_ns) / 1e9)]
    return [(upload.bytes, (step.start_ns - upload.at_ns) / 1e9) for upload, step in found_idle(facts, device)]


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
    profiles: Mapping[str, ProfileCosts], seen: Sequence[Seen], reference: WorkLaws
) -> dict[str, ProfileCosts]:
    """The agent's CPU seconds as sums of parts, none negative, that fit all its tasks best (least squares): per task,
    per upload, per reply and per byte. They are the same for all profiles, so that few tasks suffice."""
    settled = [work for work in seen if not work.first] or list(seen)
    sent = [(1.0, w.uploads, w.replies, w.upload_bytes + w.update_bytes) for w in settled]
    task, upload, heard, byte = parts(sent, [_agent_cpu_s(work, reference) for work in settled])
    whole = [work for work in settled if not work.assignment.keep] or settled
    decode, decoded, decode_byte = parts(
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


def link_fit(points: Sequence[tuple[int, float, int]]) -> LinkFit:
    """A line through (bytes, seconds, rate) of what opens and ends tasks. If all sizes are equal, all time beyond the
    wire's own is latency. The least of it is the link's own; the rest is what a busy host adds at the ends of tasks,
    when server halves are made and other devices send too."""
    scaled = [(8 * size / rate, seconds) for size, seconds, rate in points]
    if not scaled:
        return LinkFit(0.0, STRETCH)
    line = line_through(scaled)
    stretch = min(max(line.byte_s, STRETCH), 3.0)
    beyond = [seconds - stretch * x for x, seconds in scaled]
    return LinkFit(max(0.0, median(beyond)), stretch, max(0.0, min(beyond)))


def profile_costs(own: Sequence[Seen], reference: WorkLaws, unseen: UnseenLaw) -> ProfileCosts:
    """The costs of one device profile, from the work of its devices. `unseen`: the law of all profiles together for
    batches of other work."""
    settled = [work for work in own if not work.first] or list(own)
    work = _factors(settled, reference)
    pace = _pace(settled, reference, unseen)
    agent = _agent_law(settled, reference)
    plain = [each for each in settled if not each.replies and not each.assignment.keep] or settled
    decode = median(each.decode_cpu_s for each in plain)
    reply = _reply_s(settled, reference, agent, decode)
    build = max(0.0, max((w.decode_cpu_s for w in own if w.first), default=0.0) - decode)
    return ProfileCosts(
        work=work,
        other=pace * unseen.factor,
        batch_cpu_s=pace * unseen.batch_s,
        features_cpu_s=pace * unseen.features_s,
        upload_cpu_s=agent.byte_s,
        update_cpu_s=agent.fixed_s,
        reply_cpu_s=agent.byte_s if reply is None else reply,  # what is heard costs as much as what is sent
        decode_cpu_s=decode,
        build_cpu_s=build,
        narrow_cpu_s=_narrow_s(settled, decode),
        uplink=link_fit([(w.update_bytes, w.up_s, w.limits.uplink_bit_s) for w in settled if w.up_s is not None]),
        downlink=link_fit([(w.sent_bytes, w.down_s, w.limits.downlink_bit_s) for w in settled]),
    )


def _narrow_s(settled: Sequence[Seen], decode: float) -> float | None:
    """CPU seconds to cut a narrow model out of the whole one; None where no task did."""
    narrow = [work.decode_cpu_s - decode for work in settled if work.assignment.keep]
    return max(0.0, median(narrow)) if narrow else None


def _expected_s(work: Seen, reference: WorkLaws) -> float:
    """The reference's CPU seconds of all batches of a task."""
    law = reference.device_law(work.assignment)
    return sum(law.seconds(samples) for samples in work.batches)


FITS = 20
"""Times that law and paces are fitted in turn."""


class UnseenLaw(msgspec.Struct, frozen=True):
    """CPU seconds of work that was not seen: of each batch, of each one that uploads its features, and of each second
    of the reference."""

    batch_s: float = 0.0
    features_s: float = 0.0
    factor: float = 1.0

    def seconds(self, work: Seen, reference: WorkLaws) -> float:
        batches, uploaded, known = _counts(work, reference)
        return batches * self.batch_s + uploaded * self.features_s + known * self.factor


def _counts(work: Seen, reference: WorkLaws) -> tuple[float, float, float]:
    """Batches, those that upload their features, and the reference's seconds of a task."""
    batches = len(work.batches)
    return batches, batches if "features" in work.assignment.uploads else 0, _expected_s(work, reference)


def unseen_law(seen: Sequence[Seen], reference: WorkLaws) -> UnseenLaw:
    """The law that fits all work best, each profile's multiplied by its pace. Law and paces are fitted in turn: slow
    devices have small cuts, so without the paces their slowness would look like seconds that each batch costs."""
    settled = [work for work in seen if not work.first] or seen
    rows = [_counts(work, reference) for work in settled]
    profiles = {work.profile: [each for each in settled if each.profile == work.profile] for work in settled}
    paces = dict.fromkeys(profiles, 1.0)
    for _ in range(FITS):
        law = UnseenLaw(*relative_parts(rows, [work.compute_cpu_s / paces[work.profile] for work in settled]))
        found = {profile: _pace(own, reference, law) for profile, own in profiles.items()}
        paces = {profile: pace / median(found.values()) for profile, pace in found.items()}
    return law


def _pace(own: Sequence[Seen], reference: WorkLaws, law: UnseenLaw) -> float:
    """Median of measured ÷ expected CPU seconds on one profile."""
    expected = [law.seconds(work, reference) for work in own]
    ratios = [work.compute_cpu_s / each for work, each in zip(own, expected, strict=True) if each > 0]
    return median(ratios) if ratios else 1.0


def _factors(seen: Sequence[Seen], reference: WorkLaws) -> dict[str, float]:
    """Median of measured ÷ reference CPU seconds, by kind of work."""
    ratios: dict[str, list[float]] = {}
    for work in seen:
        expected = _expected_s(work, reference)
        if expected > 0 and work.compute_cpu_s > 0:
            ratios.setdefault(work_key(work.assignment), []).append(work.compute_cpu_s / expected)
    return {key: median(values) for key, values in ratios.items()}


def _agent_law(seen: Sequence[Seen], reference: WorkLaws) -> SizeLaw:
    """CPU seconds of the agent for a task with n uploads: `fixed_s` + n × `byte_s`. If all tasks have the same number
    of uploads, the update is assumed to cost as much as an upload."""
    silent = [work for work in seen if not work.replies] or seen
    points = [(float(work.uploads), _agent_cpu_s(work, reference)) for work in silent]
    if len({count for count, _ in points}) > 1:
        return line_through(points)
    each = median(max(0.0, seconds) / (count + 1) for count, seconds in points)
    return SizeLaw(each, each)


def _reply_s(seen: Sequence[Seen], reference: WorkLaws, agent: SizeLaw, decode: float) -> float | None:
    """CPU seconds of the agent to receive and decode a reply; None where there was none."""
    beyond = [
        (_agent_cpu_s(w, reference) - agent.seconds(w.uploads) + w.decode_cpu_s - decode) / w.replies
        for w in seen
        if w.replies
    ]
    return max(0.0, median(beyond)) if beyond else None


def _agent_cpu_s(work: Seen, reference: WorkLaws) -> float:
    """CPU seconds of the agent in a task, without training, encoding and decoding."""
    return work.other_cpu_s - work.encode_cpu_s - reference.encode_law(Codec()).seconds(work.update_bytes)


def encode_laws(seen: Sequence[Seen], reference: WorkLaws) -> dict[str, SizeLaw]:
    """CPU seconds to encode an upload of n raw bytes, by codec. A device needs more than a loop of nothing else."""
    points: dict[str, list[tuple[float, float]]] = {}
    for work in seen:
        if work.uploads and work.encode_cpu_s > 0:
            raw = reference.upload_bytes(work.assignment, work.batches)
            size = sum(raw) / len(raw)
            points.setdefault(codec_key(work.assignment.codec), []).append((size, work.encode_cpu_s / work.uploads))
    return {codec: line_through(each) for codec, each in points.items()}


def _cut_cost(record: object) -> CutCost:
    return msgspec.convert({f: getattr(record, f) for f in CutCost.__struct_fields__}, CutCost)
