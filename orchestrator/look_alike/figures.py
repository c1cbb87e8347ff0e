"""What is measured of a board and of its look-alike, the profile that is fitted to it, and their differences. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from edgebed.limits.spec import Limits
from orchestrator.fleet.spec.profile import ProfileSpec

LEAST_LATENCY_MS = 0.5
"""A latency below it is not added: the difference of two round trips is not known better."""

DIGITS = 4
"""Of the figures in a profile."""


class Step(msgspec.Struct, frozen=True):
    """One training step of the device half at a cut: seconds on the wall, CPU seconds of the training thread, and MiB
    that the agent then has in memory."""

    wall_s: float
    cpu_s: float
    memory_mib: float


class LinkFigures(msgspec.Struct, frozen=True):
    """Rates in bit/s on the wire, and half of the shortest round trip of a control message in ms."""

    uplink_bit_s: float
    downlink_bit_s: float
    latency_ms: float


class Figures(msgspec.Struct, frozen=True):
    """Of one device. `steps`: by cut."""

    steps: dict[int, Step]
    link: LinkFigures

    @property
    def memory_mib(self) -> float:
        return max(step.memory_mib for step in self.steps.values())


class Row(msgspec.Struct, frozen=True):
    """One figure of the board and of its look-alike. `error`: look-alike ÷ board − 1; None where the board's is 0."""

    name: str
    unit: str
    board: float
    look_alike: float
    error: float | None


def median_step(steps: Sequence[Step]) -> Step:
    """Of repeated measurements."""
    return Step(
        wall_s=statistics.median(step.wall_s for step in steps),
        cpu_s=statistics.median(step.cpu_s for step in steps),
        memory_mib=max(step.memory_mib for step in steps),
    )


def fitted_cpus(board: Mapping[int, Step], host: Mapping[int, Step]) -> float:
    """CPUs of this host with which a step takes as long as on the board: CPU seconds of a step here ÷ seconds of the
    same step there, median over the cuts."""
    return statistics.median(host[cut].cpu_s / board[cut].wall_s for cut in board)


def fitted_limits(board: Figures, host: Mapping[int, Step], base_ms: float, memory_mib: int) -> Limits:
    """The limits under which a device of this host is like the board.

    Args:
        host: steps on this host.
        base_ms: half of the round trip to a device of this host without latency.
        memory_mib: the board's.
    """
    latency_ms = round(board.link.latency_ms - base_ms, 1)
    return Limits(
        cpus=rounded(fitted_cpus(board.steps, host)),
        uplink_bit_s=_rate(board.link.uplink_bit_s),
        downlink_bit_s=_rate(board.link.downlink_bit_s),
        memory_mib=memory_mib,
        latency_ms=latency_ms if latency_ms >= LEAST_LATENCY_MS else 0.0,
    )


def corrected(profile: ProfileSpec, board: Mapping[int, Step], look_alike: Mapping[int, Step]) -> ProfileSpec:
    """The profile with CPUs changed by what its look-alike was too slow or too fast: a step that a quota stops needs
    more CPU time than one that is not stopped."""
    factor = statistics.median(look_alike[cut].wall_s / board[cut].wall_s for cut in board)
    limits = msgspec.structs.replace(profile.limits, cpus=rounded(profile.limits.cpus * factor))
    return msgspec.structs.replace(profile, limits=limits)


def _rate(bit_s: float) -> int:
    return round(rounded(bit_s / 1e6) * 1e6)


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


UNKNOWN_MIB, LEAST_MIB, MOST_MIB = 1024, 64, 4 << 20
"""Memory of a board that does not tell it; what a profile may have."""


def memory_of(facts: Mapping[str, str]) -> int:
    """MiB of a board, as it says itself."""
    text = facts.get("memory_mib", "")
    return min(MOST_MIB, max(LEAST_MIB, int(text))) if text.isascii() and text.isdigit() else UNKNOWN_MIB


def rows(board: Figures, look_alike: Figures) -> list[Row]:
    """The figures of both, in the order in which they are printed."""
    steps = [
        _row(f"step, {cut} stage{'s' if cut > 1 else ''}", "ms", 1e3 * step.wall_s, 1e3 * look_alike.steps[cut].wall_s)
        for cut, step in board.steps.items()
    ]
    return [
        *steps,
        _row("uplink", "Mbit/s", board.link.uplink_bit_s / 1e6, look_alike.link.uplink_bit_s / 1e6),
        _row("downlink", "Mbit/s", board.link.downlink_bit_s / 1e6, look_alike.link.downlink_bit_s / 1e6),
        _row("half a round trip", "ms", board.link.latency_ms, look_alike.link.latency_ms),
        _row("memory of the agent", "MiB", board.memory_mib, look_alike.memory_mib),
    ]


def _row(name: str, unit: str, board: float, look_alike: float) -> Row:
    return Row(name, unit, board, look_alike, look_alike / board - 1 if board else None)


def profile_values(profile: ProfileSpec) -> dict[str, object]:
    """The profile as its file has it."""
    limits = profile.limits
    return {
        "source": profile.source,
        "look_alike_of": profile.look_alike_of,
        "cpus": limits.cpus,
        "uplink_mbit_s": limits.uplink_bit_s / 1e6,
        "downlink_mbit_s": limits.downlink_bit_s / 1e6,
        "memory_mib": limits.memory_mib,
        "latency_ms": limits.latency_ms,
    }


def source_of(board: str, facts: Mapping[str, str], job: str, host: str, day: str, version: str) -> str:
    """Where a fitted profile's figures come from.

    Args:
        facts: what the board says of itself.
        job: what it did, in words.
        host: this host, in words.
    """
    about = [facts.get("board", ""), facts.get("machine", ""), f"kernel {facts.get('kernel', '?')}"]
    about += [f"torch {facts.get('torch', '?')}", facts.get("power_mode", "")]
    return (
        f"measured on {day} by `edgebed boards measure {board}` (edgebed {version}) on the board {board} "
        f"({', '.join(each for each in about if each)}): {job}; the CPUs are those of {host}"
    )
