"""What the rows of a method say of one quantity, and by how much two methods or two runs differ in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional, Sequence

from gradwire.bench.intervals import Interval, mean, mean_interval, welch_interval
from gradwire.bench.types import Row


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, ± half_width at 95% where there is one.

    basis: "seeds" (Student's t over them), "steps" (one seed: the step time alone), "none".
    """

    mean: float
    half_width: Optional[float]
    count: int
    basis: str


@dataclass(frozen=True)
class Difference:
    """mean ± half_width at 95%; half_width None: nothing is known of it.

    basis: "paired" (seed by seed), "welch" (other seeds), "steps" (a seed alone: the step time), "none".
    """

    mean: float
    half_width: Optional[float]
    count: int
    basis: str

    def beyond(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def estimate(rows: Sequence[Row], name: str) -> Optional[Estimate]:
    """Of ``name`` in rows of one method and link; None where no row knows it."""
    known = [row for row in rows if row.get(name) is not None]
    interval = mean_interval([row[name] for row in known])
    if interval:
        return Estimate(interval.mean, interval.half_width, interval.count, "seeds")
    if not known:
        return None
    width = _of_steps(known[0], name)
    return Estimate(known[0][name], width, 1, "none" if width is None else "steps")


def difference(a: Sequence[Row], b: Sequence[Row], name: str) -> Optional[Difference]:
    """Of ``name``, a minus b: paired where two seeds or more have it on both sides, else Welch's."""
    one, other = estimate(a, name), estimate(b, name)
    if one is None or other is None:
        return None
    by_seed = {row["seed"]: row[name] for row in b if row.get(name) is not None}
    pairs = [
        row[name] - by_seed[row["seed"]]
        for row in a
        if row.get(name) is not None and row["seed"] in by_seed
    ]
    found: Optional[Interval] = mean_interval(pairs)
    if found:
        return Difference(found.mean, found.half_width, found.count, "paired")
    found = welch_interval([row.get(name) for row in a], [row.get(name) for row in b])
    if found:
        return Difference(found.mean, found.half_width, found.count, "welch")
    gap = one.mean - other.mean
    if one.half_width is None or other.half_width is None:
        return Difference(gap, None, 1, "none")
    return Difference(gap, math.hypot(one.half_width, other.half_width), 1, "steps")


def mean_of(rows: Sequence[Row], name: str) -> Optional[float]:
    return mean([row.get(name) for row in rows])


def _of_steps(row: Row, name: str) -> Optional[float]:
    """The half width that a single run's steps give what is made of them."""
    of_step: Optional[float] = row.get("step_ms_interval")
    if of_step is None:
        return None
    if name == "step_ms":
        return of_step
    if name == "seconds_to_target":
        return (row.get("steps_to_target") or 0) * of_step / 1e3
    return None
