"""What a faster link, CPU or server would have saved, against rounds worked out by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.wire.messages import Assignment, Report
from edgebed.wire.piece_times import Phase
from orchestrator.records import types as t
from orchestrator.records.account import summarise
from orchestrator.records.critical.critical_path import Paths
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.critical.whatif import LINKS, Faster, saved_ns
from orchestrator.records.host_records import HalfWork, ServerStep
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.records.summary import Savings
from orchestrator.records.timeline.timeline import timelines
from tests.synthetic import FLEET, MS, Speed, Synthetic, overlapping

REPORT = Report(1, 1, 0.5, 0.1, 0.05, 0.0, 1, 0.1, 1, 0.2, 0.0)
MERGE = 10  # ms from the last device to the end of the round


def round_of(
    phases: list[tuple[str, int]],
    uploads: dict[int, tuple[int, int]],
    update: tuple[int, int],
    *,
    steps: dict[int, tuple[int, int]] | None = None,
    replies: dict[int, tuple[int, int]] | None = None,
    half_work: list[tuple[str, int, int]] | None = None,
    done: int,
) -> RunFacts:
    """One round of one device `d`, in milliseconds from its start; (first, last chunk) of transfers by batch. The
    device holds one upload at a time."""
    at, reported = 0, []
    for name, length in phases:
        reported.append(Phase(name, "task", at * MS, (at + length) * MS))
        at += length
    reported.append(Phase("waiting", "", at * MS, (done + 100) * MS))
    info = t.DeviceInfo("d", "p", 1.0, 1, 1, 1, 1, ())
    records: list[t.Record] = [
        t.RunStarted(0, "", "r", "e", "m", 1, "local", "kernel", 1.0, True, 0, 0.9, {}, (info,)),
        t.DeviceJoined(0, "d", "d#1", False),
        t.ClockOffset(0, "d", 0, 0),
        t.RoundStarted(0, 0, 0.0, 0.1, ("d",), {"d": HOLDS_ONE}),
        t.TaskSent(0, 0, "d", "task", 1),
        t.DevicePhases(0, "d", "d#1", tuple(reported)),
        *(t.UploadReceived(b * MS, a * MS, 0, "d", n, 1, b * MS) for n, (a, b) in uploads.items()),
        *(ServerStep(a * MS, b * MS, 0, ("d",), n, a * MS) for n, (a, b) in (steps or {}).items()),
        *(HalfWork(a * MS, b * MS, 0, what, ("d",)) for what, a, b in half_work or ()),
        *(t.ReplyDelivered(b * MS, a * MS, 0, "d", n, 1) for n, (a, b) in (replies or {}).items()),
        t.UpdateReceived(update[1] * MS, update[0] * MS, 0, "d", "task", 1, REPORT),
        t.DeviceDone(done * MS, 0, "d", done / 1e3, 0.0, 0.0, 0.0),
        t.RoundFinished((done + MERGE) * MS, 0, (done + MERGE) / 1e3, ("d",), "all done"),
        t.RunFinished((done + 100) * MS, "rounds done"),
    ]
    return sort(records)


HOLDS_ONE = Assignment("d", {"name": "tiny"}, 2, (1, 8, 8), 2, "head", slots=1)
BATCH = [("compute", 90), ("encode", 10)]


LINK, CPU, SERVER = Faster(LINKS), Faster(("cpu",)), Faster(("server",))


def ends(run: RunFacts) -> tuple[float, float, float]:
    """When the device was done: as recorded, with twice the link, with twice the CPU, in ms."""
    (timeline,) = timelines(run)
    path = Paths(run).of(timeline)
    assert path is not None
    whole = path.graph.end_ns / MS - MERGE
    return whole, whole - saved_ns(path, LINK) / MS, whole - saved_ns(path, CPU) / MS


def saved_s(found: Savings, what: str, whose: str) -> float:
    """0 where it was on no critical path."""
    return {(row.what, row.whose): row.saved_s for row in found.savings}.get((what, whose), 0.0)


def test_without_overlap_every_transfer_counts_half() -> None:
    """FedAvg: download 100, compute 300, update 200 on the way."""
    timeline = round_of([("download", 100), ("compute", 300), ("upload_tail", 200)], {}, (410, 600), done=600)
    assert ends(timeline) == (600, 50 + 300 + 100, 100 + 150 + 200)


def test_an_upload_hidden_behind_computing_saves_nothing() -> None:
    """Upload of batch 0 lasts from 100 to 180, all of it while batch 1 is computed (100..300)."""
    timeline = round_of([*BATCH, ("compute", 200), ("upload_tail", 100)], {0: (110, 180)}, (310, 400), done=400)
    assert ends(timeline)[1] == 300 + 50  # the update alone


def test_a_queue_of_uploads_is_drained_one_after_the_other() -> None:
    """Two batches of 100; each upload takes 150: 100..250, 250..400; the update 50 more: 400..450.

    Twice the link: 100..175, 200..275 (ready at 200), 275..300. Twice the CPU: 50..200, 200..350, 350..400.
    """
    timeline = round_of([*BATCH, *BATCH, ("upload_tail", 250)], {0: (110, 250), 1: (260, 400)}, (410, 450), done=450)
    assert ends(timeline) == (450, 300, 400)


def test_time_blocked_by_a_full_queue_shrinks_with_the_link() -> None:
    """Upload 0 (100..300) blocks the device from 200 until it is through; one more batch; upload 1 takes 300..500.

    Twice the link: upload 0 is through at 200 and blocks nothing; the third batch ends at 300, upload 1 takes 200..300
    (ready at 200), the update 300..350.
    Twice the CPU: upload 0 takes 50..250 and blocks from 100; upload 1 250..450; the update 450..550.
    """
    timeline = round_of(
        [*BATCH, *BATCH, ("blocked", 100), *BATCH, ("upload_tail", 200)],
        {0: (110, 300), 1: (290, 500)},
        (510, 600),
        done=600,
    )
    assert ends(timeline) == (600, 350, 550)


def test_a_reply_is_upload_then_server_then_download() -> None:
    """SplitFed: compute 100, upload 60 (100..160), server 20, reply 40 (180..220), compute 50, update 30."""
    timeline = round_of(
        [("compute", 100), ("reply_wait", 120), ("compute", 50), ("upload_tail", 30)],
        {0: (110, 160)},
        (275, 300),
        steps={0: (160, 175)},
        replies={0: (180, 220)},
        done=300,
    )
    assert ends(timeline) == (300, 100 + 30 + 20 + 20 + 50 + 15, 50 + 60 + 20 + 40 + 25 + 30)


def test_a_slow_server_hides_what_the_link_would_save() -> None:
    """The step of batch 0 lasts from 160 to 500, long after the update at 200."""
    timeline = round_of(
        [("compute", 100), ("upload_tail", 100)], {0: (110, 160)}, (165, 200), steps={0: (160, 500)}, done=500
    )
    assert ends(timeline) == (500, 130 + 340, 110 + 340)


def test_a_faster_server_shortens_what_its_steps_hide() -> None:
    run = round_of(
        [("compute", 100), ("upload_tail", 100)], {0: (110, 160)}, (165, 200), steps={0: (160, 500)}, done=500
    )
    (timeline,) = timelines(run)
    path = Paths(run).of(timeline)
    assert path is not None
    assert path.share(Bound("server")) == pytest.approx(340 / 510)
    assert saved_ns(path, SERVER) == 170 * MS
    assert saved_ns(path, Faster(("server",), frozenset(("d",)))) == 0


def test_a_faster_server_also_makes_and_reads_its_halves_faster() -> None:
    """The half is made from 0 to 300, so that its step begins at 300 and not at 160; it is read from 400 to 480.

    Twice as fast: made at 150, step 160..210 (the upload is there at 160), read 210..250."""
    run = round_of(
        [("compute", 100), ("upload_tail", 100)],
        {0: (110, 160)},
        (165, 200),
        steps={0: (300, 400)},
        half_work=[("make", 0, 300), ("read", 400, 480)],
        done=480,
    )
    (timeline,) = timelines(run)
    path = Paths(run).of(timeline)
    assert path is not None
    assert path.bounds[Bound("server")] == 480 * MS
    assert saved_ns(path, SERVER) == (480 - 250) * MS


def test_the_round_waits_for_the_next_slowest() -> None:
    """weak is done long after middle: what weak saves is bounded by middle's end."""
    records = Synthetic(FLEET, 1, facts=True).records
    whatif = summarise(records).what_if
    done = {r.device: r.at_ns for r in records if isinstance(r, t.DeviceDone)}
    assert done["weak"] - done["middle"] > 0
    assert saved_s(whatif, "cpu", "weak") == pytest.approx((done["weak"] - done["middle"]) / 1e9)
    assert saved_s(whatif, "cpu", "all") > saved_s(whatif, "cpu", "weak")
    assert saved_s(whatif, "cpu", "strong") == 0


def test_the_slowest_link_is_found_by_what_was_in_force() -> None:
    records = [
        msgspec.structs.replace(r, uplink_bit_s=10_000_000) if isinstance(r, t.LimitsSet) and r.device == "weak" else r
        for r in Synthetic(dilation=2.0, facts=True).records
    ]
    whatif = summarise(records).what_if
    assert whatif.slowest_links == ("weak",)
    assert 0 < saved_s(whatif, "link", "slowest") < whatif.rounds_s


def test_the_link_that_was_slowest_most_often_comes_first() -> None:
    records = [
        msgspec.structs.replace(r, uplink_bit_s=10_000_000) if isinstance(r, t.LimitsSet) and r.device == "weak" else r
        for r in Synthetic(rounds=3, drawn={1: ("middle", "strong")}, facts=True).records
    ]
    summary = summarise(records)
    assert summary.what_if.slowest_links == ("weak", "middle", "strong")
    assert summary.what_if.rounds_s == pytest.approx(sum(row.round_s for row in summary.rounds))


def test_equally_slow_links_come_in_alphabetical_order() -> None:
    records = [
        msgspec.structs.replace(r, uplink_bit_s=10_000_000) if isinstance(r, t.LimitsSet) else r
        for r in Synthetic().records
    ]
    assert summarise(records).what_if.slowest_links == ()
    facts = [
        msgspec.structs.replace(r, uplink_bit_s=10_000_000) if isinstance(r, t.LimitsSet) else r
        for r in Synthetic(facts=True).records
    ]
    assert summarise(facts).what_if.slowest_links == ("middle", "strong", "weak")


LENGTHS = st.integers(min_value=1, max_value=400)
SPEEDS = st.builds(Speed, download=LENGTHS, compute=LENGTHS, encode=LENGTHS, blocked=st.integers(0, 200), tail=LENGTHS)


@settings(max_examples=40, deadline=None)
@given(fleet=st.lists(SPEEDS, min_size=1, max_size=3))
def test_seconds_add_up_and_faster_is_never_later(fleet: list[Speed]) -> None:
    run = sort(Synthetic({f"d{i}": speed for i, speed in enumerate(fleet)}, 2, facts=True).records)
    paths = Paths(run)
    for timeline in timelines(run):
        path, finished = paths.of(timeline), timeline.facts.finished
        assert path is not None
        assert finished is not None
        assert sum(path.bounds.values()) == finished.at_ns - timeline.facts.start_ns
        assert all(length >= 0 for length in path.bounds.values())
        assert path.graph.replayed_ns(lambda bound: 1.0) == finished.at_ns
        for faster in (LINK, CPU, SERVER):
            assert 0 <= saved_ns(path, faster) <= finished.at_ns - timeline.facts.start_ns


def test_lanes_are_replayed_each_by_itself() -> None:
    whatif = summarise(overlapping({"0": ({"a": Speed()}, 3), "1": ({"b": Speed(compute=300)}, 2)}, facts=True)).what_if
    worked = 3 * 0.5 * (20 + 3 * 105) / 1e3
    assert worked <= saved_s(whatif, "cpu", "a") <= worked + 3 * 0.5 * 0.15  # its CPU held up transfers, too
    assert saved_s(whatif, "cpu", "b") > 0


def test_batches_that_touch_are_as_good_as_batches_with_something_in_between() -> None:
    """Simulated devices have no encode: compute 9 x 100 touches, each batch's upload takes 105, so a queue forms.

    Uploads: 100..205, …, 940..1045, update 1045..1065. Twice the link: hidden but for the last (900..952.5), update
    952.5..962.5. Twice the CPU: ready at 50, 9 x 105 after it, then the update.
    """
    uploads = {n: (102 + 105 * n, 205 + 105 * n) for n in range(9)}
    touching = round_of([("compute", 100)] * 9 + [("upload_tail", 165)], uploads, (1047, 1065), done=1065)
    apart = round_of([("compute", 90), ("encode", 10)] * 9 + [("upload_tail", 165)], uploads, (1047, 1065), done=1065)
    assert ends(touching) == ends(apart) == (1065, 962.5, 50 + 945 + 20)


def test_a_wait_after_delivery_is_the_servers_where_no_download_is_reported() -> None:
    """Simulated devices report their download as waiting."""
    records: list[t.Record] = []
    for record in Synthetic({"a": Speed(server=500), "b": Speed()}, 1).records:
        if isinstance(record, t.DevicePhases):
            phases = tuple(
                msgspec.structs.replace(p, name="waiting") if p.name == "download" else p for p in record.phases
            )
            record = msgspec.structs.replace(record, phases=phases)
        records.append(record)
    (timeline,) = timelines(sort(records))
    named = [segment.name for segment in timeline.devices["a"].segments]
    assert named.index("download") < named.index("compute") < named.index("server_wait")
    assert named.count("download") == 1
