"""Medians, quantiles and spread of repeated figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Of one figure over repeated runs."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError when there is no value."""
    if not values:
        raise ValueError("no run, so no median")
    return Spread(statistics.median(values), min(values), max(values))


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all do not exceed (nearest rank); NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
