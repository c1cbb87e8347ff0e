"""What `pytest --edgebed-method` collects."""

from __future__ import annotations

import asyncio

from orchestrator.testing.methods import Case, Check


def test_contract(edgebed_case: Case, edgebed_check: Check) -> None:
    asyncio.run(edgebed_check(edgebed_case))
