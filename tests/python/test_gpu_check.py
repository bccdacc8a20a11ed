"""bench/gpu_check.sh on machines without a GPU, and its machinery with programs made for it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu_check.sh"
NAMES = ["gpu_test", "bench", "core_test", "nccl", "trainer", "python", "hook", "peers",
         "memcheck", "racecheck", "synccheck", "initcheck"]
HANGS = 'trap "" TERM; sleep 1000 & echo $! > "$FAKES/child"; while :; do sleep 1; done'


class Machine:
    """A machine with one GPU, as far as PATH can tell, and a folder of programs built beforehand."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.out = folder / "out.json"
        self.program("tools/nvidia-smi", 'echo "Fake \\"H\\" GPU, 999.1, 7 MiB"')
        self.program("tools/nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.88"')
        self.program("tools/python3", 'echo "ModuleNotFoundError: no module" >&2; exit 1')
        self.program("tools/compute-sanitizer",
                     '[ "$1" != --version ] || { echo "Version 1"; exit; }\n'
                     'echo "$2" >> "$FAKES/checks"; shift 4; exec "$@"')
        self.program("bin/gpu_test", 'echo "[  PASSED  ] 7 tests."')
        self.program("bin/core_test", 'echo "[  PASSED  ] 3 tests."')
        self.program("bin/cuda_bench", 'cp "$FAKES/out.json" "$FAKES/seen.json"\n'
                     'echo "{\\"rows\\": [1, 2]}" > "$2"; echo "the table"')
        (folder / "COMMIT").write_text("abc1234\n")

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def command(self, *arguments: str) -> dict:
        env = {**os.environ, "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}",
               "FAKES": str(self.folder)}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        return {"args": [str(SCRIPT), "--out", str(self.out), *arguments], "env": env,
                "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def run(self, *arguments: str):
        """Runs the check on the programs of the folder."""
        return subprocess.run(**self.command("--prebuilt", str(self.folder), *arguments), timeout=60)

    def results(self) -> dict:
        return json.loads(self.out.read_text())

    def statuses(self) -> dict:
        return {stage["name"]: stage["status"] for stage in self.results()["stages"]}

    def child_is_gone(self) -> bool:
        """The process that the hanging program started."""
        state = Path(f"/proc/{(self.folder / 'child').read_text().strip()}/stat")
        return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_without_a_gpu_one_line_and_a_result(tmp_path):
    out = tmp_path / "results" / "out.json"
    done = subprocess.run([str(SCRIPT), "--out", str(out)], text=True, capture_output=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=60)
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1 and "no GPU: CUDA_VISIBLE_DEVICES hides it" in done.stdout
    results = json.loads(out.read_text())
    assert results["verdict"] == "no GPU" and results["stages"] == []
    assert results["machine"]["cores"] >= 1 and results["commit"]


def test_a_driver_that_fails_is_no_gpu_and_is_quoted(machine):
    machine.program("tools/nvidia-smi", 'echo "Failed to initialize NVML"; exit 9')
    done = machine.run()
    assert done.returncode == 0 and machine.results()["verdict"] == "no GPU"
    assert "Failed to initialize NVML" in machine.results()["gpu"]["absent"]


def test_every_stage_is_run_and_told(machine):
    done = machine.run()
    assert done.returncode == 0, done.stdout
    results = machine.results()
    assert list(machine.statuses()) == NAMES
    assert set(machine.statuses().values()) == {"ok", "skipped"}  # peers need torch
    assert results["verdict"] == "passed" and results["bench"] == {"rows": [1, 2]}
    assert results["gpu"] == {"name": 'Fake "H" GPU', "driver": "999.1", "memory": "7 MiB",
                              "absent": ""}
    assert results["cuda"] == "13.0.88" and results["commit"] == "abc1234"
    assert results["stages"][0]["reason"] == "[  PASSED  ] 7 tests."
    assert results["tools"]["torch"] == {"absent": "ModuleNotFoundError: no module"}
    assert results["tools"]["compute-sanitizer"] == {"version": "Version 1"}
    assert (machine.folder / "checks").read_text().split() == NAMES[8:]
    last = done.stdout.splitlines()[-1 - len(NAMES):]
    assert [line.split()[0] for line in last] == NAMES + ["gpu_check.sh:"]


def test_the_file_is_whole_after_every_stage(machine):
    machine.run()
    seen = json.loads((machine.folder / "seen.json").read_text())  # copied while the bench ran
    assert seen["verdict"] == "running"
    assert [stage["name"] for stage in seen["stages"]] == ["gpu_test"]


def test_a_failing_stage_is_told_and_the_rest_goes_on(machine):
    machine.program("bin/gpu_test", 'echo "[ RUN ] a\\\\b \\"c\\""; echo "[  SKIPPED ] One.Test (0 ms)"\n'
                    'echo "[  PASSED  ] 5 tests."; echo "[  FAILED  ] 2 tests, listed below:"; exit 1')
    assert machine.run().returncode == 1
    results, statuses = machine.results(), machine.statuses()
    assert results["verdict"] == "failed" and list(statuses) == NAMES
    assert statuses["gpu_test"] == statuses["memcheck"] == "failed" and statuses["bench"] == "ok"
    assert results["stages"][0]["reason"] == \
        "exit 1; [  PASSED  ] 5 tests. [  FAILED  ] 2 tests, listed below:"
    assert 'a\\b "c"' in results["stages"][0]["tail"]


def test_a_program_that_sees_no_gpu_has_proved_nothing(machine):
    machine.program("bin/gpu_test", 'echo "[  SKIPPED ] all tests of gpu_test: needs a GPU: old"')
    assert machine.run().returncode == 1
    assert machine.statuses()["gpu_test"] == "failed"
    assert machine.results()["stages"][0]["reason"].startswith("sees no GPU; [  SKIPPED ]")


def test_a_hanging_stage_is_stopped_with_its_children(machine):
    machine.program("bin/core_test", HANGS)
    assert machine.run("--stage-limit", "1").returncode == 1
    assert machine.statuses()["core_test"] == "timeout"
    assert machine.statuses()["initcheck"] == "ok"
    assert machine.child_is_gone()


def test_nothing_starts_after_the_deadline(machine):
    machine.program("bin/gpu_test", HANGS)
    begin = time.monotonic()
    assert machine.run("--deadline", "2").returncode == 1
    assert time.monotonic() - begin < 30  # not the 150 s of the stage
    statuses = machine.statuses()
    assert statuses.pop("gpu_test") == "timeout"
    assert set(statuses.values()) == {"skipped"} and list(statuses) == NAMES[1:]
    assert "the deadline of 2 s has passed" in machine.results()["stages"][1]["reason"]


def test_an_interrupted_run_leaves_its_results(machine):
    machine.program("bin/core_test", HANGS)
    process = subprocess.Popen(**machine.command("--prebuilt", str(machine.folder)))
    while not (machine.folder / "child").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert machine.results()["verdict"] == "interrupted"
    assert machine.statuses() == {"gpu_test": "ok", "bench": "ok", "core_test": "stopped"}
    assert machine.child_is_gone()


def test_a_trainer_that_does_not_start_is_left_out_with_the_reason(machine):
    machine.program("bin/gradwire-trainer", 'echo "libopenblas.so.0: not found" >&2; exit 127')
    assert machine.run().returncode == 0
    stage = machine.results()["stages"][NAMES.index("trainer")]
    assert stage["status"] == "skipped"
    assert stage["reason"].endswith("gradwire-trainer does not start: libopenblas.so.0: not found")


@pytest.mark.parametrize("builds", [True, False])
def test_the_programs_are_built_and_what_does_not_build_is_missed(machine, builds):
    make = "mkdir -p $2/tests/simt $2/bench; cp $FAKES/bin/gpu_test $2/tests/simt"
    also = "cp $FAKES/bin/cuda_bench $2/bench"
    machine.program("tools/cmake", 'case $1 in --build) echo "$*" > $FAKES/built;'
                    f'{make}; {also if builds else "exit 1"};; *) echo "-- gradwire: TESTS on";; esac')
    build = machine.folder / "build"
    done = subprocess.run(**machine.command("--build", str(build)), timeout=60)
    assert done.returncode == (0 if builds else 1), done.stdout
    statuses = machine.statuses()
    assert list(statuses) == ["configure", "build"] + NAMES
    assert statuses["gpu_test"] == "ok" and statuses["core_test"] == "skipped"
    assert statuses["bench"] == ("ok" if builds else "skipped")
    assert (machine.folder / "built").read_text().split()[3:6] == NAMES_OF_PROGRAMS


NAMES_OF_PROGRAMS = ["cuda_bench", "gpu_test", "core_test"]


@pytest.mark.parametrize("arguments, named", [
    (["--deadline", "0"], "--deadline is '0', must be 1 to 530 seconds"),
    (["--deadline", "531"], "must be 1 to 530"),
    (["--stage-limit", "x"], "--stage-limit is 'x'"),
    (["--prebuilt", "/nowhere"], "there is no /nowhere/bin"),
    (["--rebuild"], "--rebuild goes with --prebuilt"),
    (["--out"], "--out needs a value"),
    (["--fast"], "unknown argument '--fast'"),
])
def test_bad_arguments_are_named(arguments, named):
    done = subprocess.run([str(SCRIPT), *arguments], text=True, capture_output=True, timeout=60)
    assert done.returncode == 2 and named in done.stderr
