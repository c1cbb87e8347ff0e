"""Runs one coroutine on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from orchestrator.simulation.virtual import VirtualLoop, virtual_runner

T = TypeVar("T")


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, and cancel the tasks that it left running."""
    with virtual_runner() as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(main(loop))
