"""Methods whose rounds alternate on one real fleet: their order, their records, and a kill in the middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

import edgebed
from orchestrator.records.reader import read
from orchestrator.records.types import DeviceJoined, RoundFinished, RoundStarted, RunStarted, TurnEnded
from orchestrator.runs.turns import order
from tests.e2e.cli import cli, summary, write_experiment
from tests.e2e.rig import experiment, rig

METHODS = "methods=[{name: fedavg}, {name: splitfed, cut: 2}]"
DATA = {"name": "digits", "train_samples": 200, "test_samples": 100}
ROUNDS, SEED = 4, 2


@pytest.mark.root
@pytest.mark.mosquitto
def test_interleaved_runs_that_were_killed_end_with_the_weights_of_runs_one_after_the_other(tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    settings = (METHODS, "interleave=true", f"training.rounds={ROUNDS}", f"data={msgspec.json.encode(DATA).decode()}")
    wanted = ["run", str(path), *(part for setting in settings for part in ("--set", setting))]
    with cli(tmp_path, *wanted, calibrated=False) as first:
        first.expect(RoundFinished, lambda record: record.round == 1)
        os.kill(first.process.pid, signal.SIGKILL)
        first.wait()
    with cli(tmp_path, "run", "--resume", first.folders()[0].name, "--json", calibrated=False) as second:
        code, out, err = second.wait()
        assert code == 0, err
    fedavg, splitfed = second.folders()

    (pair,) = msgspec.json.decode(out)["paired"]
    assert (pair["method"], pair["baseline"], pair["experiments"]) == ("splitfed", "fedavg", 1)
    assert pair["round_ratio"]["mean"] > 0
    played: dict[tuple[str, int], Path] = {}
    for folder in (fedavg, splitfed):
        records = read(folder / "records.jsonl")
        resumed = [record.resumed_from for record in records if isinstance(record, RunStarted)]
        assert len(resumed) == 2
        assert resumed[1] >= 1
        turns = [record for record in records if isinstance(record, TurnEnded)]
        rounds = [turn.round for turn in turns]
        assert rounds == sorted(set(rounds))
        assert set(range(ROUNDS)) - set(rounds) <= {1, 2}, "the kill may hit between a checkpoint and the turn's end"
        played |= {(turn.block, turn.position): folder for turn in turns if turn.of == 2}
        figures = summary(folder)
        assert figures["interleaved"]
        assert figures["rounds"] == ROUNDS
        assert figures["timeline_residual_max"] <= 0.02
        assert figures["total_s"] == pytest.approx(sum(figures["round_s"]))
    for (block, position), folder in played.items():
        number = order(2, int(block.split("/")[1]) - 1, SEED)[position]
        assert folder == (fedavg, splitfed)[number]

    whole = edgebed.simulate(
        path,
        overrides={
            "methods": [{"name": "fedavg"}, {"name": "splitfed", "cut": 2}],
            "training.rounds": ROUNDS,
            "data": DATA,
            "simulation.batched": False,
        },
        runs=tmp_path / "simulated",
    )
    for folder, run in zip((fedavg, splitfed), whole, strict=True):
        one, other = load_file(folder / "checkpoint.safetensors"), load_file(run.path / "checkpoint.safetensors")
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.root
@pytest.mark.mosquitto
async def test_what_happens_in_another_run_s_turn_is_in_the_records_of_both(tmp_path: Path) -> None:
    wanted = msgspec.structs.replace(
        experiment(rounds=6, max_batches=2),
        methods=[{"name": "fedavg"}, {"name": "splitfed", "cut": 2}],
        interleave=True,
    )
    async with rig(tmp_path, wanted) as run:  # `run` looks at SplitFed's records
        await run.expect(RoundStarted, lambda record: record.round == 1)
        os.kill(run.pid("dev-1"), signal.SIGKILL)
        fedavg, splitfed = await run.work
    for folder in (fedavg, splitfed):
        figures = summary(folder)
        assert (figures["rounds"], figures["ended"]) == (6, "rounds done")
        assert figures["timeline_residual_max"] <= 0.02
        again = [
            record for record in read(folder / "records.jsonl") if isinstance(record, DeviceJoined) and record.again
        ]
        assert [record.device for record in again] == ["dev-1"]
    assert summary(splitfed)["devices_left_out"] == {"lost": 1}
    assert summary(fedavg)["devices_left_out"] == {}
