"""Which devices form which layer of a tree of nodes, and how much of the data each layer holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from edgebed.errors import UsageError

LAYER_SHARES = {"biased": (14.3, 28.6, 57.1), "highly_biased": (3.4, 19.9, 76.7)}
"""Percent of the samples that the three layers of the early-exit paper hold (captions of its tables 5 and 2), from the
leaves up: "nodes with greater memory and computational capacity are allocated more data"."""


def place(layers: Sequence[int | list[str]], devices: Sequence[str]) -> list[list[str]]:
    """The devices of each layer, leaves first. A number takes the next so many in the fleet's order.

    Raises:
        UsageError: a device is named that is not there, or twice, or one is left out.
    """
    named = [name for layer in layers if isinstance(layer, list) for name in layer]
    rest = iter([name for name in devices if name not in set(named)])
    found = [layer if isinstance(layer, list) else list(islice(rest, max(0, layer))) for layer in layers]
    wanted = sum(layer if isinstance(layer, int) else len(layer) for layer in layers)
    strange = sorted(set(named) - set(devices))
    if strange:
        raise UsageError(f"layers name {', '.join(strange)}", hint=f"the fleet has: {', '.join(devices)}")
    if wanted != len(devices) or len(set(named)) < len(named) or not all(found):
        raise UsageError(
            f"the layers {[len(layer) if isinstance(layer, list) else layer for layer in layers]} do not hold each of "
            f"{len(devices)} devices once",
            hint="give each layer a count or a list of device names, leaves first: layers: [4, 2, 1]",
        )
    return found


def layer_shares(shares: str | Sequence[float], layers: int) -> tuple[float, ...]:
    """Of each layer, leaves first; only the ratios count. `equal` is for any number of layers."""
    if shares == "equal":
        return (1.0,) * layers
    found = LAYER_SHARES[shares] if isinstance(shares, str) else tuple(shares)
    if len(found) != layers:
        raise UsageError(
            f"shares {shares!r} are for {len(found)} layers, there are {layers}", hint="give one share for each layer"
        )
    return found
