"""bench/table.py with benchmark programs made for it: what is printed, and what is said to be missing."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "bench" / "table.py"
MEMORY = {"triad_ms": 9.0, "streaming_triad_ms": 8.0, "add_ms": 6.0}

FAKE = """#!{python}
import json, sys
if "--benchmark_list_tests" in sys.argv:
    print("\\n".join(row["name"] for row in {rows}))
    sys.exit()
options = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:])
rows = [dict(row, run_name=row["name"], aggregate_name=kind, ms=row["ms"] * factor)
        for row in {rows} for kind, factor in (("mean", 2), ("median", 1))]
json.dump({{"benchmarks": rows}}, open(options["benchmark_out"], "w"))
open("{seen}", "a").write(options["benchmark_filter"] + " " +
                          options["benchmark_repetitions"] + "\\n")
"""


def program(folder, layer, rows):
    path = folder / "bench" / f"gradwire_{layer}_bench"
    path.parent.mkdir(exist_ok=True)
    path.write_text(FAKE.format(python=sys.executable, rows=repr(rows), seen=folder / "seen"))
    path.chmod(0o755)


@pytest.fixture
def build(tmp_path):
    program(tmp_path, "kernels", [
        {"name": "compress/topk:1%", "ms": 10.0, "of_floor": 0.61, **MEMORY},
        {"name": "compress/fp16", "ms": 4.0, "of_floor": 0.79, **MEMORY}])
    program(tmp_path, "optimizers", [
        {"name": "optimizer_step/sgd/threads:1/manual_time", "ms": 16.0, "ratio": 0.95, **MEMORY}])
    return tmp_path


def run(*arguments):
    return subprocess.run([sys.executable, str(TABLE), *map(str, arguments)], text=True,
                          capture_output=True, timeout=60)


def test_figures_goals_and_what_is_absent(build):
    out = build / "out.json"
    done = run("cpu", "--build", build, "--no-peers", "--rounds", 2, "--json", out)
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "10.0    0.61      0.60 reached  9.0 / 8.0 / 6.0" in lines["feedback + top-k 1%"]
    assert "4.0     0.79      0.80 missed" in lines["fp16 cast"]
    assert "0.95      0.90 reached" in lines["SGD with momentum, ResNet-50"]
    assert "not in this build" in lines["AdamW, ResNet-50"]
    assert "not in this build" in lines["bf16 cast"]
    assert "cores" in done.stdout.splitlines()[0] and "commit" in done.stdout.splitlines()[0]
    rows = {row["operation"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["feedback + top-k 1%"]["ms"] == 10.0 and rows["fp16 cast"]["add_ms"] == 6.0
    kernels, optimizers = (build / "seen").read_text().splitlines()
    assert "|compress/topk:1%|" in kernels and kernels.endswith(" 2")
    assert "optimizer_step" not in kernels and "compress" not in optimizers


def test_every_benchmark_has_a_line_once(build):
    rows = [{"name": name, "ms": ms, "of_floor": 0.5, **MEMORY}
            for name, ms in (("compress/topk:1%", 10.0), ("compress/ternary", 3.0),
                             ("decompress_8_ranks/topk:1%,int4", 7.0))]
    program(build, "kernels", rows)
    done = run("cpu", "--build", build, "--no-peers", "--every")
    assert done.returncode == 0, done.stderr
    first = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert first.count("compress/ternary") == first.count("decompress_8_ranks/topk:1%,int4") == 1
    assert "compress/topk:1%" not in first and first.count("feedback + top-k 1%") == 1
    assert "|compress/ternary|" in (build / "seen").read_text()


@pytest.fixture
def table():
    sys.path.insert(0, str(TABLE.parent))
    try:
        return importlib.import_module("table")
    finally:
        sys.path.pop(0)


def test_peers_stand_beside_our_figures(table):
    peers = {"topk:1%": {"peers": {"torch.topk *": {"ms": 1.0, "ratio": 39.0, "goal": 40.0},
                                   "np.argpartition *": {"ms": 1.0, "ratio": 20.0, "goal": None}}}}
    lines = {line["operation"]: line for line in table.lines_of(table.ROWS, {}, peers)}
    assert table.peer_text(lines["feedback + top-k 1%"]) == \
        "39.0x torch.topk * (goal 40, missed); 20.0x np.argpartition *"
    assert table.peer_text(lines["fp16 cast"]) == ""


def test_peers_are_found_under_the_names_that_the_table_looks_for(table):
    pytest.importorskip("gradwire._core", reason="the compiled module is not built")
    rows, about = table.run_peers(1, "--numel", "8192")
    assert "gradwire" in about and "8,192 float32" in about
    wanted = {row.peer_of for row in table.ROWS if row.peer_of}
    assert wanted <= set(rows), about


def test_a_build_without_the_programs_is_named(tmp_path):
    done = run("cpu", "--build", tmp_path)
    assert done.returncode == 1 and "gradwire_kernels_bench" in done.stderr
    assert "cmake --build" in done.stderr


def test_a_program_that_fails_is_quoted(build):
    path = build / "bench" / "gradwire_kernels_bench"
    path.write_text("#!/bin/sh\necho broken memory\nexit 3\n")
    done = run("cpu", "--build", build)
    assert done.returncode == 1 and "ended with 3" in done.stderr and "broken memory" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("gpu",), ("cpu", "--rounds", "0")])
def test_bad_arguments_are_refused(arguments):
    assert run(*arguments).returncode == 2
