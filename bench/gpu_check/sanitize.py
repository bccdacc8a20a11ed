"""compute-sanitizer over the suites that failed, then over those that matter most.

    python3 sanitize.py GPU_TEST --failed SUITES_JSON --data FILE [--seconds 43] [--each 25] [--at-once 4]

Memcheck and racecheck on every suite that failed (six at most), then on the kernels of a step and of sparse
sums; synccheck and initcheck with the time that is left. Exit: 0 no fault, 1 a fault, a run that did
not end or one without a test, 3 there is no compute-sanitizer.
"""

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path

import pool
from results import write_whole
from runner import last_lines
from suites import outcome_of

# Their suites have instances, whose names begin with that of the set of values.
ALWAYS = [("step", "*CudaOptimizer.*"), ("sparse_add", "*SparseSums.*:SparseSumLaunchers.*")]
# Of them for racecheck, which takes all of a step more than its time (on an H200): every rule, twice.
RACED = {"step": "*CudaOptimizer.CopiedState*"}
MOST_FAILED = 6


def failed_suites(file):
    try:
        return [each["suite"] for each in json.loads(Path(file).read_text())["bad"]][:MOST_FAILED]
    except (OSError, ValueError, KeyError):  # the stage of the suites left nothing
        return []


def checks(failed):
    """(name, tool, filter) in the order of their worth."""
    targets = [(name, f"{name}.*") for name in failed] + ALWAYS
    order = [
        (f"{tool} {name}", tool, RACED.get(name, filter_) if tool == "racecheck" else filter_)
        for name, filter_ in targets
        for tool in ("memcheck", "racecheck")
    ]
    return order + [
        (f"{tool} {name}", tool, filter_) for tool in ("synccheck", "initcheck") for name, filter_ in ALWAYS
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--failed", default="")
    parser.add_argument("--data", required=True)
    parser.add_argument("--seconds", type=float, default=43)
    parser.add_argument("--each", type=float, default=25)
    parser.add_argument("--at-once", type=int, default=4)
    arguments = parser.parse_args()
    if not shutil.which("compute-sanitizer"):
        print("compute-sanitizer is not in PATH")
        return 3
    until = time.monotonic() + arguments.seconds
    rows = {name: "not begun" for name, _, _ in checks(failed_suites(arguments.failed))}
    tails = {}

    def ended(job):
        outcome = outcome_of(job.code, job.output)
        if outcome == "timeout":
            rows[job.name] = f"not over after {job.seconds:.0f} s"
        elif outcome == "passed":
            rows[job.name] = "no fault"
        elif job.code == 0:  # and nothing was looked at
            rows[job.name] = outcome
        else:
            found = re.findall(r"ERROR SUMMARY: (\d+ errors?)|RACECHECK SUMMARY: (.*)", job.output)
            rows[job.name] = next((a or b for a, b in found), f"exit {job.code}")
            tails[job.name] = last_lines(job.output, 30)
        print(f"{job.name}: {rows[job.name]} ({job.seconds} s)\n{tails.get(job.name, '')}", flush=True)
        write_whole(arguments.data, {"checks": rows, "tails": tails})

    jobs = [
        pool.Job(
            name,
            [
                "compute-sanitizer",
                "--tool",
                tool,
                "--error-exitcode",
                "9",
                arguments.program,
                f"--gtest_filter={filter_}",
                "--gtest_brief=1",
            ],
        )
        for name, tool, filter_ in checks(failed_suites(arguments.failed))
    ]
    pool.run(jobs, arguments.at_once, arguments.each, until, ended)
    write_whole(arguments.data, {"checks": rows, "tails": tails})
    clean = sum(value == "no fault" for value in rows.values())
    bad = [f"{name}: {value}" for name, value in rows.items() if value not in ("no fault", "not begun")]
    print(f"{clean} of {len(rows)} without a fault" + (f"; {'; '.join(bad)}" if bad else ""))
    return 1 if bad or not clean else 0


if __name__ == "__main__":
    sys.exit(main())
