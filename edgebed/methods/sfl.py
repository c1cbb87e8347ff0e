"""SFL, the baseline of the S²FL paper: the largest candidate cut for all devices, no data balance (§5). Pure."""

from __future__ import annotations

import msgspec

from edgebed.methods.s2fl import Cut, S2fl


class Sfl(S2fl):
    name = "sfl"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`cuts`: S²FL's candidates, of which the last is taken; by default the model's split points."""

        cuts: tuple[Cut, ...] = ()

    def __init__(self, options: Options | None = None) -> None:
        chosen = options or Sfl.Options()
        super().__init__(S2fl.Options(cuts=chosen.cuts, sliding=False, balance=False))
