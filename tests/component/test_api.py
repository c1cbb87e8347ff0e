"""`edgebed.simulate` and `edgebed.run` from a program: events, event loops, ends before the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import edgebed
from edgebed.errors import RunError, UsageError
from orchestrator.api import DeviceLeftOut, Event, Line, RoundBegan, RoundEnded, RunBegan, RunEnded

FLEET = Path(__file__).parents[2] / "profiles" / "fleets" / "dtfl-5.yaml"


class EnoughError(Exception):
    """Raised by a callback that has heard enough."""


def experiment(**training: Any) -> dict[str, Any]:
    return {
        "name": "api",
        "fleet": str(FLEET),
        "methods": [{"name": "fedavg"}, {"name": "splitfed", "cut": 2}],
        "training": {"rounds": 2, "batch_size": 32, "max_batches": 1, "seed": 3, **training},
    }


def test_events_tell_what_the_tables_say(tmp_path: Path) -> None:
    heard: list[Event] = []
    threads = torch.get_num_threads()
    runs = edgebed.simulate(experiment(), runs=tmp_path, on_event=heard.append)
    assert [run.method for run in runs] == ["fedavg", "splitfed"]
    assert [(e.method, e.path, e.rounds) for e in heard if isinstance(e, RunBegan)] == [
        (run.method, run.path, 2) for run in runs
    ]
    assert [(e.round, len(e.devices)) for e in heard if isinstance(e, RoundBegan)] == [(1, 5), (2, 5)] * 2
    assert [e.why for e in heard if isinstance(e, RunEnded)] == ["rounds done"] * 2
    for run in runs:
        ended = [e for e in heard if isinstance(e, RoundEnded) and e.method == run.method]
        assert [e.duration_s for e in ended] == pytest.approx(run.rounds["duration_s"].tolist(), rel=1e-6)
        assert [e.elapsed_s for e in ended] == pytest.approx(run.rounds["elapsed_s"].tolist(), rel=1e-6)
        assert [e.accuracy for e in ended] == run.rounds["accuracy"].tolist()
        assert [e.merged_devices for e in ended] == run.rounds["merged_devices"].tolist()
        assert run.phases.groupby("device")["duration_s"].sum().to_dict() == pytest.approx(
            {device: sum(by_name.values()) for device, by_name in run.summary["phase_s"].items()}
        )
    assert all(str(event) for event in heard)
    assert torch.get_num_threads() == threads


def test_a_lost_device_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    heard: list[Event] = []
    fault = {"device": "cpu1-1", "round": 0, "after_s": 0.01}
    [run] = edgebed.simulate(
        experiment(),
        overrides={"simulation.faults": [fault]},
        methods="fedavg",
        runs=tmp_path,
        on_event=heard.append,
    )
    [lost] = [event for event in heard if isinstance(event, DeviceLeftOut)]
    assert (lost.round, lost.device, lost.how) == (1, "cpu1-1", "lost")
    assert str(lost).startswith("round 1: cpu1-1 lost: ")
    assert run.assignments.query("device == 'cpu1-1'")["outcome"].tolist() == ["lost"]
    assert "device_out" in run.faults["event"].tolist()


def test_a_run_s_own_experiment_gives_the_same_run(tmp_path: Path) -> None:
    [first] = edgebed.simulate(experiment(), methods="fedavg", runs=tmp_path)
    [again] = edgebed.simulate(first.experiment, runs=tmp_path)
    for name in ("round", "accuracy", "loss", "bytes"):  # seconds come from costs that are measured on this host
        assert again.rounds[name].tolist() == first.rounds[name].tolist()


async def test_where_an_event_loop_runs_already_as_in_a_notebook(tmp_path: Path) -> None:
    callers = set[threading.Thread]()
    [run] = edgebed.simulate(
        experiment(rounds=1),
        methods="fedavg",
        runs=tmp_path,
        on_event=lambda _: callers.add(threading.current_thread()),
    )
    assert len(run.rounds) == 1
    assert callers == {threading.current_thread()}
    assert asyncio.get_running_loop().is_running()


def test_an_error_of_the_callback_ends_the_run_and_is_raised(tmp_path: Path) -> None:
    def refuse(event: Event) -> None:
        if isinstance(event, RoundEnded):
            raise EnoughError

    with pytest.raises(EnoughError) as caught:
        edgebed.simulate(experiment(rounds=10_000), runs=tmp_path, on_event=refuse)
    [run] = edgebed.load_runs(tmp_path / "*")
    assert run.summary["ended"] == "interrupted"
    assert any(run.name in note for note in caught.value.__notes__)
    assert "edgebed" not in [thread.name for thread in threading.enumerate()]


def test_ctrl_c_ends_the_run_and_is_raised(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, RoundBegan) and event.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            edgebed.simulate(experiment(rounds=10_000), runs=tmp_path, on_event=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    [run] = edgebed.load_runs(tmp_path / "*")
    assert run.summary["ended"] == "interrupted"


def test_a_run_in_which_nothing_was_merged_is_an_error_and_its_records_stay(tmp_path: Path) -> None:
    said = r"no work was merged in 2 rounds: none had a quorum of 1; missing .* max_update_norm"
    with pytest.raises(RunError, match=said) as caught:
        edgebed.simulate(experiment(max_update_norm=1e-9), methods="fedavg", runs=tmp_path)
    assert "mend these devices" in caught.value.hint
    [run] = edgebed.load_runs(tmp_path / "*")
    assert run.summary["ended"].startswith("error: no work was merged in 2 rounds")
    assert run.rounds["merged_devices"].tolist() == [0, 0]


def test_a_fleet_that_comes_with_edgebed_has_a_name_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [run] = edgebed.simulate({**experiment(rounds=1), "fleet": "dtfl-5"}, methods="fedavg", runs="runs")
    [again] = edgebed.simulate(run.experiment, fleet="dtfl-10", runs="runs")
    assert [len(each.devices) for each in (run, again)] == [5, 10]


def test_what_is_wrong_is_raised_here_with_its_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        edgebed.simulate({**experiment(), "fleet": "nowhere.yaml"}, runs=tmp_path)
    assert any(note.startswith("Hint: ") for note in caught.value.__notes__)
    assert not list(tmp_path.iterdir())


@pytest.mark.fleet
async def test_a_real_run_from_a_dict_where_an_event_loop_runs_already(tmp_path: Path, uncalibrated: None) -> None:
    """Two devices that hold their limits themselves. The callback ends the run in its second round."""
    for name, cpus in (("weak", 0.2), ("strong", 0.4)):
        text = f"cpus: {cpus}\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 1024\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    devices = "".join(f"  - {{profile: {tmp_path}/{name}.yaml, name: {name}}}\n" for name in ("weak", "strong"))
    (tmp_path / "fleet.yaml").write_text(f"name: two\ndevices:\n{devices}")
    heard: list[Event] = []

    def until_round_two(event: Event) -> None:
        heard.append(event)
        if isinstance(event, RoundEnded) and event.round == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        edgebed.run(
            experiment(rounds=1000),
            methods="fedavg",
            fleet=tmp_path / "fleet.yaml",
            runs=tmp_path / "runs",
            backend="software",
            allow_uncalibrated=True,
            on_event=until_round_two,
        )
    [run] = edgebed.load_runs(tmp_path / "runs" / "*")
    assert run.summary["enforcement"] == "software"
    assert run.summary["ended"] == "interrupted"
    assert run.rounds["merged_devices"].tolist()[:2] == [2, 2]
    assert run.summary["timeline_residual_max"] < 0.02
    assert any("agents to join" in event.text for event in heard if isinstance(event, Line))
