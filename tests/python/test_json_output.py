"""`--json` of every command that has it: the same object alone on standard output, or whole in a file."""

import json
import os
import subprocess
import sys

import pytest
from bench_support import FAKE
from rank_processes import HAS_TORCH

gradwire = pytest.importorskip("gradwire", reason="the compiled module is not built")
cli = pytest.importorskip("gradwire.cli", reason="the compiled module is not built")

PROFILE = {
    "format": "gradwire.profile", "version": 1, "model": "two", "batch": 8, "ranks": 1,
    "step": {"measured_s": 0.03},
    "layers": [
        {"name": f"w{i}", "numel": 300_000, "forward_s": 0.005, "backward_s": 0.01} for i in range(2)
    ],
}  # fmt: skip

# What each command needs besides, a key of its object, and words of what it else says.
ROWS = {
    "info": ([], "version", "compressors"),
    "doctor": ([], "findings", "package"),
    "simulate": (["--model", "gpt2"], "predictions", "wfbp"),
    "plan": (["--profile", "{folder}/in.json", "--workers", "4", "--specs", "int8"], "buckets", "int8"),
    "recommend": (
        ["--step", "V100=210ms", "--gradient", "102MB", "--samples", "1e6", "--batch", "64",
         "--budget", "9h"],
        "configurations", "recommended",
    ),
    "bench": (
        ["--trainer", str(FAKE), "--workers", "2", "--links", "none", "--methods", "none", "--link-mode",
         "pacing", "--output", "{folder}/plots"],
        "rows", "ms/step",
    ),
    "profile": (
        ["cnn", "--workers", "2", "--output", "{folder}/profile.json"],
        "stalls", "stall",
    ),
}  # fmt: skip


def with_json():
    """The commands whose parsers have --json."""
    every = list(cli._EXAMPLES)
    (commands,) = [a for a in cli._parser(every)._actions if a.dest == "command"]
    return {
        name
        for name, made in commands.choices.items()
        if any("--json" in action.option_strings for action in made._actions)
    }


def test_the_law_is_over_every_command():
    assert with_json() == set(ROWS)


# `gradwire profile` as a program whose runs are made already: they take a minute.
MEASURED = """
import sys
from gradwire import cli
from gradwire.profiling import command, runs

def measured(asked, scratch, tell, keep):
    tell("profile of one worker")
    keep({profile})
    return runs.Found(profile={profile}, seconds={{"one_gpu": [1.0], "all_gpus": [3.0]}})

command.measure = measured
sys.exit(cli.main(sys.argv[1:]))
"""


def run(folder, command, *more, **options):
    if command == "profile" and not HAS_TORCH:
        pytest.skip("no torch here")
    program = ["-c", MEASURED.format(profile=PROFILE)] if command == "profile" else ["-m", "gradwire"]
    if command == "bench":
        pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    words = [word.format(folder=folder) for word in ROWS[command][0]]
    (folder / "in.json").write_text(json.dumps(PROFILE))
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.run(
        [sys.executable, *program, command, *words, *map(str, more)],
        stderr=subprocess.PIPE, text=True, timeout=300, cwd=folder, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Runs each command once: its object on standard output."""
    done = {}

    def of(command):
        if command not in done:
            done[command] = run(tmp_path_factory.mktemp(command), command, "--json", "-")
        return done[command]

    return of


@pytest.mark.parametrize("command", ROWS)
def test_json_is_alone_on_standard_output(shown, command):
    done = shown(command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict) and found[ROWS[command][1]]
    assert done.stdout.endswith("}\n")


@pytest.mark.parametrize("command", ROWS)
def test_a_file_has_the_same_object_and_standard_output_the_words(shown, command, tmp_path):
    done = run(tmp_path, command, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found) == set(json.loads(shown(command).stdout))
    assert ROWS[command][2] in done.stdout and not done.stdout.lstrip().startswith("{")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("command", ROWS)
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(command, tmp_path):
    done = run(tmp_path, command, "--json", tmp_path / "no" / "out.json")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"gradwire {command}: --json {tmp_path}/no/out.json: ")
    assert "expected a file name in a writable folder" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("command", ROWS)
def test_a_standard_output_that_is_full_is_a_run_error(command, tmp_path):
    with open("/dev/full", "w") as full:
        done = run(tmp_path, command, "--json", "-", stdout=full)
    assert done.returncode == 1, done.stderr
    assert "could not write standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_benchmarks_words_go_to_standard_error(shown):
    done = shown("bench")
    assert "ms/step" in done.stderr and "none has the fastest step" not in done.stdout.split("{")[0]
    found = json.loads(done.stdout)
    assert found["ended"] == "complete" and found["command_line"][-2:] == ["--json", "-"]


def test_resuming_needs_a_file(tmp_path):
    done = run(tmp_path, "bench", "--json", "-", "--resume")
    assert done.returncode == 2 and "--resume: names no file" in done.stderr


def ranks_of_check(folder, ranks, *more, started=None, **options):
    """`gradwire check` on ranks of one job: exit code, standard output and error of each."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GRADWIRE_", "RANK"))}
    job = {"GRADWIRE_WORLD_SIZE": str(ranks), "GRADWIRE_STORE": f"file:{folder}/store"}
    words = [sys.executable, "-m", "gradwire", "check", "--interface", "lo", "--json", "-", *more]
    options = {"stdout": subprocess.PIPE, **options}
    processes = [
        subprocess.Popen(words, env={**environment, **job, "GRADWIRE_RANK": str(rank)}, text=True,
                         stderr=subprocess.PIPE, **options)
        for rank in range(started or ranks)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *each) for process, each in zip(processes, told)]


needs_gloo = pytest.mark.skipif(
    not gradwire.build_info()["features"]["gloo"], reason="built without gloo"
)


@needs_gloo
def test_every_rank_of_a_check_prints_its_object(tmp_path):
    for rank, (code, out, err) in enumerate(ranks_of_check(tmp_path, 2, "--timeout", "20")):
        notice = "" if rank else (
            "gloo: no job secret: a plain digest finds control frames that were damaged, and none that "
            "were forged\n"
        )
        assert (code, err) == (0, notice)
        found = json.loads(out)
        assert (found["transport"], found["rank"], found["world_size"]) == ("gloo", rank, 2)
        assert found["ok"] is True and found["error"] is None and found["host"]
        assert found["shift_of_8_bytes_us"] >= 0 and found["shift_of_4_mib_mbit_per_s"] > 0


@needs_gloo
def test_a_check_that_fails_says_so_in_its_object_too(tmp_path):
    ((code, out, err),) = ranks_of_check(tmp_path, 2, "--timeout", "2", started=1)
    found = json.loads(out)
    assert code == 1 and found["ok"] is False and found["shift_of_8_bytes_us"] is None
    assert found["error"] and err.endswith(f"FAILED: {found['error']}\n")


@needs_gloo
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_check_whose_result_nobody_can_read_has_failed(tmp_path):
    with open("/dev/full", "w") as full:
        ((code, _, err),) = ranks_of_check(tmp_path, 1, "--timeout", "20", stdout=full)
    assert code == 1 and err.endswith("FAILED: standard output: cannot be written to\n")
