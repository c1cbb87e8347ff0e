"""The figures of a run, typed; as JSON they are `summary.json`, flat, with names and units that docs/records.md lists.

Every time is divided by the dilation. The time axis is the sum of the rounds' seconds, each from its plan to the end of
its merge; evaluation and checkpoints are not part of training and are not in it. Where rounds overlap (lanes of an
asynchronous method) the axis is the wall clock from the first round's start, with the evaluations, which run at the
same time as other lanes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from orchestrator.records.critical.bound_by import Part, RoundBounds, in_words
from orchestrator.records.critical.whatif import Saving
from orchestrator.records.types import HostIndex


class NodeOfRound(msgspec.Struct, frozen=True):
    """What a node of a Swarm did in a round: shares of the CPU time of its cores; mean load of the last minute; its
    clock minus this host's."""

    busy_share: float | None = None
    stolen_share: float | None = None
    others_share: float | None = None
    load: float | None = None
    clock_s: float | None = None


class RoundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One finished round. In `summary.json` each field is a list over the rounds, in the order in which they ended."""

    number: int
    lane: str = ""
    round_s: float
    elapsed_s: float
    accuracy: float | None = None
    loss: float | None = None
    merged: int = 0
    block: str | None = None
    position: int | None = None
    bytes: int = 0
    straggler: str | None = None
    straggler_why: str | None = None
    straggler_gaps_s: float | None = None
    straggler_behind_s: dict[str, float] | None = None
    straggler_profile: str | None = None
    waited_for: str | None = None
    waited_s: float = 0.0
    late_s: float | None = None
    orchestrator_share: float | None = None
    timeline_residual: float | None = None
    round_bounds: RoundBounds | None = None
    disturbed: tuple[str, ...] | None = None
    disturbed_why: str | None = None
    host_speed: float | None = None
    stolen_share: float | None = None
    others_share: float | None = None
    extra: dict[str, float] = {}
    load: dict[str, float] = {}
    nodes: dict[str, NodeOfRound] = {}


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One device. In `summary.json` each field is an object with an entry per device.

    The lists have an entry per finished round: null where the device had no assignment, or did not finish it; those of
    boards also where it is none, or where its sensors do not tell. `wait_s` is None where it took part in no round.
    """

    idle_share: float | None = None
    throttled_share: float | None = None
    tasks_in_quota: float | None = None
    batches_in_quota: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    phase_s: dict[str, float] = {}
    wait_s: dict[str, float] | None = None
    cut: list[int | None] = []
    predicted_s: list[float | None] = []
    actual_s: list[float | None] = []
    update_norm: list[float | None] = []
    behind_reference_s: list[float | None] = []
    not_got_s: list[float | None] = []
    joules: list[float | None] = []
    board_celsius: list[float | None] = []
    board_marks: list[tuple[str, ...] | None] = []


class BoundBy(msgspec.Struct, frozen=True):
    """What bounded the rounds. `rounds`: how many of them are known; `why_not`: why others are not."""

    text: str = ""
    parts: tuple[Part, ...] = ()
    rounds: int = 0
    why_not: str = ""


class Savings(msgspec.Struct, frozen=True):
    """What faster parts would have saved of `rounds_s`. `slowest_links`: devices, the most often slowest first."""

    rounds_s: float = 0.0
    slowest_links: tuple[str, ...] = ()
    savings: tuple[Saving, ...] = ()


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is, under which conditions it runs, and how far it has come."""

    run: str
    experiment: str
    method: str
    seed: int
    series: str = ""
    setting: dict[str, Any] = {}
    interleaved: bool = False
    backend: str
    enforcement: str
    costs: str = ""
    dilation: float
    grain: str = ""
    speed: str = ""
    host_index: HostIndex | None = None
    kernel: str = ""
    hz: int | None = None
    dilation_by: str = ""
    server_cpus: float | None = None
    held_server_cpus: float | None = None
    server_note: str = ""
    threads_note: str = ""
    calibrated: bool
    started: str
    resumed: int = 0
    ended: str
    target_accuracy: float
    test_accuracy: float | None = None
    boards: dict[str, dict[str, str]] = {}
    unlimited: list[str] = []
    limited_boards: list[str] = []
    real_boards: dict[str, str] = {}
    look_alikes: dict[str, str] = {}
    profiles: dict[str, str] = {}
    time_to_target_s: float | None = None
    final_accuracy: float | None = None
    best_accuracy: float | None = None
    straggler_gap_s: float | None = None
    bytes_up_total: int = 0
    bytes_down_total: int = 0


class Summary(Progress, frozen=True, kw_only=True):
    """All figures of a run, over or going on."""

    total_s: float = 0.0
    round_s_median: float | None = None
    round_s_p95: float | None = None
    timeline_residual_max: float | None = None
    idle_share_mean: float | None = None
    tasks_in_quota_share: float | None = None
    batches_in_quota_share: float | None = None
    late_rounds: int | None = None
    early_s: dict[str, float] = {}
    orchestrator_share_mean: float | None = None
    reference_s: dict[str, float] = {}
    devices_left_out: dict[str, int] = {}
    events: int = 0
    disturbed_rounds: int | None = None
    bound_by: BoundBy
    what_if: Savings = Savings()
    wait_share_mean: dict[str, float] = {}
    rounds: list[RoundFigures] = []
    devices: dict[str, DeviceFigures] = {}

    @property
    def extra_names(self) -> list[str]:
        """Of what the method measured besides, in any round."""
        return list(dict.fromkeys(name for row in self.rounds for name in row.extra))

    def as_dict(self) -> dict[str, Any]:
        """As in `summary.json`."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        rounds, devices = found.pop("rounds"), found.pop("devices")
        by_round: dict[str, Any] = {name: [row[name] for row in rounds] for name in RoundFigures.__struct_fields__}
        for row, bounds in zip(self.rounds, by_round["round_bounds"], strict=True):
            if row.round_bounds is not None:
                bounds["text"] = in_words(row.round_bounds)
        by_round |= {name: _columns(by_round[name]) for name in ("extra", "load")}
        by_round["nodes"] = {
            name: _columns([{node: each[name] for node, each in nodes.items()} for nodes in by_round["nodes"]])
            for name in NodeOfRound.__struct_fields__
        }
        by_device = {
            name: {device: each[name] for device, each in devices.items()} for name in DeviceFigures.__struct_fields__
        }
        by_device["wait_s"] = {device: waits for device, waits in by_device["wait_s"].items() if waits is not None}
        return found | {"rounds": len(rounds)} | by_round | by_device

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Summary:
        """From `summary.json`.

        Raises:
            LookupError, ValueError: another version wrote it, or it is damaged. Nothing large is made of a small file.
        """
        names = [name for name in RoundFigures.__struct_fields__ if name in found and name not in NESTED]
        by_round: dict[str, list[Any]] = {name: msgspec.convert(found[name], list[Any]) for name in names}
        count = len(by_round["number"])
        if found["rounds"] != count:
            raise msgspec.ValidationError(f"it counts {found['rounds']} rounds, and has figures of {count}")
        for name in ("extra", "load"):
            by_round[name] = _rows(msgspec.convert(found.get(name, {}), dict[str, list[Any]]), count)
        columns = msgspec.convert(found.get("nodes", {}), dict[str, dict[str, list[Any]]])
        nodes = {name: _rows(column, count) for name, column in columns.items()}
        by_round["nodes"] = [_transposed({name: rows[i] for name, rows in nodes.items()}) for i in range(count)]
        known = [name for name in DeviceFigures.__struct_fields__ if name in found]
        by_device = {name: msgspec.convert(found[name], dict[str, Any]) for name in known}
        rounds = [dict(zip(by_round, row, strict=True)) for row in zip(*by_round.values(), strict=True)]
        return msgspec.convert({**found, "rounds": rounds, "devices": _transposed(by_device)}, cls)


NESTED = ("extra", "load", "nodes")
"""Figures of a round by names of their own: in `summary.json` objects of lists."""


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Lists by name, with an entry per row; None where a row lacks the name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _rows(columns: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    """The opposite: without the names that are None."""
    return [{name: values[i] for name, values in columns.items() if values[i] is not None} for i in range(count)]


def _transposed(outer: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By inner name first."""
    names: Iterable[str] = dict.fromkeys(inner for each in outer.values() for inner in each)
    return {inner: {name: each[inner] for name, each in outer.items() if inner in each} for inner in names}
