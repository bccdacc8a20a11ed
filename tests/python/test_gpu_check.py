"""bench/gpu_check.sh: what it plans, says and leaves, with programs made for it in the place of a GPU's."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest
from gpu_machine import (
    HANGS,
    NAMES,
    ROOT,
    SCRIPT,
    SPARE,
    Machine,
    check_nothing_runs,
    end_all,
    with_suites,
)

SUITES_PY = ROOT / "bench" / "gpu_check" / "suites.py"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture(autouse=True)
def leaves_nothing(tmp_path):
    yield
    check_nothing_runs(tmp_path)


def run_script(*words, **env):
    return subprocess.run(
        [str(SCRIPT), *words],
        text=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHON": sys.executable, **env},
    )


def test_without_a_gpu_one_line_and_both_files(tmp_path):
    out = tmp_path / "results" / "out.json"
    done = run_script("--out", str(out), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU: CUDA_VISIBLE_DEVICES hides it" in done.stdout.splitlines()[-1]
    results = json.loads(out.read_text())
    assert results["verdict"] == "no GPU" and [stage["name"] for stage in results["stages"]] == ["machine"]
    assert results["stages"][0]["data"]["cores"] >= 1 and results["commit"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.json", "out.tgz"]


def test_a_driver_that_fails_is_no_gpu_and_is_quoted(machine):
    machine.program("tools/nvidia-smi", 'echo "Failed to initialize NVML"; exit 9')
    done = machine.run()
    assert done.returncode == 0 and machine.results()["verdict"] == "no GPU"
    assert "Failed to initialize NVML" in machine.stage("machine")["data"]["gpu"]["absent"]


def test_every_stage_is_run_and_told_in_one_json_and_one_tgz(machine):
    done = machine.run()
    assert done.returncode == 0, done.stdout
    results = machine.results()
    assert results["verdict"] == "passed" and results["commit"] == "abc1234"
    assert sorted(machine.statuses()) == sorted(NAMES) and set(machine.statuses().values()) == {"ok"}
    found = machine.stage("machine")["data"]
    assert found["gpu"] == {
        "name": 'Fake "H" GPU',
        "driver": "999.1",
        "memory": "7 MiB",
        "compute_cap": "9.0",
    }
    assert found["torch"] == {"version": "2.11", "cuda": "13.0"} and found["python"]["version"] == "3.12.3"
    assert found["tools"]["compute-sanitizer"] == {"version": "Version 1"}
    assert found["tools"]["nvcc"] == {"version": "Cuda compilation tools, release 13.0, V13.0.88"}
    assert machine.stage("suites")["data"]["passed"] == 2
    assert machine.stage("suites")["reason"] == "2 of 2 suites passed"
    assert set((machine.folder / "checks").read_text().split()) > {
        "memcheck",
        "racecheck",
        "synccheck",
        "initcheck",
    }
    assert sorted(path.name for path in machine.out.parent.iterdir()) == ["out.json", "out.tgz"]
    assert set(machine.packed()) == {"out/out.json", *(f"out/{name}.log" for name in NAMES)}


def test_kernels_are_laid_beside_their_peers(machine):
    done = machine.run("--only", "bench,topk_peer,peers")
    (row,) = machine.results()["compared"]
    assert row["op"] == "compress topk:1%" and row["ms"] == 2.0
    assert row["peers"] == {
        "CUB DeviceTopK + scatter": {"ms": 5.0, "times": 2.5},
        "torch.topk chain": {"ms": 8.0, "times": 4.0},
    }
    assert "CUB DeviceTopK + scatter 5.000, 2.5x; torch.topk chain 8.000, 4.0x" in done.stdout


def test_the_file_is_whole_while_a_stage_runs_and_says_which(machine):
    machine.run("--only", "first,bench")
    seen = json.loads((machine.folder / "seen.json").read_text())  # copied while the bench ran
    assert seen["verdict"] == "running"
    assert [(stage["name"], stage["status"]) for stage in seen["stages"]] == [
        ("machine", "ok"),
        ("first", "ok"),
        ("bench", "running"),
    ]


def test_what_a_stage_has_measured_is_written_before_it_ends(machine):
    machine.program(
        "bin/cuda_bench",
        Machine.rows("gradwire", 2.0) + "\nwhile ! grep -q topk:1% "
        '"$FAKES/results/out.json"; do sleep 0.1; done',
    )
    machine.run("--only", "bench", "--stage-limit", "20")
    assert machine.statuses()["bench"] == "ok"


def test_a_suite_that_fails_is_named_with_its_tests_and_goes_to_the_sanitizer(machine):
    fails = """case "$*" in *Bad/1.*) echo '[ RUN ] a "b"'; echo "[  FAILED  ] 1 test, listed below:"
echo "[  FAILED  ] Bad/1.Two (3 ms)"; exit 1;; esac"""
    machine.program("bin/gpu_test", with_suites(["Good", "Bad/1"], fails))
    assert machine.run("--only", "suites,sanitize").returncode == 1
    assert machine.results()["verdict"] == "failed" and machine.results()["bad"] == ["suites", "sanitize"]
    data = machine.stage("suites")["data"]
    assert data["passed"] == 1 and data["not_begun"] == []
    assert [(each["suite"], each["outcome"], each["tests"]) for each in data["bad"]] == [
        ("Bad/1", "failed", ["Bad/1.Two"])
    ]
    assert 'a "b"' in data["bad"][0]["tail"]
    assert (machine.folder / "checks").read_text().split()[:2] == ["memcheck", "--gtest_filter=Bad/1.*"]
    checks = machine.stage("sanitize")["data"]["checks"]
    assert checks["memcheck Bad/1"] == checks["racecheck Bad/1"] == "exit 1"
    assert checks["memcheck step"] == "no fault"


def run_suites(machine, *words):
    data = machine.folder / "suites.json"
    program = machine.folder / "bin/gpu_test"
    words = [sys.executable, SUITES_PY, program, "--data", data, *words]
    done = subprocess.run(words, env=machine.command()["env"], timeout=60)
    assert done.returncode == 1
    return json.loads(data.read_text())


def test_suites_are_processes_of_their_own_and_one_that_hangs_hides_no_other(machine):
    hangs = 'case "$*" in *Slow.*) sleep 60 & wait;; esac'
    machine.program("bin/gpu_test", with_suites(["Slow", "Good"], hangs))
    found = run_suites(machine, "--each", "1", "--at-once", "1")
    outcomes = [(each["suite"], each["outcome"]) for each in found["bad"]]
    assert found["passed"] == 1 and outcomes == [("Slow", "timeout")]


def test_suites_that_time_did_not_reach_are_named(machine):
    machine.program("bin/gpu_test", with_suites(["A", "B"], "sleep 60"))
    found = run_suites(machine, "--seconds", "1", "--at-once", "1")
    assert found["not_begun"] == ["B"] and found["bad"][0]["outcome"] == "timeout"


def test_a_program_that_sees_no_gpu_has_proved_nothing(machine):
    says = 'echo "[  SKIPPED ] all tests of gpu_test: needs a GPU: old"'
    machine.program("bin/gpu_test", with_suites(["A"], says))
    machine.program("bin/core_test", 'echo "needs a GPU: old"')
    assert machine.run("--only", "first,suites,core").returncode == 1
    assert machine.stage("first")["data"]["suite"]["outcome"] == "sees no GPU"
    assert {each["outcome"] for each in machine.stage("suites")["data"]["bad"]} == {"sees no GPU"}
    assert machine.stage("core")["reason"].startswith("sees no GPU")


def test_checks_in_which_no_test_ran_are_no_proof(machine):
    machine.program("sanitize", 'case "$6" in *SparseSums*) echo "[  PASSED  ] 0 tests."; exit;; esac')
    assert machine.run("--only", "sanitize").returncode == 1
    checks = machine.stage("sanitize")["data"]["checks"]
    assert checks["memcheck sparse_add"] == checks["racecheck sparse_add"] == "runs no test"
    assert checks["memcheck step"] == "no fault"


def test_a_sanitizer_that_time_did_not_reach_has_proved_nothing(machine):
    program = [sys.executable, ROOT / "bench/gpu_check/sanitize.py", machine.folder / "bin/gpu_test"]
    words = ["--data", machine.folder / "sanitize.json", "--seconds", "0"]
    done = subprocess.run([*program, *words], env=machine.command()["env"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"0 of 8 without a fault\n")


def test_a_set_that_does_not_say_its_commit_is_of_an_unknown_one(machine):
    (machine.folder / "MANIFEST.json").write_text("torn")
    machine.run("--only", "first")
    assert machine.results()["commit"] == "unknown" and machine.results()["prebuilt"] is None


def test_the_first_suite_that_fails_is_looked_at_by_memcheck(machine):
    machine.program("bin/gpu_test", "exit 1")
    machine.run("--only", "first")
    data = machine.stage("first")["data"]
    assert data["copy"]["outcome"] == "ok" and data["suite"]["outcome"] == "failed"
    assert data["memcheck"]["exit"] == 1
    assert machine.stage("first")["reason"] == "exit 1; copy: ok; suite: failed; memcheck: failed"


def test_nothing_starts_after_the_deadline_and_what_did_not_run_is_bad(machine):
    machine.program("bin/cuda_bench", HANGS)
    begin = time.monotonic()
    assert machine.run("--only", "bench,suites,peers,core", "--deadline", "2").returncode == 1
    assert time.monotonic() - begin < 30  # not the 75 s of the stage
    assert machine.statuses() == {
        "machine": "ok",
        "bench": "timeout",
        "suites": "skipped",
        "peers": "skipped",
        "core": "skipped",
    }
    assert machine.results()["bad"] == ["bench", "suites", "peers"]  # core is for time that is left
    assert "by the deadline" in machine.stage("bench")["reason"]


@pytest.mark.parametrize("how, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_leaves_both_files(machine, how, code):
    machine.program("bin/cuda_bench", HANGS)
    process = subprocess.Popen(**machine.command("--only", "bench,core"))
    while not (machine.folder / "hangs").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(how)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert machine.results()["verdict"] == "interrupted"
    assert machine.statuses() == {"machine": "ok", "bench": "stopped"}
    assert "out/bench.log" in machine.packed()


def test_a_killed_run_has_left_what_was_found_until_then(machine):
    machine.program("bin/cuda_bench", HANGS)
    process = subprocess.Popen(**machine.command("--only", "core,bench"))
    while not (machine.folder / "hangs").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.kill()
    end_all(machine.folder)  # which it could not do
    process.communicate(timeout=30)
    assert machine.statuses() == {"machine": "ok", "bench": "running"}
    assert set(machine.packed()) == {"out/out.json", "out/machine.log"}


def test_a_program_that_lacks_a_library_is_missing_with_its_name(machine):
    machine.program("tools/ldd", 'case $1 in *trainer) echo "  libopenblas.so.0 => not found";; esac')
    done = machine.run("--only", "trainer")
    assert machine.stage("trainer")["reason"] == "gradwire-trainer needs libopenblas.so.0, which is not here"
    assert "gradwire-trainer LACKS libopenblas.so.0" in done.stdout


def test_a_set_may_come_as_one_file(machine):
    packed = machine.folder / "set.tgz"
    with tarfile.open(packed, "w:gz") as archive:
        for name in ("bin", "MANIFEST.json"):
            archive.add(machine.folder / name, arcname=f"./{name}")
    assert machine.run("--prebuilt", str(packed), "--only", "first,core").returncode == 0
    assert machine.results()["commit"] == "abc1234" and machine.statuses()["core"] == "ok"


def test_the_plan_fits_into_its_time_and_a_dry_run_prints_it():
    done = run_script("--dry-run", "--prebuilt", "/nowhere")
    assert done.returncode == 2 and "there is no /nowhere/bin" in done.stderr
    sys.path.insert(0, str(ROOT / "bench" / "gpu_check"))
    try:
        import plan
    finally:
        sys.path.pop(0)
    made = plan.stages(plan.Setup(ROOT, ROOT, "python3", "python3", prebuilt=ROOT))
    assert [stage.name for stage in made] == NAMES
    needed = [stage for stage in made if not stage.spare and not stage.background]
    assert sum(stage.limit for stage in needed) <= plan.STAGES_S < plan.WHOLE_S == 390
    assert [stage.name for stage in made if stage.spare] == SPARE
    assert all(0 < stage.expected <= stage.limit for stage in made)


def test_a_dry_run_names_every_stage_with_its_times_and_what_is_missing(machine):
    (machine.folder / "bin" / "core_test").unlink()
    done = machine.run("--dry-run")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if " s " in line and not line.startswith("needed")] == NAMES
    assert f"missing: there is no {machine.folder}/bin/core_test" in done.stdout
    assert lines[-1] == "needed: 232 s expected, 380 s at most; all stages end by 380 s, the whole by 390 s"
    assert not machine.out.exists()


@pytest.mark.parametrize(
    "words, named",
    [
        (["--deadline", "0"], "--deadline: is '0', must be 1 to 380"),
        (["--deadline", "381"], "must be 1 to 380"),
        (["--stage-limit", "x"], "--stage-limit: is 'x'"),
        (["--stage-limit", "last=3"], "--stage-limit: 'last=3' names no stage, known: machine, "),
        (["--numel", "9"], "--numel: is '9', must be 4096 to"),
        (["--prebuilt", "/nowhere"], "there is no /nowhere/bin"),
        (["--rebuild"], "--rebuild goes with --prebuilt"),
        (["--python", "/nowhere"], "there is no such program"),
        (["--only", "first,last"], "--only: last unknown, known: machine, "),
        (["--out"], "expected one argument"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_bad_arguments_are_named(words, named):
    done = run_script(*words)
    assert done.returncode == 2 and named in done.stderr
