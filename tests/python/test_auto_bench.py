"""bench/auto.py: what it runs, and what it says of made-up rows."""

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from bench_support import trainer

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
    for seed, to in enumerate(("int4 for 20% of the gradient, none for 80%, 2 buckets",
                               "int4 for 24% of the gradient, none for 76%, 3 buckets", "int4, 2 buckets")):
        rows.append(row("auto", seed, 3, link="mixed", to=to))
    slow, fast, mixed = auto.table({"rows": rows})
    assert slow == ["1gbit", "21", "0.900", "0.600 .. 1.200", "0.500", "0.500 .. 0.500",
                    "-1.00 ± 0.00", "topk:1%,int4 (7)", "none"]  # fmt: skip
    assert fast == ["none", "2", "1.500", "too few seeds", "not measured", "", "+0.00", "none (1)", "none"]
    assert mixed[7] == "int4 in part (2), int4 (1)"


def test_the_cpp_trainer_is_compared_with_methods_by_hand(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    pytest.importorskip("matplotlib", reason="the benchmark draws plots")
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "auto.py", "--json", tmp_path / "out.json", "--workload", "mlp",
         "--seeds", "2", "--links", "none", "--methods", "int8", "--trainer", trainer(), "--link-mode",
         "pacing", "--workers", "2", "--hidden", "64", "--max-steps", "12", "--output", tmp_path / "plots"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["method"] for row in rows] == 2 * ["auto", "none", "fp16", "int8"]
    assert {(row["workload"], row["steps"]) for row in rows} == {("mlp", 12)}
    line = done.stdout.splitlines()[-1].split()  # behind the benchmark's own table
    assert line[:2] == ["none", "8"] and float(line[2]) > 0, done.stdout


def test_several_trainings_are_refused(auto, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["auto.py", "--json", str(tmp_path / "x"), "--workload", "mlp,cnn"])
    with pytest.raises(SystemExit):
        auto.main()
    assert "--workload: mlp,cnn, expected one" in capsys.readouterr().err
