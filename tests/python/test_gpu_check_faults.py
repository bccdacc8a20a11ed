"""bench/gpu_check.sh with each stage in turn made to fail, to hang and to be missing: the files always
arrive and name it, and no other stage suffers."""

import json
import subprocess
import sys

import pytest
from gpu_machine import HANGS, NAMES, ROOT, SPARE, Machine, check_nothing_runs

# What a stage runs, and the status of the three: in a shell script that stands in for it, or is read by one.
RUNS = {
    "first": "bin/gpu_test",
    "bench": "bin/cuda_bench",
    "module": "module",
    "suites": "bin/gpu_test",
    "sanitize": "sanitize",
    "nccl": "bin/gradwire-check",
    "topk_peer": "bin/cuda_topk_peer",
    "peers": "peers",
    "hook": "hook",
    "arrays": "arrays",
    "core": "bin/core_test",
    "trainer": "bin/gradwire-trainer",
    "profile": "tools/ncu",
}
MODES = ("failed", "timeout", "missing")
FAILS = 'echo "it broke"; exit 7'
NEEDS_TORCH = ("module", "peers", "hook", "arrays")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture(autouse=True)
def leaves_nothing(tmp_path):
    yield
    check_nothing_runs(tmp_path)


def break_(machine, stage, mode):
    program = RUNS[stage]
    if mode == "missing":
        if stage in NEEDS_TORCH:
            machine.program("torch", 'echo "No module named torch"; exit 1')
        else:
            (machine.folder / {"sanitize": "tools/compute-sanitizer"}.get(stage, program)).unlink()
        return
    body = FAILS if mode == "failed" else HANGS
    if stage == "profile":  # it is asked for its version first
        body = '[ "$1" != --version ] || { echo "Version 2"; exit; }\n' + body
    machine.program(program, body)


def check(machine, stage, mode, said):
    part = machine.stage(stage)
    assert part["status"] == mode, said
    assert part["reason"]
    bad = [] if mode == "missing" and stage in SPARE else [stage]
    if mode == "missing" and stage in ("hook", "arrays"):  # the module is of no use without torch
        bad = ["module", *bad]
    assert machine.results()["bad"] == bad, said
    assert f"out/{stage}.log" in machine.packed() or mode == "missing"
    assert "out/out.json" in machine.packed()


@pytest.mark.parametrize("mode", MODES)
def test_each_stage_in_turn_is_named_and_another_goes_on(tmp_path, mode):
    """A machine and a run for each stage, at the same time: those that hang wait together."""
    runs = []
    for stage in RUNS:
        (tmp_path / stage).mkdir()
        machine = Machine(tmp_path / stage)
        break_(machine, stage, mode)
        witness = "bench" if stage == "core" else "core"
        names = [stage, witness] + ["module"] * (stage in ("hook", "arrays"))
        limit = [f"--stage-limit={stage}=1"] * (mode == "timeout")
        run = subprocess.Popen(**machine.command("--only", ",".join(names), *limit))
        runs.append((stage, witness, machine, run))
    for stage, witness, machine, run in runs:
        said, _ = run.communicate(timeout=120)
        check(machine, stage, mode, said)
        assert machine.statuses()[witness] == "ok", said


def test_a_machine_that_does_not_answer_hides_no_stage(machine):
    machine.program("tools/nvidia-smi", HANGS)
    done = machine.run("--only", "bench,core", "--stage-limit=machine=2")
    assert machine.statuses() == {"machine": "timeout", "bench": "ok", "core": "ok"}, done.stdout
    assert machine.results()["bad"] == ["machine"]


def test_what_does_not_answer_is_unknown_and_not_absent(machine):
    """So that the stages which need it try."""
    for name in ("nvidia-smi", "ncu"):
        machine.program(f"tools/{name}", "exec sleep 30")
    machine.program("torch", "exec sleep 30")
    data = machine.folder / "machine.json"
    words = [sys.executable, ROOT / "bench/gpu_check/machine.py", "--data", data, "--limit", "1"]
    subprocess.run(
        [*words, "--python", machine.folder / "tools/python3"], env=machine.command()["env"], timeout=60
    )
    found = json.loads(data.read_text())
    for part in (found["gpu"], found["torch"], found["tools"]["ncu"]):
        assert list(part) == ["unknown"] and part["unknown"].endswith("did not answer within 1 s")
    assert found["tools"]["compute-sanitizer"] == {"version": "Version 1"}


@pytest.mark.parametrize("mode", ["failed", "missing"])
def test_where_nothing_works_every_stage_is_named(machine, mode):
    """With all programs of the set broken at once."""
    for stage in RUNS:
        if mode != "missing" or RUNS[stage].split("/")[0] != "bin" or (machine.folder / RUNS[stage]).exists():
            break_(machine, stage, mode)
    done = machine.run()
    assert done.returncode == 1
    statuses = machine.statuses()
    assert sorted(statuses) == sorted(NAMES)
    bad = {name: status for name, status in statuses.items() if name != "machine"}
    assert "ok" not in bad.values(), done.stdout
    assert {bad[name] for name in ("first", "bench", "suites", "nccl", "peers")} == {mode}
    assert "out/out.json" in machine.packed()


def test_a_fault_of_the_script_itself_is_a_stage_that_failed(machine):
    """A program that cannot be started, as one of another machine."""
    (machine.folder / "bin" / "core_test").write_bytes(b"\x7fELF of something else")
    machine.run("--only", "core,bench")
    assert machine.statuses()["core"] == "failed" and machine.statuses()["bench"] == "ok"
    assert "could not be started" in machine.stage("core")["reason"]
