r"""Is a commit no slower than another? A benchmark of the project, run in two trees by turns.

    python bench/alternate.py OLD NEW [--rounds 15] [--json FILE] [--markdown] -- COMMAND {json}

OLD and NEW are folders in which the project is built. COMMAND runs in each, in turn the one and the
other first, and writes its rows to the file whose name takes the place of {json}: table.py,
exchange.py and optimizer_peers.py with --json {json}, or a program of Google Benchmark with
--benchmark_out={json}. For each row: the median of new / old over the rounds, and the interval that holds
the true median with a probability of 95% or more, whatever the times' distribution (the order statistics
of a sign test). A row is no slower when its interval ends below 1.05 and holds a value of 1.02 or
less. Exit code 1 when a row is slower, or was not there in both.

    python bench/alternate.py ../old . -- \
        .venv/bin/python bench/table.py cpu --no-peers --rounds 1 --json {json}
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from text_table import print_table

from gradwire.bench.intervals import median_interval

ENDS_BELOW, HOLDS_AT_MOST = 1.05, 1.02
# What tells the rows of exchange.py apart.
EXCHANGE = ("link", "ranks", "what", "spec", "density", "support", "mean", "numel")


def times_of(document):
    """The time of each row by its name, in the document's own unit."""
    if "benchmarks" in document:  # Google Benchmark's
        rows = [row for row in document["benchmarks"] if row.get("run_type") != "aggregate"]
        pairs = [(row["run_name"], row["real_time"]) for row in rows]
    elif "results" in document:  # of peer_cases.py
        pairs = [(row["op"], row["ms"]) for row in document["results"]]
    elif "crossings" in document:
        pairs = [(" ".join(str(row[key]) for key in EXCHANGE if row.get(key)), row["seconds"])
                 for row in document["rows"]]
    else:
        pairs = [(row["operation"], row["ms"]) for row in document["rows"] if "ms" in row]
    times = {}
    for name, value in pairs:
        times.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in times.items()}


def is_no_slower(low, high):
    return high < ENDS_BELOW and low <= HOLDS_AT_MOST


def run(folder, command):
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rows.json"
        done = subprocess.run([word.replace("{json}", str(out)) for word in command], cwd=folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not out.exists():
            raise SystemExit(f"alternate.py: in {folder} the command ended with {done.returncode} and wrote "
                             f"no rows:\n{done.stdout}")
        return times_of(json.loads(out.read_text()))


def commit_of(folder):
    command = ["git", "-C", folder, "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("command", nargs="+", help="behind --")
    args = parser.parse_args(argv)
    if args.rounds < 1 or not any("{json}" in word for word in args.command):
        parser.error(f"--rounds {args.rounds}, command {' '.join(args.command)}: expected at least 1 round, "
                     "and {json} where the command takes the file it writes")
    return args


def main(argv=None):
    args = parse(argv)
    ratios, missing = {}, set()
    for number in range(args.rounds):
        order = (args.old, args.new) if number % 2 == 0 else (args.new, args.old)
        first, second = (run(folder, args.command) for folder in order)
        old, new = (first, second) if number % 2 == 0 else (second, first)
        missing |= old.keys() ^ new.keys()
        for name in old.keys() & new.keys():
            ratios.setdefault(name, []).append(new[name] / old[name])
        print(f"round {number + 1} of {args.rounds}: median of {len(old.keys() & new.keys())} rows "
              f"{statistics.median(new[name] / old[name] for name in old.keys() & new.keys()):.3f}",
              file=sys.stderr, flush=True)
    rows = []
    for name, values in ratios.items():
        low, high = median_interval(values) or (min(values), max(values))
        rows.append({"row": name, "median": statistics.median(values), "low": low, "high": high,
                     "no_slower": is_no_slower(low, high)})
    slower = sum(not row["no_slower"] for row in rows)
    about = (f"{commit_of(args.new)} over {commit_of(args.old)}, {args.rounds} rounds: "
             f"{' '.join(args.command)}")
    print(about)
    print_table(["row", "new / old", "95% of the median", "no slower"],
                [[row["row"], f"{row['median']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}",
                  "yes" if row["no_slower"] else "NO"] for row in rows], args.markdown)
    for name in sorted(missing):
        print(f"not in both: {name}")
    print(f"{len(rows) - slower} of {len(rows)} rows are no slower")
    if args.json:
        args.json.write_text(json.dumps({"about": about, "rows": rows, "missing": sorted(missing)}, indent=1)
                             + "\n")
    return 1 if slower or missing else 0


if __name__ == "__main__":
    sys.exit(main())
