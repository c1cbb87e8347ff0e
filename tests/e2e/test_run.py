"""`edgebed run` on a real local fleet: to the end, interrupted, killed, resumed, without root; and what it refuses."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import psutil
import pytest
import torch
from safetensors.torch import load_file

import edgebed
from edgebed.errors import CalibrationError
from orchestrator import cli as command_line
from orchestrator.calibration.calibrate import Calibration
from orchestrator.experiment import Environment, load
from orchestrator.records.host_records import ServerStep
from orchestrator.records.reader import read
from orchestrator.records.types import (
    Calibrated,
    DeviceOut,
    LimitsSet,
    RoundFinished,
    RoundStarted,
    RunStarted,
)
from orchestrator.runs import session
from orchestrator.runs.folder import RunFolder
from tests.e2e.cli import Cli, cli, fleet_id, summary, traces, until, write_experiment
from tests.e2e.rig import experiment, rig
from tests.hangs import COMMAND_S

FLAT = {
    "method": str,
    "rounds": int,
    "accuracy": list,
    "round_s_median": float,
    "round_s_p95": float,
    "straggler_gap_s": float,
    "timeline_residual_max": float,
    "enforcement": str,
    "dilation": float,
    "calibrated": bool,
}
DEVICES = {"weak-1", "weak-2", "strong"}


# ---- to the end ----


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Both methods to the end, in a process of its own."""
    folder = tmp_path_factory.mktemp("whole")
    with cli(folder, "run", str(write_experiment(folder)), "--json") as run:
        code, out, err = run.wait()
        assert code == 0, err
        (folder / "out.json").write_text(out)
        (folder / "err.txt").write_text(err)
        return run


@pytest.mark.alone
@pytest.mark.root
@pytest.mark.mosquitto
def test_a_run_ends_well_and_its_summary_has_every_name(whole: Cli) -> None:
    folders = whole.folders()
    assert [f.name.split("-")[1] for f in folders] == ["dtfl", "fedavg"]
    for folder in folders:
        figures = summary(folder)
        wrong = {name: figures.get(name) for name, kind in FLAT.items() if not isinstance(figures.get(name), kind)}
        assert not wrong
        assert figures["time_to_target_s"] is None
        assert (figures["enforcement"], figures["calibrated"], figures["dilation"]) == ("kernel", True, 1.0)
        assert figures["rounds"] == len(figures["accuracy"]) == 3
        assert figures["timeline_residual_max"] <= 0.02
        for name in ("idle_share", "bytes_up", "bytes_down", "predicted_s", "actual_s"):
            assert set(figures[name]) == DEVICES
        assert all(math.isfinite(s) and s > 0 for row in figures["actual_s"].values() for s in row)
        assert {p.name for p in folder.iterdir()} >= {"records.jsonl", "report.html", "trace.json", "experiment.yaml"}


@pytest.mark.alone
@pytest.mark.root
@pytest.mark.mosquitto
def test_a_run_tells_results_on_stdout_and_no_trouble_on_stderr(whole: Cli) -> None:
    folder = whole.runs.parent
    rows = msgspec.json.decode((folder / "out.json").read_bytes())["rows"]
    assert [row["method"] for row in rows] == ["dtfl", "fedavg"]
    said = (folder / "err.txt").read_text()
    assert "calibration: passed" in said
    for trouble in ("Traceback", "never retrieved", "unclosed", "never awaited"):
        assert trouble not in said


@pytest.mark.alone
@pytest.mark.root
@pytest.mark.mosquitto
def test_a_run_that_ended_leaves_nothing(whole: Cli) -> None:
    assert not traces(fleet_id(whole.records()))


# ---- interrupted, killed, resumed ----


@pytest.mark.root
@pytest.mark.mosquitto
def test_a_run_is_interrupted_then_killed_then_ends_in_the_same_folder(tmp_path: Path) -> None:
    many = ["run", str(write_experiment(tmp_path)), "--set", "training.rounds=6", "--set", "training.max_batches=10"]
    with cli(tmp_path, *many, calibrated=False) as first:
        first.expect(RoundFinished, lambda r: r.round == 1)
        children = first.children()
        first.interrupt()
        code, _, err = first.wait()
    (folder,) = first.folders()
    assert code == 130, err
    assert "Traceback" not in err
    assert "never retrieved" not in err
    assert not [child for child in children if child.is_running()]
    assert not traces(fleet_id(first.records()))
    kept = summary(folder)
    assert f"edgebed run --resume {folder.name}\n" in err
    assert ["fedavg", "not", "begun", "–", "–"] in [line.split() for line in err.splitlines()]
    assert kept["ended"] == "interrupted"
    assert kept["rounds"] >= 2
    assert kept["timeline_residual_max"] <= 0.02
    assert (folder / "report.html").stat().st_mtime >= first.began

    with cli(tmp_path, "run", "--resume", str(folder), calibrated=False) as second:
        began = second.expect(RunStarted, lambda r: r.resumed_from > 0)
        assert began.resumed_from == kept["rounds"]
        second.expect(RoundFinished, lambda r: r.round == kept["rounds"] + 1)
        children = second.children()
        assert len(children) >= 5, "three agents, their fork server and the broker"
        os.kill(second.process.pid, signal.SIGKILL)
        until(lambda: not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE], 10)
        second.wait()
    left = fleet_id(second.records())
    assert traces(left), "a killed orchestrator cannot tidy up"

    with cli(tmp_path, "run", "--resume", folder.name, calibrated=False) as third:
        code, out, err = third.wait()
    assert code == 0, err
    assert not traces(left)
    assert third.folders()[0] == folder, "in the same folder"
    assert [f.name.split("-")[1] for f in third.folders()] == ["dtfl", "fedavg"], "and then the rest of the experiment"
    assert all(f.name in out for f in third.folders())
    figures = summary(folder)
    assert (figures["rounds"], figures["resumed"], figures["ended"]) == (6, 2, "rounds done")
    assert summary(third.folders()[1])["rounds"] == 6
    starts = [r.round for r in read(folder / "records.jsonl") if isinstance(r, RoundStarted)]
    assert sorted(set(starts)) == list(range(6))

    with cli(tmp_path, *many, "--method", "dtfl", "--plan", folder.name, calibrated=False) as repeated:
        code, _, err = repeated.wait()
    assert code == 0, err
    killed, whole = (load_file(f / "checkpoint.safetensors") for f in (folder, repeated.folders()[-1]))
    assert killed.keys() == whole.keys()
    assert all(torch.equal(killed[name], whole[name]) for name in whole), "the same to the bit as without a kill"

    with cli(tmp_path, "run", "--resume", folder.name) as again:
        code, _, err = again.wait()
    assert (code, "is finished: 6 of 6 rounds" in err) == (2, True), err


@pytest.mark.root
@pytest.mark.mosquitto
def test_a_run_whose_trainer_is_killed_in_mid_round_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    settings = ("training.rounds=2", "training.max_batches=8", "methods=[{name: splitfed, cut: 2}]")
    given = [part for setting in settings for part in ("--set", setting)]
    with cli(tmp_path, "run", str(path), *given, calibrated=False) as first:
        first.expect(ServerStep, lambda record: record.round == 1)
        (trainer,) = (child for child in first.children() if "orchestrator.training.child" in child.cmdline())
        trainer.kill()
        code, _, err = first.wait()
    (folder,) = first.folders()
    assert code == 5, err
    assert "the trainer's process was killed (SIGKILL, perhaps because memory was short)" in err
    assert f"edgebed run --resume {folder.name}\n" in err
    assert "Traceback" not in err
    assert not traces(fleet_id(first.records()))
    kept = summary(folder)
    assert kept["rounds"] == 1
    assert "the trainer's process was killed" in kept["ended"]

    with cli(tmp_path, "run", "--resume", folder.name, calibrated=False) as second:
        code, _, err = second.wait()
    assert code == 0, err
    assert (summary(folder)["rounds"], summary(folder)["resumed"]) == (2, 1)
    never_killed = {
        "methods": [{"name": "splitfed", "cut": 2}],
        "training.rounds": 2,
        "training.max_batches": 8,
        "simulation.batched": False,
    }
    (simulated,) = edgebed.simulate(path, overrides=never_killed, runs=tmp_path / "simulated")
    killed, whole = (load_file(f / "checkpoint.safetensors") for f in (folder, simulated.path))
    assert killed.keys() == whole.keys()
    assert all(torch.equal(killed[name], whole[name]) for name in whole), "the same to the bit as without a kill"


@pytest.mark.root
@pytest.mark.mosquitto
def test_signals_during_the_clean_up_leave_nothing_either(tmp_path: Path) -> None:
    before = set(Path("/run/netns").glob("edgebed-*"))

    def made() -> set[Path]:
        return set(Path("/run/netns").glob("edgebed-*")) - before

    with cli(tmp_path, "run", str(write_experiment(tmp_path))) as run:
        until(lambda: (len(made()) == 3 and len(run.children()) >= 5) or run.process.poll() is not None, 60)
        (fleet,) = {path.name.split("-")[1] for path in made()}
        run.process.send_signal(signal.SIGHUP)

        def ended() -> bool:  # of an impatient person at the keyboard
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(0.1)
            if run.process.poll() is None:
                run.interrupt()
            return run.process.poll() is not None

        until(ended, COMMAND_S)
        code, _, err = run.wait()
    assert code == 130, err
    assert "SIGHUP: ending, and removing the fleet" in err
    assert "No run had started" in err
    assert "Traceback" not in err
    assert not traces(fleet)


@pytest.mark.root
@pytest.mark.mosquitto
def test_a_disk_that_fills_up_ends_a_run_with_its_last_checkpoint(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(runs)], check=True, timeout=COMMAND_S)
    try:
        many = ["run", str(write_experiment(tmp_path)), "--method", "fedavg", "--set", "training.rounds=500"]
        with cli(tmp_path, *many, calibrated=False) as run:
            run.expect(RoundFinished, lambda record: record.round == 1)
            with (runs / "filler").open("wb") as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(1 << 16))
            code, _, err = run.wait()
        (folder,) = run.folders()
        assert code == 6, err
        assert "No space left on device" in err
        assert "make room" in err
        assert f"edgebed run --resume {folder.name}\n" in err
        assert "Traceback" not in err
        kept = RunFolder(folder).restore()
        assert kept is not None
        assert kept.progress.round >= 1
        (runs / "filler").unlink()
        with cli(tmp_path, "run", "--resume", folder.name, calibrated=False) as again:
            began = again.expect(RunStarted, lambda record: record.resumed_from > 0)
            assert began.resumed_from == kept.progress.round
            again.expect(RoundFinished, lambda record: record.round == kept.progress.round + 1)
            again.interrupt()
            assert again.wait()[0] == 130
        assert summary(folder)["rounds"] > kept.progress.round
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True, timeout=COMMAND_S)


# ---- conditions the paper varies ----


@pytest.mark.root
@pytest.mark.mosquitto
async def test_profiles_change_and_devices_are_drawn(tmp_path: Path) -> None:
    environment = Environment(every=2, share=0.7, profiles=["wider", "small"])
    async with rig(tmp_path, experiment(environment, rounds=7, max_batches=8, sample=0.67)) as run:
        await run.finish()
        changes = [r for r in run.of(LimitsSet) if r.why == "reprofile"]
        assert {"wider"} <= {r.profile for r in changes}
        for change in changes:
            assert change.held_cpus == pytest.approx(change.cpus, rel=0.01)
            assert change.held_uplink_bit_s == change.uplink_bit_s
            assert change.held_downlink_bit_s == change.downlink_bit_s
        wide = next(r for r in changes if r.profile == "wider")
        assert (wide.cpus, wide.uplink_bit_s, wide.downlink_bit_s) == (0.4, 30_000_000, 25_000_000)
        rounds = run.of(RoundStarted)
        assert [len(r.devices) for r in rounds] == [2] * 7
        assert len({r.devices for r in rounds}) > 1
        assert len({a.stages for r in rounds for a in r.assignments.values()}) >= 1
        assert not run.of(DeviceOut)


# ---- limits that do not hold, and limits that no kernel holds ----


async def failed(*_: object, on_row: object, **__: object) -> Calibration:
    row = Calibrated(1, "weak-1", "uplink", "alone", 20e6, 160e6, "bit/s", 7.0, True, False, "no shaping: put it on")
    on_row(row)  # type: ignore[operator]
    return Calibration((row,), False)


@pytest.mark.fleet
async def test_limits_that_do_not_hold_stop_a_run_or_mark_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "calibrate", failed)
    path = write_experiment(tmp_path)
    wanted = load(path, ["training.rounds=1", "methods=[{name: fedavg}]"])
    request = session.Request(wanted, path, tmp_path / "runs", backend="software")
    with pytest.raises(CalibrationError, match=r"weak-1 uplink alone: \+700"):
        await session.run_experiment(request, session.Watch(session.quiet))
    assert not list(request.runs.iterdir())

    allowed = msgspec.structs.replace(request, allow_uncalibrated=True)
    (folder,) = await session.run_experiment(allowed, session.Watch(session.quiet))
    figures = summary(folder)
    assert (figures["calibrated"], figures["enforcement"], figures["rounds"]) == (False, "software", 1)
    for word in ("software", "not calibrated"):
        assert word in (folder / "report.html").read_text().lower()


NOBODY = 65534
# As somebody else, to whom the checkout stays open wherever it lies.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
)


@pytest.mark.fleet
def test_without_root_the_agents_hold_the_limits_and_every_output_says_so() -> None:
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        path = write_experiment(Path(name))
        for one in (path.parent, *path.parent.iterdir()) if root else ():
            os.chown(one, NOBODY, NOBODY)
        wanted = ("run", str(path), "--method", "dtfl", "--set", "training.rounds=2")
        with cli(path.parent, *wanted, prefix=AS_NOBODY if root else (), calibrated=False) as run:
            code, out, err = run.wait()
        assert code == 0, err
        assert "software" in err
        assert "software" in out
        assert [summary(folder)["enforcement"] for folder in run.folders()] == ["software"]
        assert all(summary(folder)["timeline_residual_max"] <= 0.02 for folder in run.folders())
        assert "Traceback" not in err


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nowhere.yaml"], 2, ["nowhere.yaml", "No such file"]),
        (["run"], 2, ["no experiment"]),
        (["run", "{file}", "--method", "fedprox"], 2, ["fedprox", "dtfl, fedavg"]),
        (["run", "{file}", "--set", "training.round=3"], 2, ["round", "training"]),
        (["run", "{file}", "--set", "training.liveness_s=0.6"], 2, ["liveness_s", "heartbeat_s"]),
        (["run", "{file}", "--set", "methods=[{{name: dtfl, tires: 3}}]"], 2, ["methods[0]", "tires", "tiers"]),
        (["run", "{file}", "--set", "environment={{profiles: [nothing]}}"], 2, ["nothing", "weak"]),
        (["run", "{file}", "--set", "model={{name: vgg}}"], 2, ["vgg", "resnet-tiny"]),
        (["run", "{file}", "--backend", "podman"], 2, ["podman", "docker"]),
        (["run", "--resume", "no-such-run"], 2, ["no-such-run"]),
        (["run", "{file}", "--set", "dilation=off", "--set", "fleet={folder}/large.yaml"], 3, ["96 CPUs", "auto"]),
    ],
)
def test_a_mistake_is_told_with_cause_and_hint_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: list[str],
) -> None:
    path = write_experiment(tmp_path)
    (tmp_path / "large.yaml").write_text("name: large\ndevices: [{profile: cpu4, count: 24}]\n")
    given = [argument.format(file=path, folder=tmp_path) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["edgebed", *given])
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert end.value.code == code
    told = capsys.readouterr().err
    assert all(word in told for word in said), told
    assert "Hint:" in told
    assert not list((tmp_path / "runs").glob("*"))
