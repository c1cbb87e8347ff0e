"""Lines and sums of parts through measured points."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

import numpy as np

from orchestrator.references.layer_costs import WidthLaw
from orchestrator.references.work_laws import SizeLaw


def parts(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Factors of the columns, none negative, by least squares."""
    from scipy.optimize import nnls  # its import takes 0.2 s, and every command imports this file

    matrix = np.array(rows)
    most = np.maximum(matrix.max(axis=0), 1e-12)
    found, _ = nnls(matrix / most, np.maximum(0.0, seconds))
    return [float(value) for value in found / most]


def line_through(points: Sequence[tuple[float, float]]) -> SizeLaw:
    """Least squares with both coefficients >= 0, over the medians of similar sizes."""
    if not points:
        return SizeLaw(0.0, 0.0)
    groups: dict[int, list[tuple[float, float]]] = {}
    for x, y in points:
        groups.setdefault(round(x * 50) if x < 1000 else round(x / 200), []).append((x, y))
    middles = [(median(x for x, _ in group), median(y for _, y in group)) for group in groups.values()]
    x_mean, y_mean = mean(x for x, _ in middles), mean(y for _, y in middles)
    spread = sum((x - x_mean) ** 2 for x, _ in middles)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in middles) / spread if spread > 0 else 0.0
    if slope <= 0:
        return SizeLaw(max(0.0, median(y for _, y in points)), 0.0)
    return SizeLaw(max(0.0, y_mean - slope * x_mean), slope)


def relative_parts(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """As `parts`, with the least sum of squared relative errors. Rows whose seconds are 0 are left out."""
    known = [(row, taken) for row, taken in zip(rows, seconds, strict=True) if taken > 0]
    return parts([tuple(value / taken for value in row) for row, taken in known], [1.0] * len(known))


def relative_law(points: Sequence[tuple[float, float, float]]) -> WidthLaw:
    """From (calls, units, seconds): seconds per call and per unit."""
    call_s, unit_s = relative_parts([point[:2] for point in points], [point[2] for point in points])
    return WidthLaw(1.0, call_s, unit_s)
