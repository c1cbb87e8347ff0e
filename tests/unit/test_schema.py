"""`edgebed schema`: the shipped files fit it, faulty ones do not, and everything is described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from edgebed.datasets.base import DATASETS
from edgebed.methods.base import METHODS
from edgebed.models.staged import MODELS
from orchestrator.cli import build
from orchestrator.cli.init import write_sample
from orchestrator.cli.schema import FILES, Kind, schema
from orchestrator.files.shipped import shipped
from orchestrator.files.yaml_file import load_yaml

VALIDATORS = {kind: Draft202012Validator(schema(kind)) for kind in FILES}


def kind_of(values: dict[str, Any]) -> Kind | None:
    """None: another kind of file, such as a table of a paper."""
    keys: dict[str, Kind] = {"methods": "experiment", "cpus": "profile", "devices": "fleet", "events": "scenario"}
    return next((kind for key, kind in keys.items() if key in values), None)


def test_every_shipped_file_fits() -> None:
    found: dict[Kind, int] = {}
    for path in sorted(shipped("profiles").rglob("*.yaml")):
        values = dict(load_yaml(path))
        if (kind := kind_of(values)) is not None:
            found[kind] = found.get(kind, 0) + 1
            assert [error.message for error in VALIDATORS[kind].iter_errors(values)] == [], path
    assert found.keys() == FILES.keys()
    assert found["experiment"] >= 8
    assert found["fleet"] >= 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"traning": {}},
        {"training": {"batchsize": 3}},
        {"training": {"rounds": 0}},
        {"methods": [{"name": "dtfll"}]},
        {"methods": [{"name": "dtfl", "tiers": "many"}]},
        {"methods": [{"name": "fedavg", "tiers": 7}]},
        {"methods": []},
        {"model": {"name": "resnet-tiny", "width": 1}},
        {"data": {"name": "digits", "train_sample": 1}},
        {"data": {"name": "npz"}},
        {"simulation": {"as_if": {"model": {"name": "resnet-tinny"}}}},
        {"partition": {"kind": "dirichlett"}},
        {"sweep": {"training.rounds": 3}},
        {"seeds": [-1]},
    ],
)
def test_faulty_experiments_are_refused(wrong: dict[str, Any]) -> None:
    good = {"name": "x", "fleet": "dtfl-5", "methods": [{"name": "fedavg"}]}
    assert VALIDATORS["experiment"].is_valid(good)
    assert VALIDATORS["experiment"].is_valid({**good, "simulation": {"as_if": {"model": {"name": "resnet-tiny"}}}})
    assert not VALIDATORS["experiment"].is_valid({**good, **wrong})


def test_a_faulty_fleet_is_refused() -> None:
    good = {"name": "x", "devices": [{"profile": "cpu1"}]}
    assert VALIDATORS["fleet"].is_valid(good)
    assert not VALIDATORS["fleet"].is_valid({**good, "devices": [{"profil": "cpu1"}]})


@pytest.mark.parametrize("kind", ["experiment", "fleet", "profile"])
def test_every_key_is_described_and_every_text_has_a_key(kind: Kind) -> None:
    parts, texts = schema(kind)["$defs"], load_yaml(shipped("profiles") / "keys.yaml")
    for struct in texts.keys() & parts.keys():
        assert texts[struct].keys() == parts[struct]["properties"].keys(), struct
        assert all(texts[struct].values()), struct


def test_methods_models_and_data_sets_are_all_there() -> None:
    keys = schema("experiment")["$defs"]["Experiment"]["properties"]
    for chosen, registry in ((keys["methods"]["items"], METHODS), (keys["model"], MODELS), (keys["data"], DATASETS)):
        assert [each["title"] for each in chosen["oneOf"]] == [*registry.names(), *registry.unnamed()]
        assert all(each["description"] for each in chosen["oneOf"])


def test_the_samples_name_schemas_that_init_writes(tmp_path: Path) -> None:
    for path in write_sample(tmp_path / "new"):
        if path.suffix == ".yaml":
            first = path.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
            validator = Draft202012Validator(json.loads((path.parent / first).read_text()))
            assert validator.is_valid(dict(load_yaml(path))), path


def test_the_command_prints_it() -> None:
    done = CliRunner().invoke(build("schema"), ["schema", "fleet"])
    assert json.loads(done.stdout) == schema("fleet")
