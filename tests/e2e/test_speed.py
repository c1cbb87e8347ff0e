"""A reference is recorded from a real fleet, and real fleets keep its time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.wire.messages import Report
from orchestrator.records.account import load_summary
from orchestrator.records.reader import read
from orchestrator.records.types import LimitsSet, RunFinished, RunStarted, UpdateReceived
from orchestrator.references.reference import Reference, load_reference, save_reference
from tests.e2e.cli import command
from tests.hangs import run

pytestmark = [pytest.mark.root, pytest.mark.mosquitto, pytest.mark.alone]

PROFILE = "name: slow\ncpus: {cpus}\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 1024\n"
FLEET = """
name: two
backend: local
devices: [{{profile: {folder}/a.yaml, name: a}}, {{profile: {folder}/b.yaml, name: b}}]
"""
EXPERIMENT = """
name: two
fleet: {folder}/fleet.yaml
data: {{name: digits}}
model: {{name: resnet-tiny}}
methods: [{{name: dtfl, tier: 3}}, {{name: fedavg}}]
training: {{rounds: 3, batch_size: 32, stop_at_target: false, heartbeat_s: 0.5, seed: 2}}
"""


def edgebed(folder: Path, *arguments: str) -> tuple[int, str]:
    done = run([*command(calibrated=False), *arguments], 240, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment, and a reference that was recorded from it: `mine.json`."""
    found = tmp_path_factory.mktemp("speed")
    for name, cpus in (("a", 0.3), ("b", 0.15)):
        (found / f"{name}.yaml").write_text(PROFILE.format(cpus=cpus))
    (found / "fleet.yaml").write_text(FLEET.format(folder=found))
    (found / "experiment.yaml").write_text(EXPERIMENT.format(folder=found))
    code, said = edgebed(found, "reference", "record", "mine", "experiment.yaml", "--rounds", "3", "--core", "this one")
    assert code == 0, said
    made = load_reference(str(found / "mine.json"))
    for factor in (2, 4):  # slow enough for a busy host
        slower = msgspec.convert(times(factor, msgspec.to_builtins(made)), type(made))
        save_reference(msgspec.structs.replace(slower, name=f"times-{factor}"), found / f"times-{factor}.json")
    return found


def times(factor: float, value: Any, key: str = "") -> Any:
    """A reference with all seconds but the index multiplied, so that ceilings stay as they are."""
    if isinstance(value, dict):
        return {name: times(factor, inner, name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [times(factor, inner, key) for inner in value]
    return factor * value if isinstance(value, float) and key.endswith("_s") and key != "index_s" else value


def played(folder: Path, reference: str, name: str) -> dict[str, list[Path]]:
    """Run folders by method, of a run of the experiment at the speed of a reference.

    A host that others share can be late. The devices say so, and it is made again then, as a user would.
    """
    for attempt in range(3):
        place = folder / f"{name}-{attempt}"
        place.mkdir()
        code, said = edgebed(
            place, "run", str(folder / "experiment.yaml"), "--quiet", "--set", f"speed=reference {folder / reference}"
        )
        assert code == 0, said
        found = {method: sorted((place / "runs").glob(f"two-{method}-*")) for method in ("dtfl", "fedavg")}
        if all(in_time(each) for (run_folder,) in found.values() for each in steady_reports(run_folder)):
            break
    return found


def in_time(report: Report) -> bool:
    return report.late_s < 0.01 * report.compute_s


def steady_reports(folder: Path) -> list[Report]:
    """Of all rounds but the first."""
    return [report for each in reports(folder).values() for report in each[1:]]


def reports(folder: Path) -> dict[str, list[Report]]:
    found: dict[str, list[Report]] = {}
    for record in read(folder / "records.jsonl"):
        if isinstance(record, UpdateReceived):
            found.setdefault(record.device, []).append(record.report)
    return found


@pytest.fixture(scope="module")
def held(folder: Path) -> dict[str, list[Path]]:
    return played(folder, "times-2.json", "held")


def test_a_recording_knows_every_piece_of_the_tasks(folder: Path) -> None:
    made = load_reference(str(folder / "mine.json"))
    assert made.origin["core"] == "this one"
    assert made.layers
    assert 0 < made.unseen.error < 1
    of_devices = [kinds for kinds in made.work.values() if "update" in kinds]
    whole, split = sorted(of_devices, key=lambda kinds: "forward" in kinds)
    (of_server,) = [kinds for kinds in made.work.values() if kinds not in of_devices]
    assert set(of_server) >= {"first step", "step"}
    assert "build" in {*whole, *split}
    assert {"decode", "first batch", "batch", "finish", "update"} <= set(whole)
    assert {"first forward", "forward", "first rest", "rest", "encode", "update"} <= set(split)
    large = whole["batch"][-1]
    assert large.size == 32
    assert large.count > 20
    assert large.quantiles_s[0] <= large.quantiles_s[1] <= large.quantiles_s[2]


def test_devices_take_the_time_of_the_reference(held: dict[str, list[Path]]) -> None:
    for (run_folder,) in held.values():
        cpus = {each.device: each.cpus for each in read(run_folder / "records.jsonl") if isinstance(each, LimitsSet)}
        for device, each in reports(run_folder).items():
            for report in each[1:]:
                assert in_time(report)
                assert set(report.reference_s) == {"recorded"}
                known = sum(
                    pieces.count for pieces in report.work if "forward" in pieces.kind or "batch" in pieces.kind
                )
                assert known == report.batches
                own = report.compute_s + report.encode_s
                assert own <= report.reference_s["recorded"] / cpus[device] * 1.02
                assert own >= report.reference_s["recorded"] / cpus[device] * 0.7  # the rest: decoding, transfers


def test_the_account_says_whose_seconds_these_are(held: dict[str, list[Path]]) -> None:
    for (run_folder,) in held.values():
        summary = load_summary(run_folder)
        started = next(each for each in read(run_folder / "records.jsonl") if isinstance(each, RunStarted))
        assert (summary.speed, started.speed) == ("times-2", "times-2")
        assert started.head_room > 1
        assert started.host_index is not None
        assert started.host_index.reference == "times-2"
        finished = next(each for each in read(run_folder / "records.jsonl") if isinstance(each, RunFinished))
        assert finished.host_index is not None
        assert summary.host_index is not None
        assert summary.host_index.index == pytest.approx((started.host_index.index + finished.host_index.index) / 2)
        assert set(summary.reference_s) == {"recorded"}
        assert summary.late_rounds is not None
        assert summary.calibrated == (started.calibrated and summary.late_rounds == 0)
        limits = [each for each in read(run_folder / "records.jsonl") if isinstance(each, LimitsSet)]
        assert all(each.ceiling_cpus is not None and each.ceiling_cpus > each.cpus / 2 for each in limits)
        assert all(each.held_cpus == pytest.approx(each.ceiling_cpus, rel=0.01) for each in limits)


def test_a_reference_that_is_twice_as_slow_doubles_compute_and_leaves_links(
    folder: Path, held: dict[str, list[Path]]
) -> None:
    slower = played(folder, "times-4.json", "slower")
    for method, (run_folder,) in held.items():
        before, after = reports(run_folder), reports(slower[method][0])
        for device in before:
            for one, two in zip(before[device][1:], after[device][1:], strict=True):
                assert two.reference_s["recorded"] == pytest.approx(2 * one.reference_s["recorded"], rel=1e-3)
                assert two.compute_s == pytest.approx(2 * one.compute_s, rel=0.02)
                assert two.download_bytes == one.download_bytes
                assert two.download_s == pytest.approx(one.download_s, rel=0.25, abs=0.02)


def test_a_reference_that_does_not_exist_is_refused_before_anything_starts(folder: Path) -> None:
    code, said = edgebed(folder, "run", "experiment.yaml", "--set", "speed=reference nowhere")
    assert code == 2
    assert "there is no reference 'nowhere'" in said
    code, said = edgebed(folder, "run", "experiment.yaml", "--set", "speed=fast")
    assert code == 2
    assert "speed" in said
    assert "reference x86-avx512" in said


def test_a_dilation_that_is_too_small_for_what_the_devices_need_is_refused_with_the_figure(folder: Path) -> None:
    """The reference is 20 times as fast as this host."""
    fast = msgspec.convert(times(0.05, msgspec.to_builtins(load_reference(str(folder / "mine.json")))), Reference)
    save_reference(msgspec.structs.replace(fast, name="fast"), folder / "fast.json")
    run = ("run", "experiment.yaml", "--set", f"speed=reference {folder / 'fast.json'}")
    code, said = edgebed(folder, *run, "--set", "dilation=1")
    assert code == 3, said
    assert re.search(r"wants [\d.]+ CPUs, the host has|needs [\d.]+ of a core for each of its threads", said), said
    assert re.search(r"use dilation: auto \(here [\d.]+\)", said), said
