"""A meter of CPU seconds that adds up what the layers of this thread's torch code cost, instead of reading a clock."""

from __future__ import annotations

from types import TracebackType

from orchestrator.simulation.layer_costs import LayerCosts, Work, seconds
from orchestrator.simulation.layer_work import LayerWork


class LayerMeter:
    """Context manager: counts while it is open. The same code with the same shapes always gives the same seconds."""

    def __init__(self, costs: LayerCosts) -> None:
        self._costs, self._sum = costs, 0.0
        self._known: dict[Work, float] = {}

    def seconds(self) -> float:
        """Of all layers so far."""
        return self._sum

    def __enter__(self) -> None:
        self._watching = LayerWork(self._add)
        self._watching.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _add(self, work: Work) -> None:
        if work not in self._known:
            self._known[work] = seconds(self._costs, work)
        self._sum += self._known[work]
