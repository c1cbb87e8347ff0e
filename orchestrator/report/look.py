"""How figures for papers look: what a user can choose. Loads no drawing library."""

from __future__ import annotations

from typing import Literal

import msgspec

from orchestrator.records.compare.curves import Spread

Width = Literal["column", "page"]


class Look(msgspec.Struct, frozen=True):
    """Width in a two-column paper, whether figures have a title, and what the bands of curves show."""

    width: Width = "column"
    title: bool = True
    spread: Spread = "range"
