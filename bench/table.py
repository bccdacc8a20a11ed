"""The CPU kernels' table in one command: milliseconds, how much of the memory's speed, and peers.

    ./run.sh table cpu [--every] [--build DIR] [--no-peers] [--rounds 5] [--json FILE] [--markdown]

--every adds a line for every benchmark of compressors in the build: all rows of the registry, several
specs of each, compressed and decompressed.

Figures of gradwire_kernels_bench and gradwire_optimizers_bench (C++, one thread; medians of --rounds
repetitions) and of bench/peers.py. A compressor's gradient is of 23 layers of a 1024 x 1024 matrix and a
vector, and what is left of 25 million elements: powersgd, tensortopk and blocktopk tell them apart.
`of floor`: the time that the bytes nobody can avoid need, at the best of three loops measured beside
each benchmark, over the time taken; 1 is bound by memory alone.
They are: the gradient read, with feedback the residual read and written, with a velocity that too, and
the payload; of a mean the payloads and the mean.
Peers: their time over ours, both through Python in one process. Says what is missing, and why.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from text_table import print_table

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """A line of the table: where its figure comes from and what it is held to."""

    label: str
    benchmark: str  # its name in kernels_bench or optimizers_bench; empty: not in the library
    goal: float = 0.0  # of floor / time; 0: none
    peer_of: str = ""  # the operation's name in peers.py


def compress(label, spec, goal, peers=True):
    return Row(label, f"compress/{spec}", goal, spec if peers else "")


ROWS = [
    Row("feedback + top-k 1%, in place", "compress_accumulated/topk:1%", 0.70),
    Row("feedback + top-k 0.1%, in place", "compress_accumulated/topk:0.1%", 0.80),
    compress("feedback + top-k 1%", "topk:1%", 0.60),
    compress("feedback + top-k 0.1%", "topk:0.1%", 0.70),
    compress("feedback + chunk top-k 41 of 4096", "chunktopk:1%", 0.60, peers=False),
    compress("feedback + threshold 1%", "threshold:1%", 0.0, peers=False),
    Row("feedback + threshold 1%, in place", "compress_accumulated/threshold:1%"),
    compress("feedback + top-k 1% of each parameter", "tensortopk:1%", 0.0, peers=False),
    compress("feedback + blocks of 64, 1%", "blocktopk:1%", 0.0, peers=False),
    compress("feedback + factors of rank 4", "powersgd:4", 0.0, peers=False),
    compress("feedback + int8, nearest", "int8", 0.55),
    Row("feedback + int8, in place", "compress_accumulated/int8"),
    compress("feedback + int8, stochastic", "int8,stochastic", 0.40),
    compress("feedback + int4, nearest", "int4", 0.55),
    Row("feedback + int4, in place", "compress_accumulated/int4"),
    compress("feedback + int4, stochastic", "int4,stochastic", 0.40),
    compress("feedback + 2bit, nearest", "2bit", 0.55, peers=False),
    compress("feedback + 2bit, stochastic", "2bit,stochastic", 0.40, peers=False),
    compress("feedback + 1bit", "1bit", 0.60),
    Row("feedback + 1bit, in place", "compress_accumulated/1bit"),
    compress("fp16 cast", "fp16", 0.80),
    compress("bf16 cast", "bf16", 0.80),
    Row("mean of 8 ranks' top-k 1%", "decompress_8_ranks/topk:1%", 0.45, "mean of 8 x topk:1%"),
    Row("mean of 8 ranks' factors of rank 4", "decompress_8_ranks/powersgd:4"),
    Row("SGD with momentum, ResNet-50", "optimizer_step/sgd/threads:1/manual_time", 0.90),
    Row("SGD, gradients known finite", "optimizer_step/sgd_known_finite/threads:1/manual_time", 0.90),
    Row("AdamW, ResNet-50", "optimizer_step/adamw/threads:1/manual_time", 0.90),
    Row("AdamW, gradients known finite", "optimizer_step/adamw_known_finite/threads:1/manual_time", 0.90),
    Row("LARS, ResNet-50", "optimizer_step/lars/threads:1/manual_time", 0.90),
    Row("LAMB, ResNet-50", "optimizer_step/lamb/threads:1/manual_time", 0.90, "lamb, ResNet-50"),
]


def rows_of_registry(program):
    """A row for every benchmark of the program that ROWS does not name, in its order."""
    done = subprocess.run([str(program), "--benchmark_list_tests"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"table.py: {program} --benchmark_list_tests ended with {done.returncode}")
    named = {row.benchmark for row in ROWS}
    return [Row(name, name) for name in dict.fromkeys(done.stdout.split()) if name not in named]


def run_benchmarks(program, names, rounds):
    """Counters of each benchmark by name: medians over `rounds` repetitions."""
    pattern = "^(" + "|".join(name.replace("+", r"\+") for name in names) + ")$"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [str(program), f"--benchmark_filter={pattern}", "--benchmark_min_time=0.1",
                   f"--benchmark_repetitions={rounds}",
                   f"--benchmark_report_aggregates_only={'true' if rounds > 1 else 'false'}",
                   f"--benchmark_out={out}", "--benchmark_out_format=json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(f"table.py: {program} ended with {done.returncode}:\n{done.stdout}")
        rows = json.loads(out.read_text())["benchmarks"]
    # One repetition has no aggregates.
    kind = "median" if rounds > 1 else None
    found = {row["run_name"]: row for row in rows if row.get("aggregate_name") == kind}
    if rows and not found:
        raise SystemExit(f"table.py: {program} wrote {len(rows)} rows, none of which is a median")
    return found


def run_peers(rounds, *arguments):
    """Rows of peers.py by operation, and what it says about itself."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "peers.json"
        command = [sys.executable, str(ROOT / "bench" / "peers.py"), "--rounds", str(rounds),
                   "--json", str(out), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = done.stdout.strip().splitlines() or ["no output"]
        if done.returncode != 0:
            return {}, f"bench/peers.py did not run: {lines[-1]}"
        rows = json.loads(out.read_text())["results"]
    return {row["op"]: row for row in rows}, lines[0]


def verdict(value, goal):
    if not goal:
        return ""
    return f"{goal:.2f} {'reached' if value >= goal else 'missed'}"


def peer_text(row):
    """'12.3x torch.topk (goal 40, missed)' for each peer of the row."""
    texts = []
    for name, peer in (row or {}).get("peers", {}).items():
        goal = peer["goal"]
        held = "" if goal is None else f" (goal {goal:g}{'' if peer['ratio'] >= goal else ', missed'})"
        texts.append(f"{peer['ratio']:.1f}x {name}{held}")
    return "; ".join(texts)


def lines_of(rows, results, peers):
    """One dict per line of the table."""
    lines = []
    for row in rows:
        line = {"operation": row.label, "goal": row.goal or None}
        counters = results.get(row.benchmark)
        if counters is None:
            line["absent"] = "not in this library" if not row.benchmark else "not in this build"
        else:
            line.update(ms=counters["ms"], of_floor=counters.get("of_floor", counters.get("ratio")),
                        triad_ms=counters["triad_ms"], add_ms=counters["add_ms"],
                        streaming_triad_ms=counters["streaming_triad_ms"])
        if row.peer_of:
            line["peers"] = peers.get(row.peer_of, {}).get("peers", {})
        lines.append(line)
    return lines


HEADER = ["operation", "ms", "of floor", "goal", "triad / streaming / add, ms", "peers"]


def cells(line):
    if "absent" in line:
        return [line["operation"], "absent", "", verdict(0, 0), line["absent"], peer_text(line)]
    return [line["operation"], f"{line['ms']:.1f}", f"{line['of_floor']:.2f}",
            verdict(line["of_floor"], line["goal"]),
            f"{line['triad_ms']:.1f} / {line['streaming_triad_ms']:.1f} / {line['add_ms']:.1f}",
            peer_text(line)]


def git(*arguments):
    """What git says of this tree; nothing without git, or outside a repository."""
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip()


def machine_line():
    model = platform.machine()
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            model = text.split(":", 1)[1].strip()
            break
    name = git("rev-parse", "--short", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
            f"Linux {platform.release()}; commit {name}{', changed' if changed else ''}; "
            "one thread")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=["cpu"])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "default",
                        help="where the micro-benchmarks were built")
    parser.add_argument("--every", action="store_true", help="a line for every compressor's benchmark")
    parser.add_argument("--no-peers", action="store_true", help="leave bench/peers.py out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: expected at least 1")
    rows, results = list(ROWS), {}
    for layer in ("kernels", "optimizers"):
        program = args.build / "bench" / f"gradwire_{layer}_bench"
        if not program.exists():
            raise SystemExit(f"table.py: there is no {program}: cmake --build {args.build} "
                             f"--target {program.name} (needs Google Benchmark)")
        if args.every and layer == "kernels":
            rows += rows_of_registry(program)
        mine = [row.benchmark for row in rows
                if row.benchmark.startswith("optimizer_step") == (layer == "optimizers")]
        results.update(run_benchmarks(program, filter(None, mine), args.rounds))
    peers, about_peers = ({}, "left out") if args.no_peers else run_peers(args.rounds)
    lines = lines_of(rows, results, peers)
    where = machine_line()
    print(where)
    print_table(HEADER, [cells(line) for line in lines], args.markdown)
    print(f"peers: {about_peers}")
    if args.json:
        args.json.write_text(json.dumps({"machine": where, "rows": lines, "peers": about_peers},
                                        indent=1) + "\n")


if __name__ == "__main__":
    main()
