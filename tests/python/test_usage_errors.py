"""Programs that are called the wrong way say what is wrong, exit with 2, and have started nothing."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire import paths

ROOT = Path(__file__).resolve().parents[2]
OURS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GRADWIRE_", "SLURM_", "OMPI_", "PMIX_")


def run(command, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    return subprocess.run([*map(str, command)], env={**environment, **variables},
                          capture_output=True, text=True, timeout=60)


CHECKER = [
    (["--bogus"], "argument: unknown name '--bogus', known: --transport, --timeout, "),
    (["--bogus", "3"], "argument: unknown name '--bogus', known: --transport, --timeout, "),
    (["--timeout"], "--timeout: no value follows, expected one"),
    (["--timeout", "-3"], "--timeout: is '-3', expected a whole number from 1 to 1000000"),
    (["--timeout", "0"], "--timeout: is '0', expected a whole number from 1 to 1000000"),
    (["--timeout", "3s"], "--timeout: is '3s', expected a whole number"),
    (["--json", "out.json"], "--json: is 'out.json', expected -: every rank prints its own"),
    (["--largest", "2000000000"], "--largest: is '2000000000', expected a whole number from 0 to"),
    (["--transport", "pigeon"], "--transport: unknown name 'pigeon', known: in_process, gloo"),
]


@pytest.mark.parametrize("words, says", CHECKER)
@pytest.mark.parametrize("in_a_job", [True, False])
def test_the_checker_says_what_it_was_not_meant_to_be_told(words, says, in_a_job, tmp_path):
    job = {"GRADWIRE_RANK": "0", "GRADWIRE_WORLD_SIZE": "2",
           "GRADWIRE_STORE": f"file:{tmp_path}/store"} if in_a_job else {}
    done = run([paths.checker(), *words], **job)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"gradwire-check: {says}") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "it has gone to the store"


def test_the_checker_misses_its_variables_after_its_words():
    done = run([paths.checker(), "--timeout", "3"])
    assert done.returncode == 2 and "RANK" in done.stderr


def test_the_checker_alone_says_how_it_is_started_and_the_command_works(tmp_path):
    done = run([paths.checker()])
    assert done.returncode == 2 and done.stdout == ""
    ways = [line.strip() for line in done.stderr.splitlines() if line.startswith("  ")]
    assert [way.split()[0] for way in ways] == ["torchrun", "mpirun", "srun", "for"], done.stderr
    assert all("gradwire check" in way for way in ways)
    named = tmp_path / "gradwire"  # whatever `gradwire` the PATH may have
    named.write_text(f"#!/bin/sh\n[ $1 = check ] && shift && exec {paths.checker()} --timeout 20 \"$@\"\n")
    named.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        by_hand = ways[-1].replace("29400", str(free.getsockname()[1]))
    tried = run(["sh", "-c", by_hand], PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert tried.stdout.count(": OK, shift of 8 bytes ") == 2, by_hand + tried.stdout + tried.stderr


@pytest.mark.parametrize("store", ["", "nonsense", "tcp:host:none", "tcp://127.0.0.1:29400"])
@pytest.mark.parametrize("by_variable", [True, False])
def test_a_store_that_is_none_is_bad_usage_of_the_checker(store, by_variable):
    variables = {"GRADWIRE_RANK": "1", "GRADWIRE_WORLD_SIZE": "2"}
    given = {"GRADWIRE_STORE": store} if by_variable else {"GRADWIRE_STORE": "file:/nowhere/at/all"}
    done = run([paths.checker(), *([] if by_variable else ["--store", store])], **variables, **given)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert "expected " in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def program(tmp_path):
    """In the place of the fault rank: leaves a mark where it was run."""
    path = tmp_path / "rank"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    path.chmod(0o755)
    return path


def faults(*words):
    return run([sys.executable, ROOT / "bench" / "faults.py", *words])


def test_events_that_do_not_exist_are_answered_with_those_that_do(program, tmp_path):
    done = faults("--only", "zzz", "--program", program)
    assert done.returncode == 2 and done.stdout == ""
    assert "--only: no event has the words 'zzz', known: rank 0 killed (SIGKILL); " in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_program_that_cannot_be_run_is_named(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for path, why in [(tmp_path / "none", "no file"), (tmp_path, "no file"),
                      (plain, "not executable")]:
        done = faults("--program", path)
        assert done.returncode == 2 and done.stdout == ""
        assert f"--program: {path} is {why}, expected gradwire-fault-rank" in done.stderr


@pytest.mark.parametrize("words, says", [
    (["bench", "--quik"], "unrecognized arguments: --quik; --quik: did you mean --quick?"),
    (["report", "x.json", "--outputt=x.html"], "unrecognized arguments: --outputt=x.html; --outputt: did you "
     "mean --output?"),
    (["simulate", "--modle", "gpt2"], "one of the arguments --model --profile is required; --modle: did you "
     "mean --model?"),
    (["profile", "cnn", "--worker-s", "2"], "unrecognized arguments: --worker-s 2; --worker-s: did you mean "
     "--workers?"),
    (["plan", "--profil-e", "step.json", "--workers", "2"], "one of the arguments --model --profile is "
     "required; --profil-e: did you mean --profile?"),
    (["recommend", "--step", "V100=1s", "--gradient", "1MB", "--samples", "1", "--batch", "1",
      "--bugdet", "2h"],
     "the following arguments are required: --budget; --bugdet: did you mean --budget?"),
    (["info", "--jsno"], "unrecognized arguments: --jsno; --jsno: did you mean --json?"),
    (["doctor", "--xyzzy"], "unrecognized arguments: --xyzzy"),
    (["completion", "bash", "more"], "unrecognized arguments: more"),
])  # fmt: skip
def test_an_option_that_does_not_exist_is_answered_by_its_command_with_the_nearest(words, says, capsys):
    from gradwire import cli

    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    name = f"gradwire {words[0]}"
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err == f"{name}: {says} ({name} --help lists what there is)\n"
