"""Which limits were in force on a device at a moment, from the records of a session. Pure."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from orchestrator.records import types as t
from orchestrator.records.run_index import Session


class InForce(msgspec.Struct, frozen=True):
    """The profile of a device; rates as they were set, after dilation, in bit/s."""

    profile: str
    cpus: float
    uplink_bit_s: float
    downlink_bit_s: float
    latency_ms: float = 0.0
    period_us: int = 100_000  # of the CPU quota
    unlimited: bool = False
    node: str = ""  # of a Swarm, on which it is

    @property
    def link_bit_s(self) -> float:
        """Rate of the slower direction."""
        return min(self.uplink_bit_s, self.downlink_bit_s)


class LimitsInForce:
    """All limits of one session, by device and time."""

    def __init__(self, session: Session) -> None:
        self._rows: dict[str, list[InForce]] = {}
        self._times: dict[str, list[int]] = {}
        for row in rows_of(session):
            rows = self._rows.setdefault(row.device, [])
            rows.append(_in_force(row, rows[-1] if rows else None))
            self._times.setdefault(row.device, []).append(row.at_ns)
        dilation = session.started.dilation
        self._asked = {info.name: _asked(info, dilation) for info in session.started.devices}

    def at(self, device: str, at_ns: int) -> InForce | None:
        """The limits that were set last before `at_ns`; before the first, that one, or what the fleet file asks for."""
        rows = self._rows.get(device)
        if not rows:
            return self._asked.get(device)
        return rows[max(0, bisect_right(self._times[device], at_ns) - 1)]


def rows_of(session: Session) -> list[t.LimitsSet | t.ScenarioStep]:
    """The records that say which limits hold from then on, in the order of time."""
    return sorted([*session.limits, *session.rates], key=lambda row: row.at_ns)


def _in_force(row: t.LimitsSet | t.ScenarioStep, before: InForce | None) -> InForce:
    """A trace changes rates only."""
    if isinstance(row, t.LimitsSet):
        return InForce(
            row.profile, row.cpus, row.uplink_bit_s, row.downlink_bit_s, row.latency_ms, row.period_us, row.unlimited,
            row.details.get("node", ""),
        )  # fmt: skip
    up, down = row.uplink_bit_s or 0, row.downlink_bit_s or 0
    if before is None:
        return InForce("", 0.0, up, down)
    return msgspec.structs.replace(before, uplink_bit_s=up, downlink_bit_s=down)


def _asked(info: t.DeviceInfo, dilation: float) -> InForce:
    return InForce(info.profile, info.cpus / dilation, info.uplink_bit_s / dilation, info.downlink_bit_s / dilation)


class Change(msgspec.Struct, frozen=True):
    """A device got another profile."""

    at_ns: int
    device: str
    round: int | None  # the first round under it; None: none followed
    before: str
    after: t.LimitsSet


def changes(session: Session) -> list[Change]:
    """Every change of a profile in a session, in the order of time."""
    starts = sorted((facts.start_ns, facts.number) for facts in session.rounds.values())
    profiles: dict[str, str] = {}
    found = []
    for row in sorted(session.limits, key=lambda row: row.at_ns):
        before = profiles.get(row.device)
        if before not in (None, row.profile):
            following = bisect_right(starts, (row.at_ns, 0))
            number = starts[following][1] if following < len(starts) else None
            found.append(Change(row.at_ns, row.device, number, str(before), row))
        profiles[row.device] = row.profile
    return found
