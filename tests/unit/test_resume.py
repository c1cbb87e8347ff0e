"""What `--resume` goes on with: the whole experiment; what may be changed of it, and what is said of an early end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from edgebed.errors import UsageError
from orchestrator.cli.unfinished import resume_command, tell_unfinished
from orchestrator.experiment import MOST_ROUNDS, Experiment, Training
from orchestrator.records.recorder import Recorder
from orchestrator.records.types import Fault, Record, RunFinished, RunStarted
from orchestrator.rounds.progress import Progress
from orchestrator.runs.folder import RunFolder, Series, resolved
from orchestrator.runs.request import Request, parts
from orchestrator.runs.resume import CHANGEABLE, resume_request
from tests.synthetic import Synthetic

METHODS = [{"name": "dtfl", "tiers": 3}, {"name": "fedavg"}, {"name": "fedyogi"}]
TRAINING = Training(rounds=4, target_accuracy=0.9)


def made(
    runs: Path, place: int, progress: Progress, series: str = "one", training: Training = TRAINING, name: str = ""
) -> Path:
    """A run folder of the method at `place`, as a run leaves it."""
    experiment = Experiment(name="x", fleet="fleet.yaml", methods=METHODS, training=training)
    folder = RunFolder(runs / (name or f"x-{METHODS[place]['name']}"))
    own = METHODS[place]
    folder.make(resolved(experiment, runs / "experiment.yaml", own, 2.5), Series(series, place, METHODS))
    recorder = Recorder(folder.records)
    recorder.record(started())
    over = progress.round == training.rounds or progress.accuracy >= training.target_accuracy
    recorder.record(RunFinished(9, "any words", "finished" if over else "interrupted"))
    recorder.record(Fault(10, "dev-1", "what a device still says at the end"))
    recorder.close()
    if progress.round:
        folder.save({"w": torch.ones(1)}, progress, {})
    return folder.path


def started(enforcement: str = "kernel", backend: str = "local") -> Record:
    record = next(r for r in Synthetic(rounds=1).records if isinstance(r, RunStarted))
    return msgspec.structs.replace(record, enforcement=enforcement, backend=backend)


def test_the_whole_experiment_is_gone_on_with_from_any_of_its_runs(tmp_path: Path) -> None:
    first = made(tmp_path, 0, Progress(round=4))
    second = made(tmp_path, 1, Progress(round=2))
    made(tmp_path, 1, Progress(round=1), series="another", name="x-other")
    for run in (first, second):
        request = resume_request(run)
        assert request.experiment.methods == METHODS
        assert (request.finished, request.begun) == ({0: first}, {1: second})
        assert (request.series, request.runs, request.backend) == ("one", tmp_path, "local")
        assert (request.experiment.dilation, request.experiment.fleet) == (2.5, str(tmp_path / "fleet.yaml"))


def test_a_run_whose_target_was_reached_is_finished_and_one_without_a_checkpoint_has_begun(tmp_path: Path) -> None:
    made(tmp_path, 0, Progress(round=1, accuracy=0.9))
    made(tmp_path, 1, Progress())
    request = resume_request(tmp_path / "x-fedavg")
    assert (set(request.finished), set(request.begun)) == ({0}, {1})


def test_what_is_finished_is_refused_and_can_be_extended(tmp_path: Path) -> None:
    for place in range(3):
        made(tmp_path, place, Progress(round=4))
    with pytest.raises(UsageError, match=r"x-fedavg is finished: .*4 of 4 rounds") as refused:
        resume_request(tmp_path / "x-fedavg")
    assert "--resume x-fedavg --set training.rounds=8" in refused.value.hint
    request = resume_request(tmp_path / "x-fedavg", ["training.rounds=6"])
    assert request.experiment.training.rounds == 6
    assert (set(request.finished), set(request.begun)) == (set(), {0, 1, 2})


def test_a_run_that_reached_its_target_early_is_not_said_to_lack_rounds(tmp_path: Path) -> None:
    for place in range(3):
        made(tmp_path, place, Progress(round=2, accuracy=0.9))
    with pytest.raises(UsageError, match=r"^x-fedavg is finished: its target reached in round 2 of 4$"):
        resume_request(tmp_path / "x-fedavg")


def test_a_run_that_was_killed_after_its_last_round_is_not_finished(tmp_path: Path) -> None:
    run = made(tmp_path, 0, Progress(round=4))
    recorder = Recorder(run / "records.jsonl")
    recorder.record(started())  # extended, say; the final test of its weights was still to come
    recorder.close()
    assert set(resume_request(run).begun) == {0}


def test_how_a_run_ended_is_found_before_what_devices_still_said(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    assert files.ending() is None
    recorder = Recorder(files.records)
    assert files.ending() is None
    recorder.record(started())
    assert files.ending() is None
    recorder.record(RunFinished(9, "all is well", "failed"))
    assert files.ending() == "failed"
    recorder.record(Fault(10, "dev-1", 'said late: {"type":"run_started"'))
    assert files.ending() == "failed"
    recorder.close()


def test_a_run_of_an_older_version_goes_on_alone(tmp_path: Path) -> None:
    run = made(tmp_path, 1, Progress(round=2))
    made(tmp_path, 0, Progress(round=4))
    (run / "series.json").unlink()
    request = resume_request(run)
    assert request.experiment.methods == [METHODS[1]]
    assert (request.finished, request.begun) == ({}, {0: run})


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("training.seed=3", "training.seed"),
        ("training.optimizer={name: sgd, lr: 0.1}", "training.optimizer"),
        ("model.name=vgg16", "model.name"),
        ("methods=[{name: fedavg}]", "methods"),
        ("fleet=/another.yaml", "fleet"),
        ("dilation=3", "dilation"),
    ],
)
def test_what_training_depends_on_may_not_be_changed_and_what_may_is_said(
    tmp_path: Path, override: str, named: str
) -> None:
    run = made(tmp_path, 0, Progress(round=2))
    with pytest.raises(UsageError, match=named) as refused:
        resume_request(run, [override])
    assert all(key in refused.value.hint for key in CHANGEABLE)


def test_the_rounds_of_a_cosine_may_not_be_changed(tmp_path: Path) -> None:
    run = made(tmp_path, 0, Progress(round=2), training=Training(rounds=4, cosine=True))
    with pytest.raises(UsageError, match=r"cosine.*4 rounds"):
        resume_request(run, ["training.rounds=8"])
    assert resume_request(run, ["training.quorum=2"]).experiment.training.quorum == 2


def test_a_simulation_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path, 0, Progress(round=2))
    recorder = Recorder(run / "records.jsonl")
    recorder.record(started("simulated", "simulated"))
    recorder.close()
    with pytest.raises(UsageError, match="is a simulation"):
        resume_request(run)


def test_an_early_end_tells_what_is_finished_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "20")
    folders = [made(tmp_path, 0, Progress(round=4, accuracy=0.8997)), made(tmp_path, 1, Progress(round=2))]
    experiment = Experiment(name="x", fleet="fleet.yaml", methods=METHODS, training=TRAINING)
    tell_unfinished(Request(experiment, tmp_path / "experiment.yaml", tmp_path), folders)
    told = capsys.readouterr().err
    rows = [line.split() for line in told.splitlines()]
    assert ["dtfl", "finished", "4", "of", "4", "89.9%", "x-dtfl"] in rows
    assert ["fedavg", "unfinished", "2", "of", "4", "0.0%", "x-fedavg"] in rows
    assert ["fedyogi", "not", "begun", "–", "–"] in rows
    assert "edgebed run --resume x-fedavg\n" in told
    assert resume_command(tmp_path / "elsewhere" / "a b") == f"edgebed run --resume '{tmp_path}/elsewhere/a b'"


def test_a_run_whose_budget_was_spent_is_finished_and_is_extended_by_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = msgspec.structs.replace(TRAINING, rounds=MOST_ROUNDS, budget_s=60.0)
    for place in range(3):
        run = made(tmp_path, place, Progress(round=7, spent_s=60.0), training=training)
        recorder = Recorder(run / "records.jsonl")
        recorder.record(RunFinished(11, "budget spent", "finished"))
        recorder.close()
    with pytest.raises(UsageError, match=r"x-fedavg is finished: its budget of 60 s spent in round 7") as refused:
        resume_request(tmp_path / "x-fedavg")
    assert "--resume x-fedavg --set training.budget_s=120 extends it" in refused.value.hint
    request = resume_request(tmp_path / "x-fedavg", ["training.budget_s=90"])
    assert (set(request.finished), request.experiment.training.budget_s) == (set(), 90.0)
    tell_unfinished(request, [run])
    assert ["fedyogi", "unfinished", "7", "0.0%", "x-fedyogi"] in [
        x.split() for x in capsys.readouterr().err.splitlines()
    ]


def test_an_end_before_the_first_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = Experiment(name="x", fleet="fleet.yaml", methods=METHODS)
    tell_unfinished(Request(experiment, tmp_path / "experiment.yaml", tmp_path), [])
    assert "No run had started" in capsys.readouterr().err


SEEDS = [5, 3]


def made_with_seeds(runs: Path, place: int, progress: Progress) -> Path:
    """The run at `place` of an experiment with two methods and two seeds."""
    methods = METHODS[:2]
    experiment = Experiment(name="x", fleet="fleet.yaml", methods=methods, training=TRAINING, seeds=SEEDS)
    own = experiment.part({}, SEEDS[place // 2])
    folder = RunFolder(runs / f"x-{place}")
    series = Series("one", place, methods, SEEDS)
    folder.make(resolved(own, runs / "experiment.yaml", methods[place % 2], 2.5), series)
    recorder = Recorder(folder.records)
    recorder.record(started())
    recorder.record(RunFinished(9, "any words", "finished" if progress.round == 4 else "interrupted"))
    recorder.close()
    if progress.round:
        folder.save({"w": torch.ones(1)}, progress, {})
    return folder.path


def test_an_experiment_with_several_seeds_goes_on_as_a_whole(tmp_path: Path) -> None:
    """Seed 5 is done, of seed 3 one method has begun and the other has not."""
    runs = [made_with_seeds(tmp_path, place, Progress(round=rounds)) for place, rounds in enumerate((4, 4, 2))]
    for run in runs:
        request = resume_request(run)
        assert (request.finished, request.begun) == ({0: runs[0], 1: runs[1]}, {2: runs[2]})
        first, second = parts(request)
        assert first.over == runs[:2]
        assert (second.over, second.begun, second.finished) == ([], {0: runs[2]}, {})
        assert [each.experiment.training.seed for each in (first, second)] == SEEDS
        assert [each.first_place for each in (first, second)] == [0, 2]
        assert {first.series, second.series} == {"one"}


def test_a_run_with_several_seeds_is_finished_when_all_are(tmp_path: Path) -> None:
    runs = [made_with_seeds(tmp_path, place, Progress(round=4)) for place in range(3)]
    assert resume_request(runs[0]).begun == {}
    made_with_seeds(tmp_path, 3, Progress(round=4))
    with pytest.raises(UsageError, match="is finished"):
        resume_request(runs[0])
    assert set(resume_request(runs[0], ["training.rounds=5"]).begun) == {0, 1, 2, 3}


def test_what_a_seed_left_is_told_by_method_and_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_with_seeds(tmp_path, 2, Progress(round=2, accuracy=0.5))
    request = resume_request(run)
    tell_unfinished(request, [run])
    said = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert ["dtfl,", "seed", "3", "unfinished", "2", "of", "4", "50.0%", "x-2"] in said
    assert ["fedavg,", "seed", "5", "not", "begun", "–", "–"] in said


def test_a_sweep_that_no_run_has_written_is_refused_before_it_is_listed(tmp_path: Path) -> None:
    """The folder may be from others: a product of ten keys was listed, until the memory was full."""
    run = made(tmp_path, 0, Progress(round=2))
    sweep = {f"training.key{i}": list(range(10)) for i in range(10)}
    (run / "series.json").write_bytes(msgspec.json.encode(Series("one", 0, METHODS, sweep=sweep)))
    with pytest.raises(UsageError, match="10000000000 settings and seeds"):
        resume_request(run)
