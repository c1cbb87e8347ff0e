"""S²FL's client time table (§3.1): seconds of a round by device and cut, and the rule that chooses by it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec


class Mean(msgspec.Struct):
    """A running mean."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / self.count


class TimeTable(msgspec.Struct):
    """t[k][s]: seconds of a round by device and cut. Mutable plain data, saved with every checkpoint."""

    means: dict[str, dict[int, Mean]] = {}

    def add(self, device: str, cut: int, seconds: float) -> None:
        self.means.setdefault(device, {}).setdefault(cut, Mean()).add(seconds)

    def measured(self, device: str, cut: int) -> float | None:
        mean = self.means.get(device, {}).get(cut)
        return None if mean is None else mean.value

    def row(self, device: str, costs: Mapping[int, float]) -> dict[int, float]:
        """t[k][s] of a device at every cut of `costs`; {} for one that was never measured.

        A cut that the device has not had is estimated from the nearest one that it had; of two equally near ones, the
        shallower. That time is scaled by the ratio between both cuts: the median over the devices that had both, or
        the ratio of the device-side costs while none had **[ours]** (a poor guess where the link takes most of the
        time).

        Args:
            costs: device-side cost by candidate cut, increasing cuts.
        """
        cuts, had = list(costs), self.means.get(device, {})
        known = [place for place, cut in enumerate(cuts) if cut in had]
        if not known:
            return {}
        row = {}
        for place, cut in enumerate(cuts):
            near = cuts[min(known, key=lambda other: (abs(other - place), other))]
            row[cut] = had[near].value * (1.0 if near == cut else self._ratio(near, cut, costs))
        return row

    def _ratio(self, near: int, cut: int, costs: Mapping[int, float]) -> float:
        """How many times as long a round at `cut` takes as one at `near`."""
        both = [had[cut].value / had[near].value for had in self.means.values() if cut in had and near in had]
        return median(both) if both else costs[cut] / costs[near]


def median_rule(rows: Mapping[str, Mapping[int, float]]) -> tuple[float, dict[str, int]]:
    """The median of all t[k][s] of a round's devices, and for each the cut whose time is nearest to it.

    Of two equally near cuts, the shallower **[ours]**.

    Args:
        rows: seconds by device and cut, one entry at least.
    """
    middle = median(seconds for row in rows.values() for seconds in row.values())
    return middle, {
        device: min(row, key=lambda cut: (abs(row[cut] - middle), cut)) for device, row in rows.items() if row
    }
