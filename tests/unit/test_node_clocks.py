"""The clocks of a Swarm's nodes: how wrong they are, who is refused, and what is said of the others."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import FleetError
from orchestrator.fleet.host.checkup import Check, fit
from orchestrator.fleet.swarm.checkup import Swarm, check_swarm
from orchestrator.fleet.swarm.clocks import Clock, clock_of, drift_note, notes, refuse_wrong
from orchestrator.fleet.swarm.kernel_clock import checksum, parse_reply, request
from orchestrator.fleet.swarm.placement import Found

HOUR = 3600.0
IP_HEADER = bytes([0x45]) + bytes(19)


@given(st.floats(-1e8, 1e8), st.floats(0, 900), st.floats(0, 1))
def test_the_true_offset_lies_within_the_error(offset: float, trip: float, share: float) -> None:
    """The node may have answered at any moment of the round trip."""
    asked = 1_000.0
    clock = clock_of("n1", asked, asked + share * trip + offset, asked + trip)
    assert abs(clock.offset_s - offset) <= clock.error_s + 1e-6
    assert clock.wrong_s <= abs(offset) + 1e-6


def test_a_clock_that_is_rounded_down_is_less_sure() -> None:
    clock = clock_of("n1", 10.0, 10.001, 10.002, step_s=0.001)
    assert (clock.offset_s, clock.error_s) == (pytest.approx(0.0005), pytest.approx(0.0015))


def test_clocks_that_tls_does_not_bear_are_refused_together() -> None:
    fine = [Clock("n1", HOUR + 1, 2.0), Clock("n2", -HOUR, 0.0)]
    refuse_wrong(fine)
    with pytest.raises(FleetError) as refused:
        refuse_wrong([*fine, Clock("n3", -3 * HOUR, 0.1), Clock("n4", 45 * 24 * HOUR, 0.1)])
    assert str(refused.value) == (
        "clocks differ by more than 60 minutes: n3 is 3 hours behind this host, n4 is 45 days ahead of this host"
    )
    assert "timedatectl" in refused.value.hint


def test_a_clock_that_is_somewhat_wrong_is_noted() -> None:
    lines = list(notes([Clock("n1", -120, 0.02), Clock("n2", 1.5, 0.6), Clock("n3", 3 * HOUR, 0.0)]))
    assert lines == ["the clock of n1 is 2 minutes behind this host (± 20 ms); rounds and timeline do not depend on it"]


def test_a_steady_clock_that_moves_is_noted_once_the_errors_cannot_explain_it() -> None:
    first = Clock("n1", 1e6, 0.01)
    assert drift_note(first, Clock("n1", 1e6 + 0.12, 0.02)) == ""
    assert drift_note(first, Clock("n1", 1e6 + 0.25, 0.02)) == (
        "the clock of n1 has gained 250 ms since the start: phases of its devices may stand too late in the timeline "
        "by that"
    )
    assert drift_note(first, Clock("n1", 1e6 - 0.25, 0.02)).startswith("the clock of n1 has lost 250 ms since")


# ---- asked of the kernel ----


def reply(received_ms: int, identifier: int = 7, number: int = 1, kind: int = 14) -> bytes:
    return IP_HEADER + struct.pack("!BBHHHIII", kind, 0, 0, identifier, number, 5, received_ms, received_ms)


def test_a_request_has_its_checksum_and_the_time_of_day() -> None:
    """01:00:00.250 UTC of the second day."""
    made = request(7, 1, 86400 + HOUR + 0.25)
    assert checksum(made) == 0
    assert struct.unpack("!BBHHHIII", made)[3:6] == (7, 1, 3_600_250)


def test_a_reply_tells_the_time_of_day() -> None:
    assert parse_reply(reply(3_600_250), 7, 1) == 3600.25


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        reply(1)[:-1],
        reply(1, identifier=8),
        reply(1, number=2),
        reply(1, kind=13),
        reply(1 << 31),  # no UTC
    ],
)
def test_what_is_no_reply_to_the_question_is_left_alone(packet: bytes) -> None:
    assert parse_reply(packet, 7, 1) is None


@given(st.binary(max_size=64))
def test_any_packet_is_read_without_an_error(packet: bytes) -> None:
    told = parse_reply(packet, 7, 1)
    assert told is None or 0 <= told < 2**31 / 1000


# ---- what the doctor says ----

NODES = (Found("a", "one", "10.0.0.1", 4.0), Found("b", "two", "10.0.0.2", 2.0))
ONE, TWO = map(str, NODES)


def row_of(*clocks: Clock, why: str = "") -> Check:
    rows = list(check_swarm(Swarm(NODES, "a", image=True, clocks=clocks, clocks_why=why), needed=True))
    return next(row for row in rows if row.name == "clocks of the nodes")


def test_the_doctor_tells_how_far_clocks_are_off() -> None:
    right = row_of(Clock(ONE, 0.0, 0.001), Clock(TWO, -0.02, 0.003))
    assert (right.found, right.lack) == ("2 within 23 ms of this host's", "")
    noted = row_of(Clock(ONE, 0.0, 0.001), Clock(TWO, 90.0, 0.003))
    assert (noted.lack, fit([noted])) == ("two 10.0.0.2 is 90 s ahead of this host", True)
    assert not fit([row_of(Clock(ONE, 0.0, 0.001), Clock(TWO, -3 * HOUR, 0.003))])


def test_the_doctor_says_whose_clock_it_does_not_know() -> None:
    assert row_of(why="asking needs root").found == f"not known of {ONE}, {TWO}: asking needs root"
    assert row_of(Clock(ONE, 0.0, 0.001)).found == f"1 within 1 ms of this host's; not known of {TWO}: no answer"
    assert row_of().lack == ""
