"""bench/auto_off.py: what it runs, and what it says of made-up rows."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rank_processes import needs_torch

import gradwire

pytestmark = needs_torch
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("auto_off")


def row(method, seed, losses, seconds, held_out=2.0, plans=()):
    return dict(method=method, seed=seed, losses=losses, seconds=seconds, held_out_loss=held_out,
                plans=list(plans))  # fmt: skip


def test_losses_are_of_the_ten_steps_before_and_steps_without_the_first_five(bench):
    one = row("auto", 1, [float(n) for n in range(30)], [9.0] * 5 + [1.0, 2.0, 3.0, 4.0, 5.0],
              plans=["none", "int4", "int4", "none"])  # fmt: skip
    assert bench.loss_at(one, 30) == 24.5 and bench.loss_at(one, 4) == 1.5
    assert bench.step_s(one) == 3.0 and bench.step_s(one, 0.4) == 4.5
    assert bench.tried(one) == 2


@pytest.mark.parametrize(("values", "expected"), [
    ([0.01, -0.01, 0.005, -0.005, 0.0], True),
    ([0.011, 0.012, 0.01, 0.011, 0.012], False),  # an interval without 0
    ([0.1, -0.1, 0.05, -0.05, 0.0], False),  # too wide
    ([0.0, 0.0, 0.0, 0.0], None),
])
def test_within_noise_is_an_interval_of_five_seeds_that_holds_0_and_is_narrow(bench, values, expected):
    assert bench.within_noise(values) is expected


def test_methods_are_compared_with_ddp_of_the_same_seed(bench):
    rows = []
    for seed in range(1, 6):
        rows += [row("none", seed, [seed] * 10, [0.404] * 10, seed, ["none"] * 10),
                 row("ddp", seed, [seed] * 10, [0.4] * 10, seed),
                 row("auto", seed, [seed + 0.1] * 10, [0.48] * 10, seed + 0.1,
                     ["none"] + ["bf16"] * 9)]  # fmt: skip
    header, (none, ddp, auto) = bench.table({"rows": rows})
    assert ddp == ["ddp", *["3.000"] * 6, "400 ms", "400 ms", "", "", ""]
    assert none == ["none", *["0.000 ± 0.000"] * 6, *["1.010 ± 0.000"] * 2, "0, 0, 0, 0, 0", "yes", "yes"]
    assert auto == ["auto", *["0.100 ± 0.000"] * 6, *["1.200 ± 0.000"] * 2, "1, 1, 1, 1, 1", "no", "no"]
    assert len(header) == len(none)
    assert header[1:7] == [*(f"loss at {n}" for n in (2, 4, 6, 8, 10)), "held out"]


@pytest.mark.skipif(not gradwire.build_info()["features"]["planner"], reason="this build has no planner")
def test_every_method_trains_the_same_and_a_file_is_gone_on_with(tmp_path):
    pytest.importorskip("numpy")
    words = [sys.executable, ROOT / "bench" / "auto_off.py", "--json", tmp_path / "out.json", "--steps", "2",
             "--batch-size", "1", "--held-out", "4", "--markdown"]  # fmt: skip

    def run(*more):
        done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / "out.json").read_text())["rows"]

    _, first = run("--seeds", "1", "--methods", "ddp;auto")
    assert [each["method"] for each in first] == ["ddp", "auto"]
    assert first[0]["losses"] == first[1]["losses"] and len(first[0]["seconds"]) == 2
    assert first[0]["held_out_loss"] == first[1]["held_out_loss"] > 0
    assert abs(first[0]["parameters"] - 6.5e6) < 0.05e6
    said, again = run("--no-run")
    assert again == first and "| auto | 0.000 | 0.000 |" in said
