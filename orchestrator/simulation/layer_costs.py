"""What layers cost on a host: CPU seconds by kind of layer, direction and width.

A kind is what a layer does in one direction: `convolution 3x3`, `convolution 3x3 backward`, `norm`, `linear`, …. The
seconds of one call with n units are `call_s` + n × `unit_s`; a unit is a multiply-add, or a number that is read and
written where there are none. Both depend on the layer's width: of a convolution the geometric mean of its channels in
and out, of a norm its channels, of a matrix product its smallest side. They were measured at some widths. Between two
of them, both are interpolated over the logarithm of the width.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec


class Work(msgspec.Struct, frozen=True):
    """One call of one layer."""

    kind: str
    width: float
    units: float


class WidthLaw(msgspec.Struct, frozen=True):
    """CPU seconds of a call with n units, for layers of one width: `call_s` + n × `unit_s`."""

    width: float
    call_s: float
    unit_s: float


LayerCosts = Mapping[str, Sequence[WidthLaw]]
"""By kind, in the order of width."""


def seconds(costs: LayerCosts, work: Work) -> float:
    """CPU seconds of a call; 0 for a kind that was not measured."""
    laws = costs.get(work.kind)
    if not laws:
        return 0.0
    law = law_at(laws, work.width)
    return law.call_s + work.units * law.unit_s


def law_at(laws: Sequence[WidthLaw], width: float) -> WidthLaw:
    """The law of a width; outside the widths that were measured, that of the nearest one."""
    place = bisect_right([law.width for law in laws], width)
    if place in (0, len(laws)):
        return laws[min(place, len(laws) - 1)]
    low, high = laws[place - 1], laws[place]
    share = math.log(width / low.width) / math.log(high.width / low.width)
    return WidthLaw(
        width, low.call_s + share * (high.call_s - low.call_s), low.unit_s + share * (high.unit_s - low.unit_s)
    )
