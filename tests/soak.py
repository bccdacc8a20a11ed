"""What is long by nature: every case of which the suite runs a seeded sample (`./run.sh soak`).

Cases: each mutant of the kernels, all kernels under ThreadSanitizer, each C++ test and each Python test
that draws a sample in the suite.
They run one after another until all are done or the time is up. What passed is kept in
build/soak.jsonl with a fingerprint of the sources: started again, it goes on where it stopped.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = "soak"  # of pytest's tests
# C++ tests that draw a sample (support/sampling.h).
DRAWING = ("CompressorLaws.NothingIsLost", "CompressorLaws.SumOfRanksIsSumOfParts",
           "CompressorLaws.SlicesTileThePayload", "CompressorLaws.MergeKeepsWhatItDrops",
           "CompressorLaws.PayloadNeverExceedsCapacity", "Replay.FollowsTheCommits",
           "CpuCompressorLaws.InstructionSetsDoNotChangeBytes",
           "CpuCompressorLaws.AlignmentDoesNotChangeBytes",
           "Succession.AMovingCutNeverMakesTwoGroups",
           "Succession.RandomFaultsNeverMakeTwoGroupsAndWhoCanGoOnDoes",
           "AccumulatedLaws.AccumulatedGradientsGiveTheSamePayloadAndResidual",
           "FlippedBits.EndNoProcessButInGloosOwnHeader",
           "CompressDigests.OfTheGpuAreThoseRecorded",
           "DeviceReducers.HaveTheDigestsThatWereRecorded",
           *(f"{suite}.{isa}AreThoseRecorded" for suite in ("CompressDigests", "ReducerDigests")
             for isa in ("OfPlainCode", "OfAvx2", "OfAvx512")))
# All kernels in the emulator under ThreadSanitizer, in so many parts each (simt/races.cmake).
RACES = ("simt_race_kernels_test", "simt_race_compress_test", "simt_race_optimizers_test")
RACE_PARTS = 16
LONGEST_S = 1800.0


def fingerprint():
    """Of the commit and of what differs from it: results of other sources do not count."""
    said = [subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["diff", "HEAD"])]
    return hashlib.sha256(b"".join(said)).hexdigest()[:16]


def cases(build):
    """(name, command, environment) of each case."""
    listed = build / "tests" / "simt" / "mutants.txt"
    for line in listed.read_text().splitlines() if listed.exists() else []:
        name = Path(line.partition("|")[0]).name.removeprefix("simt_mutant_")
        yield (f"mutant {name}", ["ctest", "--test-dir", str(build), "--output-on-failure", "-R",
                                  "simt.a_sample_of_the_mutants"], {"GRADWIRE_MUTANTS": name})
    shown = json.loads(subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"],
                                      capture_output=True, check=True).stdout)
    names = [test["name"] for test in shown["tests"]]
    for drawing in DRAWING:
        found = [name for name in names if name.partition(".")[2] == drawing]
        if not found:
            sys.exit(f"soak: {build} has no test {drawing}")
        for name in found:
            yield (f"ctest {name}", ["ctest", "--test-dir", str(build), "--output-on-failure",
                                     "--timeout", f"{LONGEST_S:.0f}", "-R", f"^{re.escape(name)}$"], {})
    shows_races = RACES[0] in (build / "build.ninja").read_text()
    if shows_races:
        yield ("races of every seed", ["ctest", "--test-dir", str(build), "--output-on-failure",
                                       "-R", r"^simt_races_test\."], {})
    for program in RACES if shows_races else ():
        for part in range(RACE_PARTS):
            yield (f"races {program} {part + 1} of {RACE_PARTS}",
                   ["sh", "-c", f"cmake --build '{build}' --target {program} > /dev/null && exec "
                                f"'{build}/tests/simt/{program}' --gtest_brief=1"],
                   {"GRADWIRE_SOAK": "",  # laws draw their sample: all rows would take days
                    "GTEST_TOTAL_SHARDS": str(RACE_PARTS), "GTEST_SHARD_INDEX": str(part),
                    "TSAN_OPTIONS": f"suppressions={ROOT}/tests/simt/races/races.supp"})
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", MARK, "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "GRADWIRE_SOAK": "1"})
    if found.returncode not in (0, 5):  # 5: nothing is so marked
        sys.exit(f"soak: pytest cannot collect:\n{found.stdout}{found.stderr}")
    for line in found.stdout.splitlines():
        if "::" in line:
            yield (f"pytest {line}", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", line],
                   {})


def run(command, environment, timeout):
    """Whether it passed, and its output. A test that was skipped or not found has not passed."""
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout,
                              env={**os.environ, "GRADWIRE_SOAK": "1", **environment})
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        return False, (out.decode() if isinstance(out, bytes) else out) + f"\nno end after {timeout:.0f} s"
    passed = done.returncode == 0 and not re.search(r"No tests were found|\bSkipped\b|1 skipped",
                                                    done.stdout)
    return passed, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no case after this time")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "default")
    parser.add_argument("--only", default="", help="cases whose names hold this text")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    arguments = parser.parse_args()
    every = [case for case in cases(arguments.build) if arguments.only in case[0]]
    if arguments.list:
        print("\n".join(name for name, _, _ in every))
        return 0
    if not every:
        sys.exit(f"soak: no case holds '{arguments.only}'")

    state, now = ROOT / "build" / "soak.jsonl", fingerprint()
    rows = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    before = {row["case"] for row in rows if row["sources"] == now and row["passed"]}
    began, passed, failed, left = time.monotonic(), 0, [], 0
    for at, (name, command, environment) in enumerate(every, 1):
        spent = time.monotonic() - began
        if name in before:
            passed += 1
            continue
        if spent > arguments.minutes * 60:
            left += 1
            continue
        fine, output = run(command, environment, LONGEST_S)
        took = time.monotonic() - began - spent
        with state.open("a") as file:
            file.write(json.dumps({"case": name, "sources": now, "passed": fine, "seconds": took}) + "\n")
        print(f"[{at:4d} of {len(every)}, {(spent + took) / 60:5.1f} min] {name}: "
              f"{'passed' if fine else 'FAILED'} ({took:.1f} s)", flush=True)
        passed += fine
        if not fine:
            failed.append(name)
            print("\n".join(output.splitlines()[-60:]), flush=True)
    print(f"soak: {len(before & {name for name, _, _ in every})} had passed before; "
          f"{left} left{', start it again to go on' if left else ''}")
    for name in failed:
        print(f"soak: failed: {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
