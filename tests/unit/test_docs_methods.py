"""The example of docs/method-interface.md runs as it stands; docs/methods.md names every method with its options."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import cast

import msgspec
import pytest
import torch
import yaml

from edgebed.methods.base import METHODS, Context, Method
from orchestrator.testing.rounds import COSTS, make_method, play, small_model
from tests.docs_blocks import code

DOCS = Path(__file__).parents[2] / "docs"


CODE = code("docs/method-interface.md")


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Method:
    module = types.ModuleType("example_of_docs_method_interface")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(CODE[0], "docs/method-interface.md", "exec"), module.__dict__)
    made = cast(Method, module.SplitFed())
    made.setup(Context({"name": "small"}, small_model(), COSTS, server_slots=1))
    return made


async def test_the_example_trains_and_its_single_device_is_centralised_training(method: Method) -> None:
    """One device of SplitFed equals the uncut model of FedAvg, to the bit; three merge to finite weights."""
    before = small_model().weights()
    split = await play(method, before, {"a": 10}, range(1))
    whole = await play(make_method("fedavg"), before, {"a": 10}, range(1))
    assert all(torch.equal(split[name], whole[name]) for name in before)
    three = await play(method, before, {"a": 10, "b": 9, "c": 5}, range(2), lost=("b",))
    assert all(bool(torch.isfinite(value).all()) for value in three.values())


async def test_the_method_of_the_tutorial_trains_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run, and one that goes on from what `tensors` gives after the first round."""
    whole, rest = code("docs/tutorial.md")
    program = whole + rest.split("as above\n", 1)[1]
    module = types.ModuleType("example_of_docs_tutorial")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(program, "docs/tutorial.md", "exec"), module.__dict__)

    def made() -> Method:
        method = cast(Method, module.FedAvgM())
        method.setup(Context({"name": "small"}, small_model(), COSTS, server_slots=1))
        return method

    devices, first, other = {"a": 10, "b": 9}, made(), made()
    middle = await play(first, small_model().weights(), devices, range(1))
    other.restore(first.state(), {name: value.clone() for name, value in first.tensors().items()})
    end = await play(first, middle, devices, range(1, 3))
    again = await play(other, middle, devices, range(1, 3))
    assert all(torch.equal(end[name], again[name]) for name in end)
    assert not torch.equal(end["md1.conv.weight"], middle["md1.conv.weight"])


def test_the_device_half_that_is_shown_is_that_of_fedprox() -> None:
    assert CODE[1] in (DOCS.parent / "edgebed" / "methods" / "fedprox.py").read_text(encoding="utf-8")


PAGE = (DOCS / "methods.md").read_text(encoding="utf-8")
FILES = [DOCS.parent / "profiles" / "experiments" / name for name in ("try.yaml", "try-sgd.yaml")]
EXAMPLES = [entry for path in FILES for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["methods"]]
NAMES = sorted({entry["name"] for entry in EXAMPLES})
"""Not all that the registry finds: a method that somebody puts into the folder needs no section here."""


def section(name: str) -> str:
    """The section of a method."""
    return PAGE.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_section_names_every_option_with_its_true_default(name: str) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^`]*)` \|", section(name), re.MULTILINE))
    defaults = msgspec.to_builtins(METHODS.classes()[name].Options())
    assert {option: yaml.safe_load(default) for option, default in rows.items()} == json.loads(json.dumps(defaults))


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_section_stands_in_the_experiment_that_was_run(name: str) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", section(name), re.DOTALL)
    (entry,) = yaml.safe_load(example)["methods"]
    assert entry in EXAMPLES
    assert METHODS.create(entry).name == name


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_count_the_methods(page: str) -> None:
    told = re.findall(r"(\d+) methods", (DOCS.parent / page).read_text("utf-8"))
    assert set(told) == {str(len(METHODS.names()))}
