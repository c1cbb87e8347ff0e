"""All mistakes of a file at once: `edgebed check`, and the start of `run` and `simulate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from typer.testing import CliRunner

from edgebed.errors import Mistakes, UsageError, refuse
from edgebed.typed import mistakes
from orchestrator.cli import build
from orchestrator.experiment import load
from orchestrator.files.shipped import shipped
from tests.strangers import alone, write_file

__all__ = ["alone"]

SIX = """\
name: my run
fleet: dtfl-5
data: {name: digits, train_sample: 100}
methods:
  - {name: fedavg}
  - {name: dtfll}
training:
  rounds: 0
  batchsize: 32
  optimizer: {name: adam, lr: fast}
"""


def test_six_mistakes_are_told_at_once_with_line_place_and_cure(tmp_path: Path) -> None:
    path = tmp_path / "six.yaml"
    path.write_text(SIX)
    with pytest.raises(Mistakes) as caught:
        load(path)
    said = [str(each).removeprefix(f"{path}:") for each in caught.value.each]
    begin = [
        "1: name",
        "3: data",
        "6: methods[1]",
        "8: training.rounds",
        "9: training.batchsize",
        "10: training",
    ]
    assert [each.startswith(start) for each, start in zip(said, begin, strict=True)] == [True] * 6
    assert all(each.hint for each in caught.value.each)
    for command in ("check", "run", "simulate"):
        done = CliRunner().invoke(build(command), [command, str(path)])
        assert isinstance(done.exception, Mistakes)
        assert str(done.exception) == str(caught.value)


def test_mistakes_of_fleet_data_and_methods_have_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: x\nfleet: desk-5\nmethods: [{name: fedavg}, {name: fedpmt, layers: 90}]\n"
        "training: {quorum: 77}\nenvironment: {profiles: [cpu77]}\n"
    )
    done = CliRunner().invoke(build("check"), ["check", str(path)])
    assert f"{path}:3: methods[1]: method 'fedpmt': layers: there is no key" in str(done.exception)
    assert f"{path}:4: training.quorum is 77" in str(done.exception)
    assert f"{path}:5: environment.profiles[0]: there is no device profile 'cpu77'" in str(done.exception)


def test_mistakes_of_a_later_setting_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nfleet: desk-5\nmethods: [{name: fedavg}]\nsweep: {training.quorum: [1, 77]}\n")
    done = CliRunner().invoke(build("check"), ["check", str(path)])
    assert "training.quorum is 77" in str(done.exception)


def test_mistakes_of_all_settings_are_told_at_once_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    begin = "name: x\nfleet: desk-5\nmethods: [{name: fedavg}]\nsweep:\n  training.seed: [1, 2]\n"
    for sweep, wrong in (
        ("training.quorum: [77, 1, 88]\n  training.batch_size: [16, 32]\n", ("quorum is 77", "quorum is 88")),
        ("training.rounds: [0, 1, -1]\n  training.batch_size: [16, 32]\n", ("rounds is 0", "rounds is -1")),
    ):
        path.write_text(begin.replace("training.seed: [1, 2]", sweep.rstrip()))
        done = CliRunner().invoke(build("check"), ["check", str(path)])
        assert isinstance(done.exception, Mistakes)
        assert len(done.exception.each) == len(wrong)
        assert all(text in str(each) for text, each in zip(wrong, done.exception.each, strict=True))


def test_a_profile_file_is_checked_as_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("cpus: 0.5\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 512\n")
    assert CliRunner().invoke(build("check"), ["check", str(path)]).stdout == f"{path}: no mistakes; cpus: 0.5\n"
    path.write_text("cpus: 0.5\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mb: 512\n")
    done = CliRunner().invoke(build("check"), ["check", str(path)])
    assert f"{path}:4: " in str(done.exception)
    assert "memory_mib" in str(done.exception)


def test_check_and_schema_know_a_plug_in(tmp_path: Path) -> None:
    plugin, path = write_file(tmp_path), tmp_path / "x.yaml"
    path.write_text("name: x\nfleet: desk-5\nmethods: [{name: stranger}]\n")
    assert CliRunner().invoke(build("check"), ["check", str(path)]).exception is not None
    done = CliRunner().invoke(build("check"), ["check", str(path), "--plugin", str(plugin)])
    assert done.exit_code == 0, done.exception
    shown = CliRunner().invoke(build("schema"), ["schema", "experiment", "--plugin", str(plugin)])
    assert '"const": "stranger"' in shown.stdout


ODD = """\
from fractions import Fraction
import msgspec
from edgebed.methods.fedavg import FedAvg
class TermOptions(msgspec.Struct):
    weight: float
class Odd(FedAvg):
    name = "odd"
    class Options(msgspec.Struct):
        share: Fraction
        term: TermOptions
"""


def test_the_schema_has_options_of_any_type(tmp_path: Path) -> None:
    """Of a plug-in: of a class that JSON does not know, and of a struct of its own."""
    (tmp_path / "odd_options.py").write_text(ODD)
    done = CliRunner().invoke(build("schema"), ["schema", "--plugin", str(tmp_path / "odd_options.py")])
    assert done.exit_code == 0, done.exception
    parts = json.loads(done.stdout)["$defs"]
    (odd,) = [each for each in parts["Experiment"]["properties"]["methods"]["items"]["oneOf"] if each["title"] == "odd"]
    assert odd["properties"]["share"] == {"title": "Fraction"}
    assert odd["properties"]["term"] == {"$ref": "#/$defs/TermOptions"}
    assert parts["TermOptions"]["required"] == ["weight"]


def test_simulate_names_the_command_that_resumes() -> None:
    done = CliRunner().invoke(build("simulate"), ["simulate", "--resume", "demo-1"])
    assert isinstance(done.exception, UsageError)
    assert "edgebed run --resume demo-1" in done.exception.hint


def test_a_mistake_of_the_model_is_told_once_for_all_methods(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nfleet: desk-5\nmethods: [{name: fedavg}, {name: tifl}]\nmodel: {name: transformer}\n")
    done = CliRunner().invoke(build("check"), ["check", str(path)])
    assert not isinstance(done.exception, Mistakes)
    assert str(done.exception).startswith(f"{path}:4: model: transformer takes")


def test_nothing_is_said_of_what_only_replaces_a_mistake() -> None:
    """Not of the example that stands in place of an event without a time."""
    text = {"name": "x", "fleet": "f", "methods": [{"name": "fedavg"}], "scenario": [{"do": "cut"}]}
    with pytest.raises(UsageError) as caught:
        from_dict_of(text)
    assert not isinstance(caught.value, Mistakes)


def from_dict_of(values: Mapping[str, object]) -> None:
    from orchestrator.experiment import from_dict

    from_dict(values)


class Part(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=3)]
    kind: str = "a"


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part]
    name: str
    more: Part | None = None


def test_what_is_left_is_usable() -> None:
    data = {"parts": [{"size": 1}, {"kind": 3, "size": 4, "x": 1}], "more": {"size": "x"}}
    found, left = mistakes(data, Whole, str)
    assert list(found) == [("parts", 0, "size"), ("parts", 1, "kind"), ("parts", 1, "x"), ("more", "size"), ("name",)]
    assert left == Whole([Part(3), Part(4)], "x", Part(3))
    assert data["parts"][0] == {"size": 1}  # type: ignore[index]  # what was given stays as it is


def test_one_mistake_is_raised_as_it_is() -> None:
    refuse([], "x")
    one = UsageError("a", hint="b")
    with pytest.raises(UsageError) as caught:
        refuse([one], "x")
    assert caught.value is one


@pytest.mark.parametrize("name", ["experiment.yaml", "fleet.yaml"])
def test_the_sample_has_no_mistakes(name: str) -> None:
    done = CliRunner().invoke(build("check"), ["check", str(shipped("profiles") / "sample" / name)])
    assert done.exit_code == 0
    assert "no mistakes" in done.stdout
