"""bench/exchange.py: what it makes of rows, and a short run where its program is built."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(
    os.environ.get("GRADWIRE_EXCHANGE_BENCH")
    or ROOT / "build" / "default" / "bench" / "gradwire-exchange-bench"
)


@pytest.fixture
def exchange(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("exchange")


def row(what, spec, seconds, **others):
    base = {"link": "100mbit", "ranks": 4, "what": what, "spec": spec, "numel": 1000,
            "support": "uniform", "mean": "none" if spec.startswith("topk") else "dense",
            "density": spec.partition(":")[2], "seconds": seconds, "share": None,
            "bytes_per_payload": 1.5, "times_ring": None}
    return {**base, **others}


def test_speed_ups_are_against_the_ring_of_the_same_run(exchange):
    rows = [row("ring", "none", 8.0), row("ring", "none", 6.0, ranks=8),
            row("two_shot", "topk:1%", 0.2), row("two_shot", "topk:1%", 0.3, ranks=8)]
    exchange.compare_with_ring(rows)
    assert [r["times_ring"] for r in rows] == pytest.approx([1, 1, 40, 20])


def test_goals_are_held_against_the_rows_they_are_for(exchange):
    rows = [row("ring", "none", 8.0), row("two_shot", "topk:1%", 0.2),
            row("two_shot", "topk:1%", 0.35, support="skewed"),
            row("two_shot", "topk:1%", 0.9, mean="dense"),
            row("two_shot", "topk:0.1%", 0.1, bytes_per_payload=2.3),
            row("all_reduce:ring", "none", 1.0, share=0.91),
            row("all_to_all", "none", 1.0, share=0.84),
            row("all_to_all", "none", 1.0, share=0.84, ranks=8)]
    exchange.compare_with_ring(rows)
    found = {(what.split(",")[0], round(value, 2)): reached
             for what, value, goal, reached in exchange.checks_of(rows)}
    assert found == {("times the dense ring", 40.0): True, ("bytes / B", 1.5): True,
                     ("bytes / B", 2.3): False, ("skewed / uniform", 1.75): False,
                     ("share of the line", 0.91): True, ("share of the line", 0.84): False}


def test_curves_cross_where_their_logarithms_do(exchange):
    rows = [row("gather", "topk:0.1%", 1.0), row("gather", "topk:10%", 100.0),
            row("two_shot", "topk:0.1%", 10.0), row("two_shot", "topk:10%", 10.0),
            row("ring", "none", 1000.0)]
    assert exchange.crossings(rows, "100mbit", 4) == [
        (pytest.approx(0.01), "gather", "two_shot")]


def test_a_program_that_is_not_there_is_told(exchange, capsys):
    assert exchange.main(["--program", "/nowhere/at-all"]) == 2
    assert "/nowhere/at-all: no such program" in capsys.readouterr().err


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")
def test_two_ranks_count_what_the_formulas_say(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "bench" / "exchange.py"), "--program", str(PROGRAM),
               "--ranks", "2", "--links", "none", "--link-mode", "pacing", "--numel", "20000",
               "--quick", "--only", "exchanges", "--json", str(out), "--markdown",
               "--plots", str(tmp_path / "plots")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {"ring", "dense", "gather", "two_shot"} <= {r["what"] for r in rows}
    assert all(r["bytes_as_formula"] for r in rows)
    assert "on the loopback (as asked by --link-mode)" in done.stdout
    assert "DIFFER" not in done.stdout
    svg = (tmp_path / "plots" / "exchange-none.svg").read_text()
    assert all(f">{name}</text>" in svg for name in (
        "ring", "two_shot int4", "2 ranks (squares: what the rule takes)", "density 1%"))
