"""The examples of docs/adding-a-model.md run as they stand; docs/models.md prints what the command prints."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from edgebed.datasets.base import DATASETS
from edgebed.models import width
from edgebed.models.costs import model_costs
from edgebed.models.staged import MODELS, ModelPlugin
from edgebed.wire.settings import LearningTask
from tests.contract.models import CHECKS, TASKS

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = re.findall(r"```python\n(.*?)```", (DOCS / "adding-a-model.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("code", EXAMPLES, ids=["plain"])
def test_an_added_model_does_what_every_model_does(
    code: str, check: Callable[[ModelPlugin, LearningTask], None]
) -> None:
    module = types.ModuleType("example")
    exec(compile(code, "docs/adding-a-model.md", "exec"), module.__dict__)
    (plugin,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ModelPlugin) and value is not ModelPlugin
    ]
    check(plugin(), TASKS["pictures"])


def test_an_added_model_is_short() -> None:
    assert len(EXAMPLES) == 1
    assert all(len(code.splitlines()) < 30 for code in EXAMPLES)


SHOWN = {
    "pictures": LearningTask((3, 32, 32), 10),
    "sequences of tokens": LearningTask((64,), 10, vocabulary=96),
}


def test_the_page_of_models_has_the_figures_of_the_command() -> None:
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `([\w-]+)` \| [\d,]+ \|", page, re.MULTILINE)
    assert len(names) >= 11, "only a model that somebody has added may be missing"
    for name in names:
        with torch.device("meta"):
            plugin = MODELS.create({"name": name})
            model = plugin.build(SHOWN[plugin.takes[0]])
        parameters = sum(p.numel() for p in model.stages(0, len(model)).parameters())
        assert f"| `{name}` | {parameters:,} |" in page
        assert all(f"`{option}`" in page for option in MODELS.classes()[name].Options.__struct_fields__), name
    resnet56 = model_costs(MODELS.create({"name": "resnet56"}), LearningTask((3, 32, 32), 10), 100)
    for cut in resnet56.cuts:
        assert re.search(rf"^ +{cut.cut} +{cut.after} .* {cut.device_parameters:,} ", page, re.MULTILINE)


def test_the_page_of_models_has_the_split_points() -> None:
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    section = page[page.index("## Split points") : page.index("## Narrow networks")]
    for names, cuts in re.findall(r"^\| (`.*?`) \| ([\d, ]+) \|", section, re.MULTILINE):
        for name in re.findall(r"`(.*?)`", names):
            with torch.device("meta"):
                model = MODELS.create({"name": name}).build(LearningTask((3, 32, 32), 10))
            assert ", ".join(map(str, model.split_points)) == cuts


def test_the_example_of_narrow_networks_runs_as_it_stands() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "models.md").read_text(encoding="utf-8"), re.DOTALL)
    model = MODELS.create({"name": "resnet8"}).build(LearningTask((1, 8, 8), 10))
    names = {**vars(width), "model": model, "weights": model.weights(), "samples": 10, "generator": torch.Generator()}
    exec(compile(code, "docs/models.md", "exec"), names)
    assert all(torch.equal(value, names["weights"][name]) for name, value in model.weights().items())


def test_the_page_of_data_names_every_data_set_and_option() -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    ours = {"cifar10", "cifar100", "digits", "fashion-mnist", "femnist", "image-folder", "jpeg-npz", "mnist", "npz"}
    ours |= {"huggingface", "table", "text"}
    for name in ours:  # and not all that the registry finds: somebody may have added one
        cls = DATASETS.classes()[name]
        assert f"| `{name}` |" in page
        assert all(f"`{option}`" in page for option in cls.Options.__struct_fields__), name
