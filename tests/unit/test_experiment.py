"""Experiment files: what is wrong is refused with file, place and hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgebed.errors import UsageError
from orchestrator.experiment import load
from orchestrator.fleet.spec.profile import load_fleet

GOOD = "name: x\nfleet: f.yaml\nmethods: [{name: fedavg}]\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(text)
    return path


def test_defaults_and_overrides(tmp_path: Path) -> None:
    experiment = load(write(tmp_path, GOOD), ["training.rounds=3", "training.codec.dtype=uint8", "dilation=2.5"])
    assert experiment.training.rounds == 3
    assert experiment.training.codec.dtype == "uint8"
    assert experiment.dilation == 2.5
    assert experiment.data == {"name": "digits"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (GOOD + "training: {rouns: 3}\n", "training"),
        (GOOD + "training: {rounds: -1}\n", "training.rounds"),
        (GOOD + "training: {rounds: many}\n", "training.rounds"),
        (GOOD + "training: {target_accuracy: 90}\n", "target_accuracy"),
        (GOOD + "training: {optimizer: {name: rmsprop}}\n", "training.optimizer.name"),
        (GOOD + "training: {optimizer: {lr: -1}}\n", "training.optimizer.lr"),
        (GOOD + "training: {codec: {dtype: int4}}\n", "training.codec.dtype"),
        (GOOD + "colour: red\n", "colour"),
        ("name: x\n", "fleet"),
        ("- 1\n", "mapping"),
        ("name: [\n", "YAML"),
    ],
)
def test_a_mistake_is_named_with_file_and_place(tmp_path: Path, text: str, place: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert place in str(caught.value)
    assert caught.value.hint


def test_the_hint_names_the_keys_of_that_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, GOOD + "training: {plateau: {patienc: 3}}\n"))
    assert caught.value.hint == "known keys here: factor, patience"
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, GOOD), ["training.rouns=3"])
    assert "rounds" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, GOOD), ["training.optimizer.name=rmsprop"])
    assert caught.value.hint == "write one of: adam, sgd"


def test_what_is_not_finite_is_no_quantity(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"training\.optimizer\.lr is nan"):
        load(write(tmp_path, GOOD), ["training.optimizer.lr=.nan"])


def test_a_missing_file_and_a_bad_override(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(UsageError, match="no '='"):
        load(write(tmp_path, GOOD), ["training.rounds"])
    with pytest.raises(UsageError, match="is not a mapping"):
        load(write(tmp_path, GOOD), ["name.x=3"])


def refusal(path: Path, *overrides: str) -> tuple[str, str]:
    """Message and hint."""
    with pytest.raises(UsageError) as caught:
        load(path, list(overrides))
    return str(caught.value), caught.value.hint


def test_numbers_and_words_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = GOOD + "training: {optimizer: {lr: 1e-3}, batch_size: 0o17, seed: 010}\n"
    training = load(write(tmp_path, text)).training
    assert (training.optimizer.lr, training.batch_size, training.seed) == (1e-3, 15, 10)
    assert load(write(tmp_path, GOOD.replace("name: x", "name: no"))).name == "no"
    assert load(write(tmp_path, GOOD + "dilation: off\n")).dilation == "off"
    assert load(write(tmp_path, GOOD), ["training.optimizer.lr=2e-4"]).training.optimizer.lr == 2e-4


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("training: {target_accuracy: 90}", ":4: training.target_accuracy is 90", "write 0.9"),
        ("training: {target_accuracy: 90 %}", "training.target_accuracy is '90 %'", "write 0.9"),
        ("training: {rounds: 1e1}", "training.rounds is 10.0", "write 10"),
        ("training: {rounds: 1_000}", "training.rounds is '1_000'", "write 1000"),
        ("training: {optimizer: {lr: '0,01'}}", "lr is '0,01'", "write 0.01"),
        ("training: {deadline_s: 30s}", "deadline_s is '30s'", "write a number above 0"),
        ("training: {deadline_s: 0}", "deadline_s is 0; it must be a number above 0 and at most", "or null"),
        ("training: {cosine: yes}", "cosine is 'yes'; it must be true or false", "write true"),
        ("training: {batch_size: 1000000000}", "batch_size is 1000000000; it must be a whole number from 1", "100"),
        ("training: {seed: -1}", "seed is -1", "such as 0"),
        ("training: {seed: 99999999999999999999}", "seed is 99999999999999999999", "from 0 to 4294967295"),
        ("training: {optimizer: {name: adam, momentum: 0.9}}", "momentum 0.9, which only sgd has", "name: sgd"),
        ("training: {optimizer: Adam}", "training.optimizer is 'Adam'", "write"),
        ("model: resnet-tiny", "model is 'resnet-tiny'", "write {name: resnet-tiny}"),
        ("model: {name: resnet-tyni}", "did you mean 'resnet-tiny'?", "choose one of: "),
        ("data: {name: Digits}", "did you mean 'digits'?", "choose one of: "),
        ("data: {name: digits, test_shar: 0.1}", "did you mean 'test_share'?", "known keys here: "),
        ("partition: {kind: dirichlt}", ":4: partition.kind: there is no partition 'dirichlt'; did you mean", "iid"),
        ("training:\n  codec:\n    dtype: unit8", ":6: training.codec.dtype is 'unit8'", "write uint8"),
        ("training: {learning_rate: 1}", "there is no key 'learning_rate'", "known keys here: rounds"),
        ("trainning: {}", ":4: trainning: there is no key 'trainning' here; did you mean 'training'?", "fleet"),
        ("training: {rounds: 3}\ntraining: {rounds: 4}", ":5: the key 'training' appears again", "delete one"),
        ("privacy: {profiles: {cpu1: {dcor_alpha: 2}}}", "privacy.profiles.cpu1.dcor_alpha is 2", "0 to 1"),
        ("dilation: 0.5", "dilation is 0.5", "auto, off"),
        ("dilation: Auto", "dilation is 'Auto'", "write auto"),
    ],
)
def test_a_message_says_the_place_what_stands_there_and_what_to_write(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    path = write(tmp_path, f"{GOOD}{text}\n")
    said, advice = refusal(path)
    assert said.startswith(f"{path}:")
    assert message in said
    assert hint in advice


@pytest.mark.parametrize(
    ("methods", "message", "hint"),
    [
        ("[]", "methods is an empty list; it must be a list of at least 1", "a list"),
        ("fedavg", "methods is 'fedavg'", "write"),
        ("[{name: fedagv}]", ":3: methods[0]: there is no method 'fedagv'; did you mean 'fedavg'?", "dtfl"),
        ("[{name: dtfl, tier: 1, teirs: 2}]", "method 'dtfl': teirs: there is no key 'teirs'", "tiers"),
        ("[{name: dtfl, tiers: many}]", ":3: methods[0]: method 'dtfl': tiers is 'many'", "a whole number"),
    ],
)
def test_a_wrong_list_of_methods_is_refused(tmp_path: Path, methods: str, message: str, hint: str) -> None:
    said, advice = refusal(write(tmp_path, f"name: x\nfleet: f.yaml\nmethods: {methods}\n"))
    assert message in said
    assert hint in advice


def test_what_the_command_line_sets_is_named_as_such(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "training: {rounds: 3}\n")
    said, hint = refusal(path, "training.target_accuracy=90")
    assert said.startswith(f"{path}, --set training.target_accuracy=90: training.target_accuracy is 90")
    assert hint == "write 0.9"
    assert "--set training={a: 1, a: 2}" in refusal(path, "training={a: 1, a: 2}")[0]


def test_a_fleet_file_and_an_experiment_are_told_apart(tmp_path: Path) -> None:
    said, hint = refusal(write(tmp_path, "name: f\ndevices: [{profile: cpu1}]\n"))
    assert "is a fleet file" in said
    assert "edgebed init" in hint
    with pytest.raises(UsageError, match="is an experiment") as caught:
        load_fleet(write(tmp_path, GOOD))
    assert "f.yaml" in caught.value.hint


def test_a_list_of_fixed_length_is_described(tmp_path: Path) -> None:
    said, hint = refusal(write(tmp_path, GOOD + "model: {name: resnet-tiny, widths: 3}\n"))
    assert "model 'resnet-tiny': widths is 3; it must be a list of 3" in said
    assert "a list of 3" in hint


def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "''", "a b", "x" * 64):
        said, hint = refusal(write(tmp_path, GOOD.replace("name: x", f"name: {name}")))
        assert ":1: name is" in said
        assert "letters" in hint
