"""The example of docs/method-interface.md runs as it stands; docs/methods.md names every method with its options."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import cast

import pytest
import torch

from edgebed.methods.base import METHODS, Context, Method
from tests.contract.rounds import COSTS, make_method, play, small_model

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Method:
    page = (DOCS / "method-interface.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    module = types.ModuleType("example_of_docs_method_interface")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "docs/method-interface.md", "exec"), module.__dict__)
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


def test_every_method_of_the_registry_stands_on_the_page() -> None:
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    for name, cls in METHODS.classes().items():
        assert f"| `{name}` |" in page
        assert all(f"`{option}`" in page for option in cls.Options.__struct_fields__)
