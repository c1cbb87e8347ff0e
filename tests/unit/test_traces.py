"""Traces: CSV and mahimahi files become rates over time, or are refused with the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import UsageError
from edgebed.limits.spec import LEAST_MBIT_S
from orchestrator.scenario.traces import Playback, Sample, Trace, parse_csv, parse_mahimahi, trace_of

CSV = (
    "# a comment\ntime_s,uplink_mbit_s,downlink_mbit_s,latency_ms,present\n0,5,10,20,1\n1,2.5,10,20,1\n\n3,0,10,30,0\n"
)


def test_a_csv_file_gives_every_column_over_time() -> None:
    trace = parse_csv(CSV, "t.csv")
    assert trace.times == (0, 1, 3)
    assert trace.length_s == 5, "the last row holds as long as the one before it"
    assert trace.samples[0] == Sample(5, 10, 20, True)
    assert trace.samples[2] == Sample(LEAST_MBIT_S, 10, 30, False)


def test_a_csv_file_may_have_one_column_and_equal_rows_are_one_sample() -> None:
    trace = parse_csv("time_s, uplink_mbit_s\n0,5\n1,5\n2,6\n", "t.csv")
    assert trace == Trace((0, 2), (Sample(5), Sample(6)), 3)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "t.csv has no lines", "time_s,uplink_mbit_s"),
        ("time_s,uplink_mbits\n0,1\n1,2", "t.csv:1: there is no column 'uplink_mbits'; did you mean", "uplink_mbit_s"),
        ("time_s,latency_ms,latency_ms\n", "t.csv:1: a column is there twice", ""),
        ("time_s\n0\n1\n", "t.csv:1: the header is 'time_s'", "uplink_mbit_s"),
        ("time_s,latency_ms\n0,1\n1\n", "t.csv:3: 1 values under 2 columns", ""),
        ("time_s,uplink_mbit_s\n0,5\n1,5 Mbit\n", "t.csv:3: uplink_mbit_s is '5 Mbit'", "a number from 0 to 100000"),
        ("time_s,uplink_mbit_s\n0,nan\n1,5\n", "t.csv:2: uplink_mbit_s is 'nan'", ""),
        ("time_s,uplink_mbit_s\n0,-1\n1,5\n", "t.csv:2: uplink_mbit_s is '-1'", ""),
        ("time_s,present\n0,1\n1,0.5\n", "t.csv:3: present is '0.5'", "0 or 1"),
        ("time_s,uplink_mbit_s\n1,5\n2,5\n", "t.csv:2: the first time is 1 s", "begin at 0"),
        ("time_s,uplink_mbit_s\n0,5\n2,5\n\n2,6\n", "t.csv:5: 2 s comes after 2 s", "rise"),
        ("time_s,uplink_mbit_s\n0,5\n", "t.csv has 1 rows", "two rows"),
    ],
)
def test_a_csv_file_that_says_nothing_clear_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_csv(text, "t.csv")
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_packets_of_a_mahimahi_trace_are_counted_per_interval() -> None:
    lines = [*range(0, 1000, 10), *range(1000, 1500, 5), 2500]
    trace = parse_mahimahi("\n".join(map(str, lines)), "t.up", "uplink", 1.0)
    packet = 1504 * 8 / 1e6
    assert trace.length_s == 2.5
    assert trace.times == (0, 2.0), "100 packets in each of the first two seconds"
    assert [sample.uplink_mbit_s for sample in trace.samples] == pytest.approx([100 * packet, packet / 0.5])


def test_an_interval_without_packets_has_the_least_rate() -> None:
    trace = parse_mahimahi("10\n2990\n3000\n", "t.down", "downlink", 1.0)
    packet = 1504 * 8 / 1e6
    assert [sample.downlink_mbit_s for sample in trace.samples] == pytest.approx([packet, LEAST_MBIT_S, 2 * packet])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.up lasts 0 ms"),
        ("0\n0\n", "t.up lasts 0 ms"),
        ("5\n4\n", "t.up:2: 4 ms comes after 5 ms"),
        ("5\n6.5\n", "t.up:2: '6.5' is no time"),
        ("5\n-6\n", "t.up:2: '-6' is no time"),
        ("5\n٦\n", "t.up:2: '٦' is no time"),
        (f"{10**11}\n", "t.up has 100000000 intervals of 1 s"),
    ],
)
def test_a_mahimahi_trace_that_says_nothing_clear_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        parse_mahimahi(text, "t.up", "uplink", 1.0)


HOSTILE = st.text(st.sampled_from("0123456789.,-+e \n#_timesuplkmb"), max_size=200) | st.text(max_size=100)


@given(HOSTILE, st.booleans())
def test_any_text_is_a_trace_or_is_refused(text: str, csv: bool) -> None:
    try:
        trace = parse_csv(text, "t") if csv else parse_mahimahi(text, "t", "uplink", 1.0)
    except UsageError:
        return
    assert_sound(trace)


def assert_sound(trace: Trace) -> None:
    assert trace.times[0] == 0
    assert list(trace.times) == sorted(set(trace.times))
    assert trace.times[-1] < trace.length_s
    assert len(trace.times) == len(trace.samples) >= 1


RATES = st.lists(st.integers(1, 50), min_size=2, max_size=20)


@given(RATES)
def test_a_trace_that_is_written_is_read_again(rates: list[int]) -> None:
    text = "time_s,uplink_mbit_s\n" + "".join(f"{i},{rate}\n" for i, rate in enumerate(rates))
    trace = parse_csv(text, "t")
    assert_sound(trace)
    steps = [max(i for i, time_s in enumerate(trace.times) if time_s <= second) for second in range(len(rates))]
    assert [trace.samples[step].uplink_mbit_s for step in steps] == rates


@given(RATES, st.floats(0, 1, exclude_max=True), st.booleans())
def test_a_playback_begins_at_its_offset_and_goes_on_without_a_gap(rates: list[int], share: float, loop: bool) -> None:
    trace = trace_of(range(len(rates)), [Sample(uplink_mbit_s=rate) for rate in rates], len(rates))
    offset_s = share * trace.length_s
    playback = Playback(trace, 100.0, offset_s, loop)
    first = playback.first_step
    assert playback.begins_s(first) <= 100.0 <= playback.begins_s(first + 1)
    assert playback.sample(first) == Sample(uplink_mbit_s=rates[int(offset_s)])
    end = len(trace.samples)
    assert playback.begins_s(end) == pytest.approx(100.0 - offset_s + trace.length_s)
    assert playback.sample(end) == (trace.samples[0] if loop else None)
