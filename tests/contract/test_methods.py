"""Every method that comes with Edgebed does what every method must, without being listed here."""

from __future__ import annotations

import pytest

from edgebed.methods.base import METHODS
from orchestrator.testing.methods import CHECKS, Case, Check, cases_of, title


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", cases_of(*METHODS.built_in()), ids=title)
async def test_contract(case: Case, check: Check) -> None:
    await check(case)
