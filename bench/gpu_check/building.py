"""Builds the programs of a run on this machine.

    python3 building.py --build DIR [--prebuilt DIR]

GoogleTest is the machine's, or that of the prebuilt set. What does not build is missed by its own stage.
Exit: 0 all were built, 1 some were not, or there is no GoogleTest for the tests.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ["gpu_test", "core_test", "nccl_reducer_rank"]
OTHERS = ["cuda_bench", "gradwire_check", "gradwire_trainer"]


def said(command):
    """Runs it with its output shown. @returns exit status and output."""
    print("+ " + " ".join(map(str, command)), flush=True)
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    return process.wait(), "".join(lines)


def targets_in(build, names):
    """Those of the names that were configured."""
    code, listing = said(["cmake", "--build", build, "--target", "help"])
    known = {line.split(":")[0].split()[-1] for line in listing.splitlines() if line.split(":")[0].strip()}
    return [name for name in names if name in known] if code == 0 else list(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--prebuilt", default="")
    arguments = parser.parse_args()
    configure = [
        "cmake",
        "-S",
        ROOT,
        "-B",
        arguments.build,
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DGRADWIRE_CUDA=ON",
        "-DGRADWIRE_GLOO=OFF",
        "-DGRADWIRE_PYTHON=OFF",
    ]
    if arguments.prebuilt:
        configure.append(f"-DCMAKE_PREFIX_PATH={Path(arguments.prebuilt).resolve()}/gtest")
    code, output = said(configure)
    if code:
        print(f"cmake could not configure: exit {code}")
        return 1
    tests = "-- gradwire: TESTS on" in output
    targets = targets_in(arguments.build, OTHERS) + (TESTS if tests else [])
    code, _ = said(["cmake", "--build", arguments.build, "--target", *targets, "--", "-k", "0"])
    if not tests:
        print(
            "NO GOOGLETEST: gpu_test, core_test and nccl_reducer_rank were not built; a prebuilt set has it, "
            "Debian's package is libgtest-dev"
        )
        return 1
    print("built" if code == 0 else f"not all could be built: exit {code}")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
