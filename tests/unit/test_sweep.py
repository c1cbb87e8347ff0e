"""`sweep` of an experiment: its settings, what is refused, and where a run stands among all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from edgebed.errors import UsageError
from orchestrator.experiment import Experiment, from_dict, load
from orchestrator.records.words.formatting import setting_texts
from orchestrator.runs.request import ExperimentRequest, parts

WANTED = {"name": "x", "fleet": "dtfl-5", "methods": [{"name": "fedavg"}, {"name": "dtfl"}]}


def experiment(**more: object) -> Experiment:
    return from_dict({**WANTED, **more})


def test_parts_are_the_product_of_settings_and_seeds_and_their_places_follow_each_other() -> None:
    wanted = experiment(seeds=[3, 1], sweep={"training.batch_size": [32, 64], "server.cpus": [1, 2]})
    found = list(parts(ExperimentRequest(wanted, Path("x.yaml"), Path("runs"))))
    sizes = [each.experiment.training.batch_size for each in found]
    cpus = [each.experiment.server and each.experiment.server.cpus for each in found]
    assert sizes == [32] * 4 + [64] * 4
    assert cpus == [1, 1, 2, 2] * 2
    assert [each.experiment.training.seed for each in found] == [3, 1] * 4
    assert [each.first_place for each in found] == list(range(0, 16, 2))
    assert len({each.series for each in found}) == 1
    assert found[3].part_text == "part 4 of 8: batch_size 32, cpus 2, seed 1"
    assert found[2].setting == {"training.batch_size": 32, "server.cpus": 2}


def test_without_a_sweep_there_is_one_setting() -> None:
    assert experiment().parts == [({}, 0)]
    (only,) = parts(ExperimentRequest(experiment(), Path("x.yaml"), Path("runs")))
    assert only.part_text == ""


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({"training.batchsize": [1]}, r"sweep: training\.batchsize: there is no key 'batchsize' here; did you mean"),
        ({"training.batch_size": [32, 0]}, r"sweep: training\.batch_size is 0; it must be a whole number from 1"),
        ({"training.batch_size": 32}, r"sweep\.training\.batch_size is 32; it must be a list"),
        ({"training.batch_size": []}, r"is an empty list"),
        ({"training.batch_size": [32, 32]}, "stands there twice"),
        ({"model": [{"name": "resnet-tinny"}]}, "there is no model 'resnet-tinny'; did you mean"),
        ({"training.seed": [1, 2]}, r"training\.seed cannot be swept"),
        ({"methods": [[{"name": "dtfl"}]]}, "methods cannot be swept"),
        ({"fleet.x": [1]}, "fleet is not a mapping"),
        ({"training.batch_size": list(range(1, 1002))}, "1001 settings and seeds"),
        ({f"training.{i}": list(range(10)) for i in range(12)}, "1000000000000 settings and seeds"),
        ({"plugins": [["a.py"]]}, "plugins cannot be swept"),
        ({"seeds.0": [1]}, r"seeds\.0 cannot be swept"),
    ],
)
def test_a_wrong_sweep_is_refused_with_the_words_of_set(sweep: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        experiment(sweep=sweep)


def test_seeds_count_too() -> None:
    with pytest.raises(UsageError, match="1500 settings and seeds, above 1000"):
        experiment(seeds=list(range(500)), sweep={"training.batch_size": [8, 16, 32]})


def test_the_message_has_the_line_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: x\nfleet: dtfl-5\nmethods: [{name: dtfl}]\nsweep:\n  training.rounds: [1]\n  training.lr: [1]\n"
    )
    with pytest.raises(UsageError, match=r"x\.yaml:6, sweep: training\.lr: there is no key 'lr'"):
        load(path)


def test_a_sweep_of_20000_values_is_refused_at_once() -> None:
    """Each was compared with each: hours, for a file of 1 MiB."""
    began = time.process_time()
    with pytest.raises(UsageError, match="20000 settings and seeds"):
        experiment(sweep={"training.batch_size": list(range(1, 20_001))})
    assert time.process_time() - began < 2


def test_a_setting_in_words() -> None:
    assert setting_texts({"training.batch_size": 32, "fleet": "dtfl-5"}) == ["batch_size 32", "fleet dtfl-5"]
    assert setting_texts({"a.lr": 0.1, "b.lr": 1}) == ["a.lr 0.1", "b.lr 1"]
