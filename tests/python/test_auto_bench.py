"""bench/auto.py: what it says of made-up rows."""

import importlib
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def auto(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("auto")


def row(method, seed, seconds, target=None, accuracy=0.95, link="1gbit", to=None):
    decisions = {} if to is None else {"decisions": [{"to": "none"}, {"to": to}]}
    return dict(method=method, seed=seed, seconds=seconds, seconds_to_target=target,
                final_accuracy=accuracy, link=link, **decisions)  # fmt: skip


@pytest.mark.parametrize("n", range(1, 40))
def test_the_interval_of_a_median_is_the_narrowest_that_covers(auto, n):
    """By counting the binomial: of n fair coins, k to n - k of which fall on one side."""
    found = auto.median_interval(range(n))
    weights = [math.comb(n, i) for i in range(n + 1)]
    covering = [k for k in range(1, n // 2 + 1) if sum(weights[k : n - k + 1]) / 2**n >= 0.95]
    assert found == ((covering[-1] - 1, n - covering[-1]) if covering else None)
    assert (found is None) == (n < 6)


def test_ratios_are_of_the_same_seed_and_the_faster_rival(auto):
    rows = [row("auto", 1, 8, 4), row("none", 1, 10, 5), row("fp16", 1, 16, None),
            row("auto", 2, 9, None), row("none", 2, 18, 5), row("fp16", 2, 6, 3),
            row("none", 3, 1, 1), row("auto", 4, 1, 1), row("auto", 1, 1, 1, link="none")]  # fmt: skip
    assert auto.ratios(rows, "seconds", "1gbit", ("none", "fp16")) == [0.8, 1.5]
    assert auto.ratios(rows, "seconds_to_target", "1gbit", ("none", "fp16")) == [0.8]


def test_a_line_per_link(auto):
    rows = []
    for seed in range(1, 8):
        rows += [row("auto", seed, 5 + seed, 2, 0.94, to="topk:1%,int4, 3 buckets, 1 streams"),
                 row("none", seed, 10, 5, 0.95), row("fp16", seed, 20, 4, 0.95)]  # fmt: skip
    rows += [row("auto", 1, 3, link="none"), row("none", 1, 2, link="none")]
    slow, fast = auto.table({"rows": rows})
    assert slow == ["1gbit", "21", "0.900", "0.600 .. 1.200", "0.500", "0.500 .. 0.500",
                    "-1.00 ± 0.00", "topk:1%,int4 (7)", "none"]  # fmt: skip
    assert fast == ["none", "2", "1.500", "too few seeds", "not measured", "", "+0.00", "none (1)", "none"]
