"""Records of runs that never took place: kept in a folder, throttled, resumed, with a host, folded into a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from orchestrator.records import types as t
from orchestrator.records.host_records import HostRound
from orchestrator.records.live.reducer import reduce
from orchestrator.records.live.run_state import RunState
from orchestrator.records.recorder import Recorder
from tests.synthetic import Synthetic


def keep(folder: Path, records: list[t.Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder / "records.jsonl")
    for record in records:
        recorder.record(record)
    recorder.close()
    return folder


def throttle(records: list[t.Record], device: str, share: float) -> list[t.Record]:
    """The records with a device stopped by its quota for this share of every phase."""
    return [
        msgspec.structs.replace(
            record,
            phases=tuple(
                msgspec.structs.replace(p, throttled_ns=int((p.end_ns - p.start_ns) * share), throttled=1)
                for p in record.phases
            ),
        )
        if isinstance(record, t.DevicePhases) and record.device == device
        else record
        for record in records
    ]


def resumed(dilations: tuple[float, float] = (2.0, 8.0), **second: Any) -> list[t.Record]:
    """Two rounds, then two more after a resume with another dilation; `second`: what else its RunStarted says."""
    before = Synthetic(rounds=2, finish=False, dilation=dilations[0]).records
    started, *rest = Synthetic(rounds=2, first_round=2, dilation=dilations[1]).records
    return [*before, msgspec.structs.replace(started, **second), *rest]


def folded(records: list[t.Record], portion: int = 1 << 30) -> RunState:
    state = RunState()
    lines = list(enumerate(records))
    for start in range(0, len(lines), portion):
        reduce(state, lines[start : start + portion])
    return state


CALM = {"cores": 2.0, "busy_s": 0.8, "stolen_s": 0.0, "devices_s": 0.4, "load_s": {"orchestrator": 0.2}, "loop_ms": 2.0}
"""What the host did in each second of a round that nothing disturbed."""


def with_host(records: list[t.Record], rounds: dict[int, dict[str, Any]] | None = None) -> list[t.Record]:
    """The records with what the host did in every round: CALM, changed by `rounds`."""
    told: list[t.Record] = []
    starts = {record.round: record.at_ns for record in records if isinstance(record, t.RoundStarted)}
    for record in records:
        told.append(record)
        if isinstance(record, t.RoundFinished):
            start = starts[record.round]
            wall_s = (record.at_ns - start) / 1e9
            values = CALM | (rounds or {}).get(record.round, {})
            for name in ("busy_s", "stolen_s", "devices_s"):
                values[name] = None if values[name] is None else values[name] * wall_s
            values["load_s"] = {name: seconds * wall_s for name, seconds in values["load_s"].items()}
            told.append(HostRound(record.at_ns, start, record.round, **({"loops": 7} | values)))
    return told
