"""Experiment files: what is wrong is refused with file, place and cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgebed.errors import UsageError
from orchestrator.experiment import load

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
    assert caught.value.cure


def test_the_cure_names_the_keys_of_that_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, GOOD + "training: {plateau: {patienc: 3}}\n"))
    assert caught.value.cure == "known keys here: factor, patience"
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, GOOD), ["training.rouns=3"])
    assert "rounds" in caught.value.cure
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, GOOD), ["training.optimizer.name=rmsprop"])
    assert caught.value.cure == "choose one of: adam, sgd"


def test_what_is_not_finite_is_no_quantity(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"training\.optimizer\.lr: nan"):
        load(write(tmp_path, GOOD), ["training.optimizer.lr=.nan"])


def test_a_missing_file_and_a_bad_override(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(UsageError, match="no '='"):
        load(write(tmp_path, GOOD), ["training.rounds"])
    with pytest.raises(UsageError, match="no mapping"):
        load(write(tmp_path, GOOD), ["name.x=3"])
