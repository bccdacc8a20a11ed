"""run.sh: what it says and where it installs, with programs in the place of those that take minutes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fakes(tmp_path):
    """Programs that note how they were called; all packages are there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"
    for name, body in [("dpkg-query", "printf installed"),
                       ("cmake", f'echo "cmake $*" >> {calls}; echo "-- gradwire: GLOO on"'),
                       ("failing", "echo what went wrong; exit 3")]:
        program = folder / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    return folder


def run(fakes, *words, cwd=None, **variables):
    environment = {**os.environ, "PATH": f"{fakes}:{os.environ['PATH']}", **variables}
    return subprocess.run(["sh", str(ROOT / "run.sh"), *words], env=environment, text=True,
                          capture_output=True, timeout=120, cwd=cwd)


def test_install_says_what_it_does_and_where_the_library_is(fakes, tmp_path):
    done = run(fakes, "install", "prefix of mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[1] for call in calls] == ["-S", "--build", "--install"]
    assert "-DGRADWIRE_PYTHON=OFF" in calls[0]
    assert calls[2].endswith(f"--prefix {tmp_path}/prefix of mine")
    stages = re.findall(r"^run\.sh: \[ *\d+ s\] (.*)$", done.stderr, re.M)
    assert [stage.split()[0] for stage in stages] == ["configuring", "building", "installing", "done:"]
    assert f"are in {tmp_path}/prefix of mine" in stages[-1]
    assert f"-DCMAKE_PREFIX_PATH={tmp_path}/prefix of mine" in done.stderr
    assert "-- gradwire: GLOO on" in done.stderr


def test_a_stage_that_fails_shows_its_last_lines(fakes, tmp_path):
    (fakes / "cmake").write_text("#!/bin/sh\necho what went wrong\nexit 3\n")
    done = run(fakes, "install", cwd=tmp_path)
    assert done.returncode == 1
    assert "what went wrong" in done.stderr and "run.sh: this failed: cmake -S ." in done.stderr
    assert "done:" not in done.stderr


def test_setup_ends_with_what_there_is_and_how_to_use_it(fakes, tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    real = f'*) exec {sys.executable} "$@" ;;'
    python.write_text(f'#!/bin/sh\ncase "$2" in pip) echo pip "$*" ;; {real} esac\n')
    python.chmod(0o755)
    done = run(fakes, "setup", GRADWIRE_VENV=str(venv))
    assert done.returncode == 0, done.stderr
    stages = re.findall(r"^run\.sh: \[ *\d+ s\] (.*)$", done.stderr, re.M)
    assert [stage.split()[0] for stage in stages] == ["fetching", "building", "done:"]
    assert re.fullmatch(rf"done: gradwire \S+ for Python is in {venv}", stages[-1])
    assert f"{venv}/bin/gradwire info|doctor|bench" in done.stderr and "./run.sh install" in done.stderr
    again = run(fakes, "setup", GRADWIRE_VENV=str(venv))  # nothing to do, and it says so
    assert re.findall(r"\] (.*)$", again.stderr, re.M) == [stages[-1]]


def test_words_that_are_too_many_are_refused(fakes):
    done = run(fakes, "install", "a", "b")
    assert done.returncode == 1 and "install takes one folder at most" in done.stderr
    done = run(fakes, "--help")
    assert done.returncode == 0 and "./run.sh install [DIR]" in done.stdout
    assert done.stdout.rstrip().endswith("for the virtual environment.")
