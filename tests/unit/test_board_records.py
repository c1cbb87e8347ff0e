"""Energy, heat and frequency caps of rounds, from readings on the device's own clock."""

from __future__ import annotations

import pytest

from edgebed.errors import UsageError
from edgebed.wire.reading import BoardReading
from orchestrator.analysis.tables import assignments_table, readings_table
from orchestrator.records import types as t
from orchestrator.records.account import explained_summary, whole
from orchestrator.records.board_marks import marks_of
from orchestrator.records.host_records import BoardReadings
from orchestrator.records.run_index import sort
from orchestrator.references.recording import record
from tests.summaries import summarised
from tests.synthetic import Synthetic

S = 1_000_000_000


def run_with(watts: dict[int, float | None], **more: object) -> tuple[list[t.Record], Synthetic, list[t.RoundFinished]]:
    """A run whose device `weak` read so many watts, so many tenths of a second after the first round began."""
    made = Synthetic(rounds=2)
    [first, *_] = [r for r in made.records if isinstance(r, t.RoundStarted)]
    ends = [r for r in made.records if isinstance(r, t.RoundFinished)]
    readings = tuple(
        BoardReading(made.on_device("weak", first.at_ns + tenth * S // 10), watts=value, **more)  # type: ignore[arg-type]
        for tenth, value in watts.items()
    )
    records = [*made.records[:-1], BoardReadings(ends[-1].at_ns, "weak", "weak#1", readings), made.records[-1]]
    return records, made, ends


def test_a_constant_power_times_the_round_s_length() -> None:
    run, _, ends = run_with(dict.fromkeys(range(-10, 60), 4.0))
    summary = summarised(run)
    assert summary["joules"]["weak"] == pytest.approx([4.0 * end.seconds for end in ends])
    assert summary["joules"]["strong"] == [None, None]
    state = whole(run)
    own = assignments_table(state.run, explained_summary(state)).query("device == 'weak'")
    assert own["joules"].tolist() == pytest.approx(summary["joules"]["weak"])


def test_a_power_that_grows_evenly_counts_with_its_mean() -> None:
    run, _, ends = run_with({tenth: float(tenth) + 20 for tenth in range(-10, 60)})
    mean = 20 + 10 * ends[0].seconds / 2
    assert summarised(run)["joules"]["weak"][0] == pytest.approx(mean * ends[0].seconds)


def test_a_board_that_throttled_makes_no_reference() -> None:
    run, _, _ = run_with({1: None, 2: None}, throttled=0x50004)
    with pytest.raises(UsageError, match=r"the board weak was slowed down during .* \(throttled\)") as refused:
        record("x", [sort(run)], {}, {})
    assert "cool the board" in refused.value.hint


@pytest.mark.parametrize("watts", [{0: 4.0}, {0: 4.0, 1: 4.0}, {0: None, 20: None}, {-200: 4.0, 200: 4.0}])
def test_too_few_readings_tell_no_energy(watts: dict[int, float | None]) -> None:
    run, _, _ = run_with(watts)
    assert summarised(run)["joules"]["weak"][0] is None


def test_heat_and_caps_mark_the_rounds_in_which_they_were() -> None:
    run, _, _ = run_with({1: None, 2: None}, celsius=81.0, throttled=0x5000A, cap=0.5)
    summary = summarised(run)
    assert summary["board_marks"]["weak"] == [["frequency_cap", "heat"], None]
    assert summary["board_celsius"]["weak"] == [81.0, None]


@pytest.mark.parametrize(
    ("reading", "marks"),
    [
        (BoardReading(0), None),
        (BoardReading(0, throttled=0), ()),
        (BoardReading(0, throttled=0x50005), ("under_voltage", "throttled")),
        (BoardReading(0, cap=1.0, hot=False), ()),
        (BoardReading(0, cap=0.8), ("frequency_cap",)),
        (BoardReading(0, hot=True), ("heat",)),
        (BoardReading(0, throttled=8, governor="powersave", power_mode="7W"), ("heat", "power_mode", "governor")),
        (BoardReading(0, governor="powersave"), ("governor",)),
    ],
)
def test_what_slows_a_board_down(reading: BoardReading, marks: tuple[str, ...] | None) -> None:
    assert marks_of(reading) == marks


def test_every_reading_is_a_row_on_the_run_s_time_axis() -> None:
    run, _, _ = run_with({0: 4.0, 5: None}, mhz=(1000, 2000, None), hot=True)
    table = readings_table(sort(run))
    assert table["start_s"].tolist() == pytest.approx([0.0, 0.5], abs=0.01)
    assert table["mhz"].tolist() == [1500.0, 1500.0]
    assert table["watts"].isna().tolist() == [False, True]
    assert table["marks"].tolist() == ["heat", "heat"]


def test_facts_of_a_board_stand_in_the_summary() -> None:
    made = Synthetic()
    joined = t.DeviceJoined(made.records[0].at_ns + 1, "weak", "weak#1", False, {"sensors": "none", "cores": "4"})  # type: ignore[union-attr]
    summary = summarised([made.records[0], joined, *made.records[1:]])
    assert summary["boards"] == {"weak": {"sensors": "none", "cores": "4"}}
