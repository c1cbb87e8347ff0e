"""Every second has a name, and whatever is wrong with the account shows in the residual."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.records import types as t
from orchestrator.records.critical.stragglers import straggler
from orchestrator.records.run_index import sort
from orchestrator.records.timeline.timeline import DeviceTimeline, RoundTimeline, timelines
from tests.synthetic import BATCHES, FLEET, MS, Speed, Synthetic, doubled, without


def rounds(records: list[t.Record]) -> list[RoundTimeline]:
    return list(timelines(sort(records)))


def check_complete(device: DeviceTimeline, facts_start: int, facts_end: int) -> None:
    """Segments follow one another from the window's start to its end."""
    edges = [facts_start]
    for segment in device.segments:
        assert segment.start_ns == edges[-1]
        assert segment.end_ns > segment.start_ns
        edges.append(segment.end_ns)
    assert edges[-1] == facts_end


def worst(records: list[t.Record], device: str | None = None) -> float:
    return max(d.residual for r in rounds(records) for name, d in r.devices.items() if device in (None, name))


# ---- names ----


def test_reported_phases_keep_their_length_on_any_clock() -> None:
    for timeline in rounds(Synthetic().records):
        for name, speed in FLEET.items():
            totals = timeline.devices[name].totals()
            assert totals["compute"] == BATCHES * speed.compute * MS
            assert totals["upload_tail"] == speed.tail * MS
            assert totals.get("blocked", 0) == speed.blocked * MS
            assert totals["server_wait"] == speed.server * MS


def test_waits_are_named_by_what_the_orchestrator_did() -> None:
    totals = rounds(Synthetic().records)[1].devices["strong"].totals()
    assert (totals["merge"], totals["evaluation"], totals["checkpoint"]) == (20 * MS, 40 * MS, 10 * MS)
    assert totals["plan"] == 5 * MS
    assert "waiting" not in totals
    assert "unreported" not in totals


def test_the_barrier_names_who_was_waited_for() -> None:
    timeline = rounds(Synthetic().records)[0]
    waits = [s for s in timeline.devices["strong"].segments if s.name == "wait_for_others"]
    assert [s.detail for s in waits] == ["weak"]
    facts = timeline.facts
    assert sum(s.end_ns - s.start_ns for s in waits) == facts.done["weak"].at_ns - facts.done["strong"].at_ns
    assert "wait_for_others" not in timeline.devices["weak"].totals()


def test_the_way_of_the_first_chunk_is_download_and_what_precedes_it_dispatch() -> None:
    late = [
        msgspec.structs.replace(r, at_ns=r.at_ns + 3 * MS) if isinstance(r, t.TaskSent) else r
        for r in Synthetic().records
    ]
    totals = rounds(late)[0].devices["weak"].totals()
    assert totals["dispatch"] == 3 * MS
    assert totals["download"] == (FLEET["weak"].download + 2) * MS


def test_a_device_that_was_not_drawn_is_idle() -> None:
    run = Synthetic(drawn={1: ("weak", "middle")})
    timeline = rounds(run.records)[1]
    assert set(timeline.devices["strong"].totals()) == {"idle"}
    assert "idle" not in timeline.devices["weak"].totals()


def test_a_lost_device_is_offline_from_its_last_word_and_left_out_once_it_is_back() -> None:
    run = Synthetic(lost=(1, "middle"))
    totals = rounds(run.records)[1].devices["middle"].totals()
    assert totals["offline"] == 500 * MS
    assert totals["left_out"] > 0
    assert worst(run.records) == pytest.approx(0, abs=1e-6)
    again = rounds(run.records)[2].devices["middle"].totals()
    assert again["compute"] == BATCHES * FLEET["middle"].compute * MS


def test_a_device_that_never_came_is_offline() -> None:
    records = Synthetic().records
    started = records[0]
    assert isinstance(started, t.RunStarted)
    ghost = msgspec.structs.replace(started.devices[0], name="ghost")
    records[0] = msgspec.structs.replace(started, devices=(*started.devices, ghost))
    for timeline in rounds(records):
        assert set(timeline.devices["ghost"].totals()) == {"offline"}
        assert timeline.devices["ghost"].residual == 0


def test_one_that_leaves_for_good_stays_offline() -> None:
    records = Synthetic(lost=(1, "middle")).records
    back = next(i for i, r in enumerate(records) if isinstance(r, t.DeviceJoined) and r.again)
    kept = records[:back] + [r for r in records[back:] if getattr(r, "device", "") != "middle"]
    assert set(rounds(kept)[3].devices["middle"].totals()) == {"offline"}
    assert worst(kept) == pytest.approx(0, abs=1e-6)


def test_a_device_that_went_on_working_while_given_up_keeps_its_own_account() -> None:
    """Given up by mistake, or frozen and thawed: the same incarnation comes back and reports what it did meanwhile."""
    records = Synthetic().records
    start = rounds(records)[1].facts.start_ns
    at = next(i for i, r in enumerate(records) if isinstance(r, t.RoundStarted) and r.round == 1)
    away: list[t.Record] = [
        t.DeviceLeft(start + 200 * MS, "weak", "silence"),
        t.DeviceJoined(start + 900 * MS, "weak", "weak#1", True),
    ]
    totals = rounds(records[: at + 1] + away + records[at + 1 :])[1].devices["weak"].totals()
    assert totals["compute"] == BATCHES * FLEET["weak"].compute * MS
    assert "offline" not in totals


def test_a_round_that_a_kill_cut_off_says_so() -> None:
    last = rounds(Synthetic(finish=False).records)[-1]
    assert last.facts.cut_off
    assert "unreported" in last.devices["strong"].totals()
    assert not any(r.facts.cut_off for r in rounds(Synthetic().records))


def test_two_stretches_with_different_clocks_are_never_mixed() -> None:
    first = Synthetic(rounds=3, finish=False)
    second = Synthetic(rounds=2, first_round=2)  # the same monotonic times again: the machine was restarted
    together = rounds(first.records + second.records)
    assert [r.facts.number for r in together] == [0, 1, 2, 3]
    counted = [d.residual for r in together for d in r.devices.values() if not r.facts.cut_off]
    assert max(counted) == pytest.approx(0, abs=1e-6)
    assert len(counted) == 12


# ---- the residual ----


@pytest.mark.parametrize("phase", ["download", "compute", "upload_tail"])
def test_a_missing_phase_report_shows(phase: str) -> None:
    records = Synthetic().records
    lost_ns = getattr(FLEET["weak"], "tail" if phase == "upload_tail" else phase) * MS
    timeline = rounds(without(records, "weak", phase))[0]
    weak = timeline.devices["weak"]
    assert weak.residual >= lost_ns / weak.window_ns - 1e-9
    assert weak.totals()["unreported"] == lost_ns
    assert timeline.devices["strong"].residual == pytest.approx(0, abs=1e-6)


def test_a_doubled_phase_report_shows() -> None:
    weak = rounds(doubled(Synthetic().records, "weak", "compute"))[0].devices["weak"]
    assert weak.overlap_ns == FLEET["weak"].compute * MS
    assert weak.residual >= weak.overlap_ns / weak.window_ns


def test_a_gap_and_an_overlap_of_the_same_length_do_not_cancel() -> None:
    records = doubled(without(Synthetic().records, "weak", "compute"), "weak", "compute")
    weak = rounds(records)[0].devices["weak"]
    assert weak.residual >= FLEET["weak"].compute * MS / weak.window_ns


@pytest.mark.parametrize("drift", [0.03, -0.03])
def test_a_clock_that_runs_at_another_speed_shows_where_offsets_are_repeated(drift: float) -> None:
    residuals = [r.devices["weak"].residual for r in rounds(Synthetic(rounds=5, drift=drift).records)[:-1]]
    assert all(value == pytest.approx(abs(drift), rel=0.2) for value in residuals)


@pytest.mark.parametrize("drift", [0.03, -0.03])
def test_a_clock_that_runs_at_another_speed_shows_even_with_one_offset(drift: float) -> None:
    assert worst(Synthetic(rounds=5, drift=drift, clock_every_round=False).records) > 0.02


def test_drift_of_a_real_crystal_stays_below_the_limit() -> None:
    assert worst(Synthetic(rounds=5, drift=50e-6).records) < 0.001


def test_an_offset_that_is_wrong_puts_effects_before_causes() -> None:
    wrong = [
        msgspec.structs.replace(r, offset_ns=r.offset_ns + 300 * MS)
        if isinstance(r, t.ClockOffset) and r.device == "weak"
        else r
        for r in Synthetic().records
    ]
    assert rounds(wrong)[0].devices["weak"].disorder_ns > 200 * MS
    assert worst(wrong, "weak") > 0.1


def test_phases_without_any_offset_are_not_placed_by_guess() -> None:
    records = [r for r in Synthetic().records if not (isinstance(r, t.ClockOffset) and r.device == "weak")]
    assert rounds(records)[0].devices["weak"].residual > 0.9


def test_a_silent_agent_without_any_sign_of_death_is_a_gap() -> None:
    records = [r for r in Synthetic().records if not (isinstance(r, t.DevicePhases) and r.device == "weak")]
    device = rounds(records)[0].devices["weak"]
    assert set(device.totals()) == {"unreported"}
    assert device.residual == 1


LENGTHS = st.integers(min_value=1, max_value=700)
SPEEDS = st.builds(
    Speed, download=LENGTHS, decode=LENGTHS, compute=LENGTHS, encode=LENGTHS, tail=LENGTHS, server=st.integers(0, 300)
)


@settings(max_examples=60, deadline=None)
@given(fleet=st.lists(SPEEDS, min_size=1, max_size=4), lost=st.booleans(), drift=st.floats(-1e-4, 1e-4))
def test_any_split_of_a_round_adds_up(fleet: list[Speed], lost: bool, drift: float) -> None:
    names = {f"d{i}": speed for i, speed in enumerate(fleet)}
    run = Synthetic(names, 3, lost=(1, "d0") if lost and len(fleet) > 1 else None, drift=drift)
    for timeline in rounds(run.records):
        for device in timeline.devices.values():
            check_complete(device, timeline.facts.start_ns, timeline.facts.end_ns)
            assert device.residual < 0.002


@settings(max_examples=60, deadline=None)
@given(
    phase=st.sampled_from(["download", "decode", "compute", "encode", "upload_tail"]),
    nth=st.integers(0, 2),
    edit=st.sampled_from([without, doubled]),
)
def test_any_injected_fault_is_seen_in_its_round(phase, nth, edit) -> None:  # type: ignore[no-untyped-def]
    records = edit(Synthetic().records, "weak", phase, nth)
    length = getattr(FLEET["weak"], "tail" if phase == "upload_tail" else phase) * MS
    found = [r.devices["weak"] for r in rounds(records)]
    assert max(d.residual * d.window_ns for d in found) >= length - 1
    for timeline, device in zip(rounds(records), found, strict=True):
        check_complete(device, timeline.facts.start_ns, timeline.facts.end_ns)


@settings(max_examples=30, deadline=None)
@given(seed=st.randoms(use_true_random=False))
def test_records_in_any_order_of_arrival_give_the_same_names(seed) -> None:  # type: ignore[no-untyped-def]
    """Phases arrive late and out of step with the orchestrator's own records."""
    records = Synthetic(rounds=2).records
    held = [r for r in records if isinstance(r, t.DevicePhases)]
    rest = [r for r in records if not isinstance(r, t.DevicePhases)]
    late = [r for name in FLEET for r in held if r.device == name]
    cut = seed.randint(12, len(rest))
    assert [r.devices for r in rounds(rest[:cut] + late + rest[cut:])] == [r.devices for r in rounds(records)]


# ---- stragglers ----


@pytest.mark.parametrize(
    ("speed", "why"),
    [
        (Speed(compute=900), "cpu"),
        (Speed(tail=900), "uplink"),
        (Speed(blocked=900), "uplink"),
        (Speed(blocked=900, held=900), "server"),
        (Speed(download=900), "downlink"),
        (Speed(server=900), "server"),
    ],
)
def test_the_straggler_and_its_cause(speed: Speed, why: str) -> None:
    fleet = {"a": Speed(), "slow": speed, "b": Speed(), "c": Speed()}
    found = straggler(rounds(Synthetic(fleet).records)[0])
    assert found is not None
    assert (found.device, found.why) == ("slow", why)
    assert found.gap_s == pytest.approx(found.behind_s[why], abs=0.01)
    assert found.gap_s > 0.5


def test_one_device_alone_has_nobody_to_be_behind() -> None:
    assert straggler(rounds(Synthetic({"a": Speed()}).records)[0]) is None
