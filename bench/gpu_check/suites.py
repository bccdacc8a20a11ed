"""Runs every suite of a GoogleTest program in a process of its own, several at once.

    python3 suites.py PROGRAM --data FILE [--at-once 6] [--each 60] [--seconds 90] [--only TEXT]

A suite that breaks the device, or hangs, fails alone. FILE is replaced as a whole behind each. Exit: 0 all
passed, 1 one failed, ran out of time or was not begun, 2 the program does not list its tests.
"""

import argparse
import sys
import time

import pool
from results import write_whole
from runner import last_lines, text_of

NO_GPU = "[  SKIPPED ] all tests of gpu_test"


def suites_in(listing):
    """Of --gtest_list_tests: a suite begins at the margin and ends in a dot."""
    lines = [line.split("#")[0].rstrip() for line in listing.splitlines()]
    return [line[:-1] for line in lines if line.endswith(".") and not line.startswith(" ")]


def outcome_of(code, output, no_gpu=NO_GPU):
    """Of a run of a test program: its exit status, None where it was stopped, and what it has said."""
    if code is None:
        return "timeout"
    if code != 0:
        return "failed"
    if no_gpu in output:
        return "sees no GPU"
    return "runs no test" if "[  PASSED  ] 0 tests." in output else "passed"


def failed_tests(output):
    """Names that GoogleTest lists at the end."""
    marked = [
        line[len("[  FAILED  ] ") :] for line in output.splitlines() if line.startswith("[  FAILED  ] ")
    ]
    return sorted(
        {line.split(",")[0].split(" (")[0] for line in marked if "." in line and "listed" not in line}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--data", required=True)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--each", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--only", default="", help="suites whose name holds this")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    code, listing = text_of([arguments.program, "--gtest_list_tests"], 20)
    names = [name for name in suites_in(listing) if arguments.only in name]
    if code != 0 or not names:
        print(listing.strip())
        print(f"{arguments.program} lists no suite: exit {code}")
        return 2
    data = {"suites": len(names), "passed": 0, "bad": [], "seconds": {}, "not_begun": list(names)}

    def ended(job):
        outcome = outcome_of(job.code, job.output) if job.began is not None else "failed"
        data["not_begun"].remove(job.name)
        data["seconds"][job.name] = job.seconds
        if outcome == "passed":
            data["passed"] += 1
        else:
            data["bad"].append(
                {
                    "suite": job.name,
                    "outcome": outcome,
                    "exit": job.code,
                    "tests": failed_tests(job.output),
                    "tail": last_lines(job.output, 20),
                }
            )
            print(f"{outcome}: {job.name}\n{last_lines(job.output, 60)}", flush=True)
        write_whole(arguments.data, data)

    jobs = [
        pool.Job(name, [arguments.program, f"--gtest_filter={name}.*", "--gtest_brief=1"]) for name in names
    ]
    pool.run(jobs, arguments.at_once, arguments.each, until, ended)
    write_whole(arguments.data, data)
    bad = [f"{each['suite']} ({each['outcome']})" for each in data["bad"]]
    late = len(data["not_begun"])
    print(
        f"{data['passed']} of {len(names)} suites passed"
        + (f"; {', '.join(bad)}" if bad else "")
        + (f"; {late} not begun" if late else "")
    )
    return 1 if bad or late else 0


if __name__ == "__main__":
    sys.exit(main())
