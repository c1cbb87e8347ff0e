"""The state of a run -> its summary: the one place where the figures of rounds and devices are added up. Pure."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from edgebed.pacing import HOST
from orchestrator.records.critical.bound_by import mean_shares, sentence, together
from orchestrator.records.critical.stragglers import CAUSES
from orchestrator.records.critical.whatif import Saving
from orchestrator.records.crossing import time_to
from orchestrator.records.live.run_state import DeviceState, RoundRow, RunState, Sums
from orchestrator.records.live.settling import explain_late
from orchestrator.records.summary import BoundBy, DeviceFigures, NodeOfRound, Progress, RoundFigures, Savings, Summary
from orchestrator.records.timeline.board import BoardRound, board_facts
from orchestrator.records.timeline.disturbance import HostOfRound, usual_loop_ms
from orchestrator.records.timeline.held import by_origin, early_s, late_rounds
from orchestrator.records.timeline.host_index import host_index
from orchestrator.records.timeline.in_quota import InQuota
from orchestrator.records.timeline.timeline import WAITING
from orchestrator.records.types import SIMULATED
from orchestrator.records.words.vocabulary import server_note, threads_note

NOT_COUNTED = ("offline", "unreported")
"""Time that is neither idle nor busy."""


def summary_of(state: RunState) -> Summary:
    """The figures of a run as far as its records were read. Only finished rounds count, except for bytes and work that
    was left out."""
    if not state.whole:
        explain_late(state)
    ends, sums = on_axis(state), _sums(state)
    rounds = _rounds(state, ends)
    devices = {name: _device(device, ends, sums) for name, device in state.devices.items()}
    kept = [task for device in state.devices.values() for task in device.kept]
    in_quota = sum((device.in_quota for device in state.devices.values()), InQuota())
    seconds = [row.round_s for row in rounds]
    residuals = [row.timeline_residual for row in rounds if row.timeline_residual is not None]
    return Summary(
        **asdict(progress(state, ends)),
        total_s=rounds[-1].elapsed_s if rounds else 0.0,
        round_s_median=median(seconds) if seconds else None,
        round_s_p95=percentile(seconds, 0.95),
        timeline_residual_max=max(residuals, default=None),
        idle_share_mean=_mean([device.idle_share for device in devices.values()]),
        tasks_in_quota_share=in_quota.task_share,
        batches_in_quota_share=in_quota.piece_share,
        late_rounds=_late(state),
        early_s=_early(state),
        reference_s=by_origin([*kept, *(row.server for row in state.rows)]),
        orchestrator_share_mean=_orchestrator_share(rounds),
        devices_left_out=dict(sum((Counter(row.left_out) for row in state.rows), Counter())),
        events=state.happened,
        disturbed_rounds=_disturbed(rounds),
        bound_by=_bound_by(state.rows),
        what_if=_savings(state.rows),
        wait_share_mean=mean_shares(sums.waited, sums.whole_s),
        rounds=rounds,
        devices=devices,
    )


def progress(state: RunState, ends: Sequence[tuple[int, float]]) -> Progress:
    """What a run is and how far it has come. `ends`: `on_axis`."""
    run = state.run
    started, last = run.started, run.sessions[-1]
    infos = [info for session in run.sessions for info in session.started.devices]
    devices = started.devices
    one_thread = {d.profile: d.cpus for d in devices if started.speed == HOST and not d.unlimited and d.threads == 1}
    evaluated = [(at_s, accuracy) for i, at_s in ends if (accuracy := state.rows[i].accuracy) is not None]
    gaps = [gap for i, _ in ends if (gap := state.rows[i].gap_s) is not None]
    return Progress(
        **shared(started, Progress)
        | {
            "enforcement": run.enforcement,
            "dilation": run.dilation,
            "calibrated": run.calibrated and not _early(state) and not _late(state),
            "speed": "" if run.enforcement == SIMULATED and started.speed == HOST else started.speed,
            "host_index": host_index(run),
        },
        costs=started.host.get("costs", ""),
        kernel=started.host.get("kernel", ""),
        hz=int(hz) if (hz := started.host.get("hz", "")).isdecimal() else None,
        server_note=server_note(run.dilation, started.server_cpus),
        threads_note=threads_note(run.dilation, one_thread),
        started=run.sessions[0].started.wall,
        resumed=len(run.sessions) - 1,
        ended=last.finished.why if last.finished is not None else "not yet, or killed",
        test_accuracy=last.tested.accuracy if last.tested is not None else None,
        boards=board_facts(run),
        unlimited=[device.name for device in devices if device.unlimited],
        limited_boards=[device.name for device in devices if device.board and not device.unlimited],
        real_boards={device.name: device.board for device in devices if device.board},
        look_alikes={device.name: device.look_alike_of for device in devices if device.look_alike_of},
        profiles={info.name: info.profile for info in infos},
        time_to_target_s=time_to(evaluated, started.target_accuracy),
        final_accuracy=evaluated[-1][1] if evaluated else None,
        best_accuracy=max((accuracy for _, accuracy in evaluated), default=None),
        straggler_gap_s=median(gaps) if gaps else None,
        bytes_up_total=state.bytes_up,
        bytes_down_total=state.bytes_down,
    )


def shared(source: Struct, target: type[Struct]) -> dict[str, Any]:
    """The fields of a struct that another type has too, under the same names."""
    return {name: getattr(source, name) for name in source.__struct_fields__ if name in target.__struct_fields__}


def _early(state: RunState) -> dict[str, float]:
    """Devices that did not hold, and by how many seconds they were early at most."""
    found = {name: early_s(zip(each.kept, each.actual_s, strict=True)) for name, each in state.devices.items()}
    return {name: early for name, early in found.items() if early}


def _late(state: RunState) -> int | None:
    return late_rounds((row.late_s, row.seconds) for row in state.rows)


def _orchestrator_share(rounds: Iterable[RoundFigures]) -> float | None:
    known = [(share, row.round_s) for row in rounds if (share := row.orchestrator_share) is not None]
    whole_s = sum(length_s for _, length_s in known)
    return sum(share * length_s for share, length_s in known) / whole_s if whole_s else None


# ---- rounds ----


def on_axis(state: RunState) -> list[tuple[int, float]]:
    """Indexes of the rows of finished rounds with their ends on the time axis, in the order in which they ended. On the
    axis a session begins where the one before it ended."""
    found: list[tuple[int, float]] = []
    session, before_s, end_s = -1, 0.0, 0.0
    for index, row in enumerate(state.rows):
        if row.seconds is None:
            continue
        if row.session != session:
            session, before_s = row.session, end_s
        if row.overlaps:
            dilation = state.sessions[row.session].started.dilation
            at_s = before_s + (row.end_ns - state.begun_ns[row.session]) / 1e9 / dilation
            end_s = max(end_s, at_s)
        else:
            at_s = end_s = end_s + row.seconds
        found.append((index, at_s))
    return sorted(found, key=lambda pair: pair[1])


def _rounds(state: RunState, ends: Sequence[tuple[int, float]]) -> list[RoundFigures]:
    usual_ms = usual_loop_ms(row.host for row in state.rows)
    return [_round(state.rows[i], at_s, state.rows[i].host.compared(usual_ms)) for i, at_s in ends]


def _round(row: RoundRow, elapsed_s: float, host: HostOfRound) -> RoundFigures:
    return RoundFigures(
        **shared(row, RoundFigures)
        | {
            "number": row.number + 1,
            "straggler": row.straggler or None,
            "disturbed": host.causes,
        },
        round_s=row.seconds or 0.0,
        elapsed_s=elapsed_s,
        straggler_why=row.why if row.straggler else None,
        straggler_gaps_s=row.gap_s,
        straggler_behind_s=dict(zip(CAUSES, row.behind_s, strict=False)) if row.straggler else None,
        straggler_profile=row.profile,
        timeline_residual=row.residual,
        round_bounds=row.bounds,
        disturbed_why=None if host.disturbed is None else host.why,
        host_speed=host.speed,
        stolen_share=host.stolen_share,
        others_share=host.others_share,
        load=host.load,
        nodes={
            name: NodeOfRound(each.busy, each.stolen, each.others, each.load, each.clock_s)
            for name, each in host.nodes.items()
        },
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all do not exceed (nearest rank); None of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _disturbed(rounds: Iterable[RoundFigures]) -> int | None:
    """Rounds that the host disturbed; None where it was not measured in any."""
    known = [row.disturbed for row in rounds if row.disturbed is not None]
    return sum(bool(causes) for causes in known) if known else None


def _bound_by(rows: Iterable[RoundRow]) -> BoundBy:
    finished = [row for row in rows if row.seconds is not None]
    known = [row.bounds for row in finished if row.bounds is not None]
    parts = together(part for bounds in known for part in bounds.parts)
    why_not = next((row.why_not for row in finished if row.why_not), "")
    return BoundBy(sentence(parts), parts, len(known), why_not)


def _savings(rows: Iterable[RoundRow]) -> Savings:
    """The largest first; what was on no critical path saves nothing and is not named."""
    known = [row for row in rows if row.seconds is not None and row.bounds is not None and row.savings]
    saved: dict[tuple[str, str], float] = {}
    slowest = Counter(device for row in known for device in row.slowest)
    for row in known:
        for saving in (*(row.bounds.savings if row.bounds is not None else ()), *row.savings):
            saved[saving.what, saving.whose] = saved.get((saving.what, saving.whose), 0.0) + saving.saved_s
    found = sorted((Saving(*key, length) for key, length in saved.items()), key=lambda saving: -saving.saved_s)
    links = tuple(sorted(slowest, key=lambda device: (-slowest[device], device)))
    return Savings(sum((row.seconds or 0.0 for row in known), 0.0), links, tuple(found))


# ---- devices ----


def _sums(state: RunState) -> Sums:
    """Of all finished rounds."""
    found = copy.deepcopy(state.sums)
    for indexed in [] if state.whole else state.rounds.values():
        row = state.rows[indexed.row]
        if row.seconds is not None:
            found.add(row, indexed.devices, state.sessions[row.session].started.dilation)
    return found


def _device(device: DeviceState, ends: Sequence[tuple[int, float]], sums: Sums) -> DeviceFigures:
    def column(values: Sequence[Any]) -> list[Any]:
        return [values[i] for i, _ in ends]

    name, boards = device.name, [each or BoardRound() for each in column(device.boards)]
    return DeviceFigures(
        idle_share=_idle_share(sums.in_round.get(name, {})),
        throttled_share=_throttled_share(device),
        tasks_in_quota=device.in_quota.task_share,
        batches_in_quota=device.in_quota.piece_share,
        bytes_up=device.bytes_up,
        bytes_down=device.bytes_down,
        phase_s={phase: length / 1e9 for phase, length in sorted(sums.spent.get(name, {}).items())},
        wait_s=sums.waited.get(name),
        cut=column(device.cuts),
        predicted_s=column(device.predicted_s),
        actual_s=column(device.actual_s),
        update_norm=column(device.update_norms),
        behind_reference_s=[None if held is None else held.late_s for held in column(device.kept)],
        not_got_s=column(device.not_got_s),
        joules=[each.joules for each in boards],
        board_celsius=[each.celsius for each in boards],
        board_marks=[each.marks for each in boards],
    )


def _idle_share(in_round: Mapping[str, float]) -> float | None:
    """Share of the time in rounds in which a device was present and idle; None: it was never present."""
    present = sum(length for name, length in in_round.items() if name not in NOT_COUNTED)
    return sum(in_round.get(name, 0) for name in WAITING) / present if present else None


def _throttled_share(device: DeviceState) -> float | None:
    """Share of a device's own work for which its CPU quota stopped it; None: it never reported any.

    Only the sum over many phases is meaningful: the kernel counts a stop when it ends, which may be in the next phase.
    It also adds up the CPUs that it stopped, so several threads may be stopped for longer than they worked: at most 1.
    """
    return min(1.0, device.stopped_ns / device.worked_ns) if device.stopped_ns and device.worked_ns else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
