"""Pages hold what they must and need no network."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.errors import UsageError
from orchestrator import report
from orchestrator.dashboard.view import head
from orchestrator.records import types as t
from orchestrator.records.account import summarise, write_summary
from orchestrator.records.compare.comparison import compare
from orchestrator.records.critical.event_graph import Bound
from orchestrator.records.run_index import sort
from orchestrator.records.shown.calibrated import calibration_row
from orchestrator.records.timeline.timeline import timelines
from orchestrator.records.words.palette import PHASES
from orchestrator.records.words.vocabulary import UNLIMITED, held_by
from orchestrator.report import charts, tables, write_comparison, write_figures, write_results
from orchestrator.report.page import badges, embedded
from tests.summaries import changed
from tests.synthetic import Speed, Synthetic
from tests.unit._runs import folded, keep, resumed, throttle

LOST = Synthetic(lost=(1, "middle"), dilation=2.5).records


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = keep(tmp_path_factory.mktemp("runs") / "run", LOST)
    write_results(folder)
    assert not list(folder.glob("*.part"))
    return (folder / "report.html").read_text(encoding="utf-8")


def body(page: str) -> str:
    """The page without its style, scripts and data."""
    return re.sub(r"<(script|style)[ >].*?</\1>", "", page, flags=re.DOTALL)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(\{.*\})</script>', page)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_enforcement_dilation_and_calibration_are_in_sight(page: str) -> None:
    header = body(page).split("<main")[0]
    for text in ("limits held by: kernel", "dilation 2.5", "calibrated", "timeline complete"):
        assert text in header
    bad = [msgspec.structs.replace(r, calibrated=False) if isinstance(r, t.RunStarted) else r for r in LOST]
    assert summarise(bad).calibrated is False


def test_the_page_needs_no_network(page: str) -> None:
    assert not re.search(r"<(link|img|iframe)|src=|@import|url\((?!#)|\bimport [\"'{(]|^export ", page, re.MULTILINE)
    assert len(page.encode()) < 300_000


def test_the_page_tells_of_limits_calibration_and_losses(page: str) -> None:
    text = body(page)
    for expected in (
        "left out of round 2 (lost): ",
        "signal 9",
        "came back",
        "profile-weak",
        "30 Mbit/s",
        "CPU of a busy loop",
    ):
        assert expected in text


def test_limits_that_agents_hold_themselves_are_shown_as_not_read_back(tmp_path: Path) -> None:
    nothing = {"held_cpus": None, "held_uplink_bit_s": None, "held_downlink_bit_s": None}
    for enforcement, shown in (("software", "0.5 / –"), ("kernel", "0.5 / none")):
        changes: dict[type[t.Record], dict[str, Any]] = {
            t.LimitsSet: nothing,
            t.RunStarted: {"enforcement": enforcement},
        }
        records = [msgspec.structs.replace(r, **changes.get(type(r), {})) for r in Synthetic().records]
        folder = keep(tmp_path / enforcement, records)
        write_results(folder)
        text = body((folder / "report.html").read_text(encoding="utf-8"))
        assert shown in text
        assert ('<tr class="bad">' in text) is (enforcement == "kernel")


def test_what_a_board_holds_is_shown_also_where_other_devices_hold_their_limits_themselves(tmp_path: Path) -> None:
    records = [
        msgspec.structs.replace(r, enforcement="software") if isinstance(r, t.RunStarted) else r
        for r in Synthetic().records
    ]
    folder = keep(tmp_path / "software", records)
    write_results(folder)
    assert "0.5 / 0.5" in body((folder / "report.html").read_text(encoding="utf-8"))


def test_real_boards_are_called_unlimited_on_every_output(tmp_path: Path) -> None:
    board = Synthetic().records
    names = [device.name for device in sort(board).started.devices]
    for enforcement, unlimited, said in (
        ("unlimited", names, "unlimited: real boards"),
        ("kernel", names[:1], f"unlimited: the real board {names[0]}"),
    ):
        records = [_as_boards(record, enforcement, unlimited) for record in board]
        folder = keep(tmp_path / enforcement, records)
        write_results(folder)
        text = body((folder / "report.html").read_text(encoding="utf-8"))
        assert said in text
        assert text.count(f"profile-{names[0]}, {UNLIMITED}") == 1
        assert "0.5 cores" in text
        summary = summarise(records)
        assert f"unlimited, real boards: {', '.join(unlimited)}" in " ".join(compare([summary]).notes)
        state = folded(records)
        assert (head(state)["unlimited"], head(state)["enforcement"]) == (unlimited, enforcement)


@pytest.mark.parametrize(
    ("enforcement", "said"), [("docker", ", those of the real board {} by its kernel"), ("kernel", "")]
)
def test_limits_that_a_board_holds_itself_are_told_where_they_differ(
    tmp_path: Path, enforcement: str, said: str
) -> None:
    world = Synthetic().records
    name = sort(world).started.devices[0].name
    records = [_as_boards(record, enforcement, [name], limited=True) for record in world]
    folder = keep(tmp_path / enforcement, records)
    write_results(folder)
    held = f"{enforcement}{said.format(name)}"
    assert f"limits held by: {held}<" in (folder / "report.html").read_text(encoding="utf-8")
    assert held_by(enforcement, (), [name]) == f"limits held by {held}"
    assert head(folded(records))["limited_boards"] == [name]


FREE: dict[str, Any] = {"unlimited": True, "uplink_bit_s": 0, "downlink_bit_s": 0}


def _as_boards(record: t.Record, enforcement: str, names: list[str], limited: bool = False) -> t.Record:
    if isinstance(record, t.RunStarted):
        devices = [
            msgspec.structs.replace(each, board=each.name, **({} if limited else FREE)) if each.name in names else each
            for each in record.devices
        ]
        return msgspec.structs.replace(record, enforcement=enforcement, devices=tuple(devices))
    if isinstance(record, t.LimitsSet) and record.device in names and not limited:
        held = {"held_cpus": None, "held_uplink_bit_s": None, "held_downlink_bit_s": None}
        return msgspec.structs.replace(record, unlimited=True, uplink_bit_s=0, downlink_bit_s=0, **held)
    return record


def test_every_round_can_be_chosen_and_its_gantt_holds_the_timeline(page: str) -> None:
    rounds = data_of(page)["rounds"]
    assert len(rounds) == 4
    first, view = next(timelines(sort(LOST))), rounds[0]["view"]
    rows = {row["label"]: row["bars"] for row in view["rows"]}
    assert set(rows) == {*first.devices, "server halves", "orchestrator"}
    for name, device in first.devices.items():
        drawn = sum(end - start for _, start, end, _ in rows[name])
        assert drawn == pytest.approx(device.window_ns / 1e9 / 2.5, rel=1e-2)
    assert rows["server halves"]
    assert view["to"] == pytest.approx((first.facts.end_ns - first.facts.start_ns) / 1e9 / 2.5, abs=1e-4)


def test_a_resumed_run_shows_every_round_with_the_dilation_of_its_stretch(tmp_path: Path) -> None:
    records = resumed(enforcement="software")
    folder = keep(tmp_path / "run", [*records[:-4], t.Fault(records[-4].at_ns, "weak", "odd"), *records[-4:]])
    write_results(folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "limits held by: software" in body(page)
    lengths = [entry["view"]["to"] for entry in data_of(page)["rounds"]]
    assert lengths[0] == pytest.approx(4 * lengths[2], rel=1e-3)


def test_the_page_shows_why_dtfl_chose_its_cuts(tmp_path: Path) -> None:
    notes: dict[str, object] = {
        "tiers": {"weak": 2},
        "t_max_s": 3.0,
        "estimates_s": {"weak": {"1": 2.0, "2": 3.0, "10": 4.0}},
    }
    records = [msgspec.structs.replace(r, notes=notes) if isinstance(r, t.RoundStarted) else r for r in LOST]
    folder = keep(tmp_path / "run", records)
    write_results(folder)
    found = data_of((folder / "report.html").read_text(encoding="utf-8"))["rounds"][0]["view"]["choice"]
    assert found["rows"] == [["weak", "800 ms", "▸ 1.2 s", "1.6 s"]]  # divided by the dilation
    assert [head[0] for head in found["columns"]] == ["device", "tier 1", "tier 2", "tier 10"]
    assert "T_max = 1.2 s" in found["about"]


def test_the_dilation_badge_says_that_the_server_is_not_dilated(page: str, tmp_path: Path) -> None:
    header, main = body(page).split("<main")
    assert re.search(r'title="[^"]*server is not dilated[^"]*">dilation 2.5<', header)
    assert "The server is not dilated: it runs at full speed" in main
    folder = keep(tmp_path / "run", Synthetic().records)
    write_results(folder)
    assert "not dilated" not in body((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_says_how_long_quotas_stopped_whom(page: str, tmp_path: Path) -> None:
    assert "stopped by its CPU quota" not in page  # nobody reported any
    folder = keep(tmp_path / "run", throttle(Synthetic().records, "weak", 0.5))
    write_results(folder)
    text = body((folder / "report.html").read_text(encoding="utf-8"))
    assert (
        "<tr><td>weak</td><td>4.94 s</td><td>50.0%</td><td>–</td><td>–</td></tr>" in text
    )  # 4 × (20 + 3 × (400 + 5)) ms
    assert "<tr><td>strong</td><td>1.34 s</td><td>–</td><td>–</td><td>–</td></tr>" in text


def test_facts_from_before_the_run_are_no_events_of_it(tmp_path: Path) -> None:
    began, *rest = LOST
    replayed = t.DeviceJoined(began.at_ns - 1, "weak", "weak#0", True), t.DeviceLeft(began.at_ns - 1, "weak", "bored")
    folder = keep(tmp_path / "run", [began, *replayed, *rest])
    write_results(folder)
    assert "bored" not in body((folder / "report.html").read_text(encoding="utf-8"))


def test_names_from_outside_cannot_write_into_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    records = [msgspec.structs.replace(r, method=evil) if isinstance(r, t.RunStarted) else r for r in LOST]
    records.append(t.Fault(20, evil, evil))
    folder = keep(tmp_path / "run", records)
    write_results(folder)
    write_comparison([folder, folder], tmp_path / "all.html")
    for name in (folder / "report.html", tmp_path / "all.html"):
        assert "<script>alert" not in name.read_text(encoding="utf-8")
    assert json.loads(str(embedded({"a": evil + "\u2028"}))) == {"a": evil + "\u2028"}


def test_all_results_at_once_are_those_written_one_by_one(tmp_path: Path) -> None:
    one, other = keep(tmp_path / "one", LOST), keep(tmp_path / "other", LOST)
    assert write_results(one) == write_summary(other)
    write_results(other)
    names = sorted(path.name for path in other.iterdir())
    assert names == sorted(path.name for path in one.iterdir())
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_a_run_without_rounds_has_a_page_too(tmp_path: Path) -> None:
    folder = keep(tmp_path / "run", Synthetic(rounds=0).records)
    write_results(folder)
    assert "No round was finished" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_comparison_draws_every_run(tmp_path: Path) -> None:
    folders = [keep(tmp_path / m, Synthetic(method=m).records) for m in ("dtfl", "fedavg")]
    for folder in folders:
        write_summary(folder)
    write_comparison(folders, tmp_path / "all.html")
    found = data_of((tmp_path / "all.html").read_text(encoding="utf-8"))["compared"]
    assert [method["name"] for method in found["methods"]] == ["dtfl", "fedavg"]


def test_every_name_of_a_phase_has_a_colour() -> None:
    names = {s.name for r in timelines(sort(LOST)) for d in r.devices.values() for s in d.segments}
    assert names <= set(PHASES)


def test_of_many_rounds_the_telling_ones_are_drawn() -> None:
    seconds = [1.5] * 12
    seconds[5] = 99.0
    assert len(charts.choose(seconds, 12)) == 12
    chosen = charts.choose(seconds, 4)
    assert len(chosen) <= 4
    assert (5, " (slowest)") in chosen
    assert charts.choose([], 4) == []


def test_figures_for_papers_are_vectors_with_text(tmp_path: Path) -> None:
    folder = keep(tmp_path / "run", LOST)
    write_figures(folder, [tmp_path / "all.pdf", tmp_path / "all.png"])
    pdf = (tmp_path / "all.pdf").read_bytes()
    assert pdf.count(b"/Type /Page ") == 7
    assert b"/FontFile2" in pdf  # TrueType, so that text stays text
    assert b"/Subtype /Type3" not in pdf
    assert (tmp_path / "all-round.png").read_bytes().startswith(b"\x89PNG")
    told = (tmp_path / "all.caption.txt").read_text(encoding="utf-8")
    assert "limits held by kernel" in told
    assert folder.name in told or "Runs: " in told
    with pytest.raises(UsageError, match="no finished round 9"):
        write_figures(folder, [tmp_path / "none.pdf"], round=9)
    assert not (tmp_path / "none.pdf").exists()
    empty = keep(tmp_path / "empty", Synthetic(rounds=0).records)
    write_figures(empty, [tmp_path / "empty.pdf"])
    assert (tmp_path / "empty.pdf").read_bytes().count(b"/Type /Page ") == 1


def test_the_page_answers_who_was_slow_what_changed_and_what_a_faster_link_saves(tmp_path: Path) -> None:
    records = Synthetic(facts=True).records
    at = next(i for i, r in enumerate(records) if isinstance(r, t.RoundStarted) and r.round == 2)
    began = records[at]
    assert isinstance(began, t.RoundStarted)
    limits = next(r for r in records if isinstance(r, t.LimitsSet) and r.device == "strong")
    new = msgspec.structs.replace(limits, at_ns=began.at_ns - 1, why="reprofile", profile="slower", cpus=0.1)
    folder = keep(tmp_path / "run", [*records[:at], new, *records[at:]])
    write_results(folder)
    text = body((folder / "report.html").read_text(encoding="utf-8"))
    assert "weak (profile-weak) was the straggler in 4 (100%) of 4 rounds, mostly because of its CPU" in text
    assert "strong went from profile-strong to slower at" in text
    assert "(round 3)" in text
    assert "<td>3</td><td>strong</td><td>profile-strong</td><td>slower</td>" in text
    assert re.search(r"twice as fast, the rounds would have taken [\d.]+ (ms|s) less", text)
    assert "The rounds were bound by: weak&#39;s CPU" in text
    assert "Devices waited for" in text


def test_near_ties_explain_why_what_bounds_most_may_save_little() -> None:
    summary = summarise(Synthetic(facts=True).records)
    assert not any("at most 5 % earlier" in sentence for sentence in tables.answers(summary, []))
    bounds = msgspec.structs.replace(summary.rounds[1].round_bounds, near=(Bound("cpu", "middle"),))
    tied = changed(summary, round_bounds=[None if i != 1 else bounds for i in range(len(summary.rounds))])
    (told,) = (sentence for sentence in tables.answers(tied, []) if "at most 5 % earlier" in sentence)
    assert "In 1 of 1 rounds" in told
    assert "middle's CPU" in told


def test_a_target_keeps_its_digits() -> None:
    (label, _), *_ = tables.tiles(changed(summarise(Synthetic().records), target_accuracy=0.999))
    assert label == "to 99.9% accuracy, interpolated"


def test_what_a_calibration_only_reports_has_no_error() -> None:
    row = t.Calibrated(1, "weak", "run", "alone", 0.02, 0.0002, "s", -0.99, False, True, "")
    assert calibration_row(row)[1:] == [
        *("running at a time", "alone", "0.02 s", "0.0002 s", "–"),
        "for information: beside the quota of one period; shorter where the kernel hands it out in pieces",
    ]


def test_the_report_has_contents(page: str) -> None:
    assert '<nav id="contents"' in body(page)
    assert body(page).count("<h2") > 8


def test_read_outs_and_the_resolved_experiment_are_in_the_page(tmp_path: Path) -> None:
    records = [
        msgspec.structs.replace(r, details={"uplink qdisc": "[tbf <raw>]"}) if isinstance(r, t.LimitsSet) else r
        for r in LOST
    ]
    folder = keep(tmp_path / "run", records)
    (folder / "experiment.yaml").write_text("name: odd-experiment\n")
    write_results(folder)
    text = body((folder / "report.html").read_text(encoding="utf-8"))
    assert "[tbf &lt;raw&gt;]" in text
    assert "name: odd-experiment" in text


def test_what_a_method_measured_besides_is_drawn(tmp_path: Path) -> None:
    records = [msgspec.structs.replace(r, extra={"exit 1": 0.25}) if isinstance(r, t.Evaluated) else r for r in LOST]
    folder = keep(tmp_path / "run", records)
    write_results(folder)
    figures = data_of((folder / "report.html").read_text(encoding="utf-8"))["figures"]
    assert [series["name"] for series in figures["extra"]["series"]] == ["exit 1"]
    assert [y for _, y in figures["extra"]["series"][0]["points"]] == [0.25] * 4


def test_pages_offer_no_way_to_send_results_away_and_may_not_ask_anyone(tmp_path: Path) -> None:
    folder = keep(tmp_path / "run", LOST)
    write_results(folder)
    write_comparison([folder, folder], tmp_path / "all.html")
    for name in (folder / "report.html", tmp_path / "all.html"):
        page = name.read_text(encoding="utf-8")
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
        assert policy is not None
        rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
        assert rules["default-src"] == rules["connect-src"] == rules["form-action"] == "'none'"
        assert page.index(policy[0]) < page.index("<script")


def test_the_page_says_whose_times_a_simulation_counts() -> None:
    told = "flops: times and bytes of vgg16 with 500 samples per device (as_if), learning by resnet8"
    summary = summarise(Synthetic().records)
    assert not any("costs" in text for text, _, _ in badges(summary))
    assert f"costs: {told}" in [text for text, _, _ in badges(changed(summary, costs=told))]


def test_without_room_for_the_report_the_summary_is_written_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = tmp_path / "run", list[str]()
    keep(run, Synthetic().records)

    def full(path: Path, facts: object) -> None:
        path.with_suffix(".part").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.with_suffix(".part")))

    monkeypatch.setattr(report, "TraceFile", full)
    report.write_what_fits(run, said.append)
    assert json.loads((run / "summary.json").read_bytes())["rounds"] > 0
    assert not list(run.glob("*.part"))
    (line,) = said
    assert "No space left" in line
    assert "edgebed report run" in line


def test_the_page_of_a_long_run_stays_below_2_mb(tmp_path: Path) -> None:
    fleet = {f"device-{index}": Speed(compute=100 + index) for index in range(20)}
    folder = keep(tmp_path / "run", Synthetic(fleet, rounds=150).records)
    write_results(folder)
    assert (folder / "report.html").stat().st_size < 2_000_000


def test_the_cut_of_an_asynchronous_round_stands_at_its_number() -> None:
    cuts: dict[str, list[int | None]] = {"weak": [4, None, 6], "middle": [5, 7, None], "strong": [None] * 3}
    summary = changed(summarise(Synthetic(rounds=3).records), number=[1, 3, 2], cut=cuts)
    drawn = {row["label"]: {bar[1] + 0.5: bar[3] for bar in row["bars"]} for row in charts.cuts(summary)["rows"]}
    assert drawn["weak"] == {1: "round 1: 4 stages on the device", 2: "round 2: 6 stages on the device"}
    assert drawn["middle"] == {1: "round 1: 5 stages on the device", 3: "round 3: 7 stages on the device"}
    assert drawn["strong"] == {}
