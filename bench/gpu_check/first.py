"""Does anything run on the GPU at all? A copy of a few KB and one suite; memcheck where the suite fails.

python3 first.py --bench CUDA_BENCH --tests GPU_TEST --data FILE [--seconds 18] [--suite NAME]
"""

import argparse
import shutil
import sys
import time

from results import write_whole
from runner import last_lines, text_of
from suites import NO_GPU, outcome_of

SUITE = "ElementwiseKernels"
SHORT = {"passed": "ok", "timeout": "hangs"}
SMALL = ["--numel", "4096", "--repeats", "1", "--only", "compress fp16 gradwire"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--tests", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--suite", default=SUITE)
    parser.add_argument("--seconds", type=float, default=18)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    data, good, said = {}, True, []

    def attempt(name, command, no_gpu):
        nonlocal good
        began = time.monotonic()
        try:
            code, output = text_of(command, max(1.0, end - began))
        except OSError as error:
            code, output = 127, str(error)
        verdict = outcome_of(code, output, no_gpu)
        outcome = SHORT.get(verdict, verdict)
        right = outcome == "ok"
        data[name] = {
            "outcome": outcome,
            "exit": code,
            "seconds": round(time.monotonic() - began, 2),
            "tail": "" if right else last_lines(output, 20),
        }
        print(output)
        write_whole(arguments.data, data)
        said.append(f"{name}: {outcome}")
        return right

    good = attempt("copy", [arguments.bench, *SMALL], "no GPU")
    one = [arguments.tests, f"--gtest_filter=*{arguments.suite}.*", "--gtest_brief=1"]
    if not attempt("suite", one, NO_GPU):
        good = False
        if shutil.which("compute-sanitizer") and data["suite"]["outcome"] == "failed":
            attempt(
                "memcheck", ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", *one], NO_GPU
            )
    print("; ".join(said))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
