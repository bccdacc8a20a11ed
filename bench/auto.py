"""Does 'auto' pay: beside no compression, fp16 and methods chosen by hand, run for run in turn?

    python bench/auto.py --json FILE [--workload cnn] [--seeds 7] [--methods "topk:1%,int4"] [--markdown]
                         [--links 50mbit,200mbit,1gbit,none,1gbit:50mbit@100] [OPTIONS OF gradwire bench ...]

Trains with `gradwire bench`, --workload mlp with the C++ trainer and any other in torch: every seed with
auto, none, fp16 and --methods, one after another on each link, equal steps for all, so that a busy
minute hits all alike and what auto tries out is in its time. FILE is the benchmark's JSON; where it is
there already, missing runs are added, and --no-run only prints. Options that are not this command's are
handed on, such as --data DIR, --max-steps 300, --workers 4.

A line per link: the median over seeds of auto's training time divided by that of the faster of none
and fp16 with the same seed, with the interval between order statistics that covers the median with at
least 95% (of fewer than 6 seeds there is none); the same of the time to the target, divided by the
best chosen by hand; final accuracy minus none's in points, paired, with a 95% interval; what was in
force at the end, a seed each; and whether none was the fastest of all by hand. --log prints decisions.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from text_table import print_table

from gradwire.bench.intervals import mean_interval, median_interval

HEADER = ["link", "runs", "auto / faster of none, fp16", "interval", "to target / best by hand",
          "interval", "points minus none", "in force at the end", "fastest by hand"]  # fmt: skip


def ratios(rows, name, link, rivals):
    """For each seed auto's `name` over the least of the rivals'; seeds where one is not known are left
    out, but a rival that has not reached the target is no rival."""
    by = {(row["method"], row["seed"]): row.get(name) for row in rows if row["link"] == link}
    found = []
    for seed in sorted({seed for method, seed in by if method == "auto"}):
        known = [by[m, seed] for m in rivals if by.get((m, seed)) is not None]
        if by["auto", seed] is not None and known:
            found.append(by["auto", seed] / min(known))
    return found


def told(values):
    """A median and its interval, as texts."""
    if not values:
        return ["not measured", ""]
    between = median_interval(values)
    return [f"{statistics.median(values):.3f}",
            f"{between[0]:.3f} .. {between[1]:.3f}" if between else "too few seeds"]


def points(rows, link):
    """Final accuracy of auto minus that of none with the same seed."""
    accuracy = {(row["method"], row["seed"]): row["final_accuracy"] for row in rows if row["link"] == link}
    gaps = [100 * (a - accuracy["none", seed]) for (method, seed), a in accuracy.items()
            if method == "auto" and a is not None and accuracy.get(("none", seed)) is not None]  # fmt: skip
    found = mean_interval(gaps)
    if found:
        return f"{found.mean:+.2f} ± {found.half_width:.2f}"
    return f"{gaps[0]:+.2f}" if gaps else "not measured"


def in_force(rows, link):
    """What each seed's auto ended with: none where it decided nothing."""
    ends = []
    for row in rows:
        if row["link"] == link and row["method"] == "auto":
            decisions = row.get("decisions") or [{"to": "none"}]
            spec, _, share = decisions[-1]["to"].split(", ")[0].partition(" for ")  # no buckets and streams
            ends.append((spec or "none") + (" in part" if share else ""))  # of which seeds differ
    return ", ".join(f"{end} ({ends.count(end)})" for end in dict.fromkeys(ends))


def fastest(rows, link, methods):
    means = {m: statistics.fmean(row["seconds"] for row in rows if (row["link"], row["method"]) == (link, m))
             for m in methods if any((row["link"], row["method"]) == (link, m) for row in rows)}  # fmt: skip
    return min(means, key=means.get) if means else "not measured"


def table(document):
    rows = document["rows"]
    by_hand = [m for m in dict.fromkeys(row["method"] for row in rows) if m != "auto"]
    return [[link, str(sum(row["link"] == link for row in rows)),
             *told(ratios(rows, "seconds", link, ("none", "fp16"))),
             *told(ratios(rows, "seconds_to_target", link, by_hand)),
             points(rows, link), in_force(rows, link), fastest(rows, link, by_hand)]
            for link in dict.fromkeys(row["link"] for row in rows)]  # fmt: skip


def command(args, more):
    return [sys.executable, "-m", "gradwire", "bench", "--workload", args.workload,
            "--methods", ";".join(["auto", "none", "fp16", *filter(None, args.methods.split(";"))]),
            "--links", args.links, "--seeds", args.seeds, "--stop-at-target", "0", "--keep-going",
            "--json", str(args.json), *(["--resume"] if args.json.exists() else []), *more]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--workload", default="cnn", help="one of gradwire bench [cnn]")
    parser.add_argument("--seeds", default="7")
    parser.add_argument("--links", default="50mbit,200mbit,1gbit,none,1gbit:50mbit@100")
    parser.add_argument("--methods", default="topk:1%,int4", help="others chosen by hand, by ';'")
    parser.add_argument("--no-run", action="store_true", help="print what FILE has")
    parser.add_argument("--log", action="store_true", help="print auto's decisions too")
    parser.add_argument("--markdown", action="store_true")
    args, more = parser.parse_known_args()
    if "," in args.workload:
        parser.error(f"--workload: {args.workload}, expected one: a table is of one training")
    code = 0 if args.no_run else subprocess.run(command(args, more), check=False).returncode
    if not args.json.exists():
        return code or 1
    document = json.loads(args.json.read_text())
    print_table(HEADER, table(document), args.markdown)
    if args.log:
        for row in document["rows"]:
            for d in row.get("decisions") or []:
                print(f"{row['link']}, seed {row['seed']}, step {d['step']}, {d['what']}: {d['from']} -> "
                      f"{d['to']}: {d['reason']}")  # fmt: skip
    return code


if __name__ == "__main__":
    sys.exit(main())
