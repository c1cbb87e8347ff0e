"""Every model file does what a staged model must do, for each kind of learning task that it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgebed.models.staged import MODELS, ModelPlugin
from edgebed.wire.settings import LearningTask
from tests.contract.models import CHECKS, TASKS

CASES = [(name, kind) for name, plugin in MODELS.classes().items() for kind in plugin.takes]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_model(name: str, kind: str, check: Callable[[ModelPlugin, LearningTask], None]) -> None:
    check(MODELS.create({"name": name, **MODELS.classes()[name].small}), TASKS[kind])
