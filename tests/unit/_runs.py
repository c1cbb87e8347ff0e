"""Records of runs that never took place: kept in a folder, throttled, resumed, folded into the state of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from orchestrator.records import types as t
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
