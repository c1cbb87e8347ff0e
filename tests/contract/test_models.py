"""Every model file does what a staged model must do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgebed.models.staged import MODELS, ModelPlugin
from tests.contract.models import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MODELS.names())
def test_model(name: str, check: Callable[[ModelPlugin], None]) -> None:
    check(MODELS.create({"name": name, **MODELS.classes()[name].small}))
