"""How many devices are drawn, and how many are enough."""

from __future__ import annotations

import pytest

from orchestrator.testing.rounds import SCHEDULE, make_method, view


@pytest.mark.parametrize(
    ("present", "share", "drawn", "enough"),
    [(10, 1.0, 10, 7), (10, 0.7, 10, 7), (20, 0.35, 10, 7), (3, 1.0, 3, 2), (1, 1.0, 1, 1)],
)
def test_more_are_drawn_so_that_the_wanted_share_is_merged(present: int, share: float, drawn: int, enough: int) -> None:
    method = make_method("drop-slowest")
    views = method.draw(0, [view(f"d{i:02d}") for i in range(present)], share, seed=1)
    assert len(views) == drawn
    assert method.plan(0, views, SCHEDULE).enough == enough
