"""95% intervals: of means by Student's t distribution, of medians by the order of the values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterable, List, Optional, Sequence, Tuple

# Two-sided 95% quantiles for 1..30 degrees of freedom, then the next listed number below.
# Source: any table of the t distribution, e.g. NIST/SEMATECH e-Handbook, 1.3.6.7.2.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T95_ABOVE = ((120, 1.980), (60, 2.000), (40, 2.021), (30, 2.042))


@dataclass(frozen=True)
class Interval:
    """mean ± half_width at 95%, from ``count`` samples."""

    mean: float
    half_width: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def t95(degrees: int) -> float:
    """The quantile; between listed degrees the wider one."""
    if degrees <= 30:
        return _T95[degrees - 1]
    return next(value for least, value in _T95_ABOVE if degrees >= least)


def mean(values: Iterable[Optional[float]]) -> Optional[float]:
    """Of the known values; None when none is known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def mean_interval(values: Sequence[Optional[float]]) -> Optional[Interval]:
    """None with fewer than two known values."""
    known: List[float] = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    centre = math.fsum(known) / len(known)
    variance = math.fsum((value - centre) ** 2 for value in known) / (len(known) - 1)
    half_width = t95(len(known) - 1) * math.sqrt(variance / len(known))
    return Interval(centre, half_width, len(known))


def median_interval(values: Sequence[float]) -> Optional[Tuple[float, float]]:
    """The narrowest pair of order statistics k and n + 1 - k between which the median of the values'
    distribution lies with 95%, whatever that distribution is (a sign test). None where even the least and
    the greatest are not that sure: of fewer than six."""
    ordered, n = sorted(values), len(values)
    found, below = None, 0.0
    for k in range(1, n // 2 + 1):
        below += math.comb(n, k - 1) / 2**n  # fewer than k of n lie below the median
        if 1 - 2 * below < 0.95:
            break
        found = ordered[k - 1], ordered[n - k]
    return found


def welch_interval(a: Sequence[Optional[float]], b: Sequence[Optional[float]]) -> Optional[Interval]:
    """Of the mean of ``a`` minus that of ``b``, whose variances may differ (Welch 1947).

    ``count`` is that of the smaller sample; None where either has fewer than two known values.
    """
    one, other = mean_interval(a), mean_interval(b)
    if one is None or other is None:
        return None
    # Squared standard errors, back from the half widths.
    u, v = ((i.half_width / t95(i.count - 1)) ** 2 for i in (one, other))
    half_width = 0.0
    if u + v > 0:
        degrees = (u + v) ** 2 / (u**2 / (one.count - 1) + v**2 / (other.count - 1))
        half_width = t95(max(1, math.floor(degrees))) * math.sqrt(u + v)
    return Interval(one.mean - other.mean, half_width, min(one.count, other.count))
